"""Shell commands: converts a line to a launch, and runs the lines a user types with `!`.

The environment of a command consists of the client's variables and a selection of the server's, without any of
Holdfast's own.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from holdfast.domain.processes import ShellResult
from holdfast.workspace.files.safe_open import require_workspace
from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import CannotStart

__all__ = ["Shell", "command_environment", "find_bash", "no_secrets"]

_FROM_SERVER = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOSTNAME",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy",
    "no_proxy", "all_proxy", "CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOROOT", "GOPROXY", "JAVA_HOME", "NVM_DIR",
    "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS",
))  # fmt: skip
"""Server variables that commands need to find programs, the user's files and the network."""

_SHELL_CONTROLS = frozenset((
    "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "PS4", "IFS", "CDPATH", "GLOBIGNORE",
    "BASH_XTRACEFD", "POSIXLY_CORRECT", "OLDPWD", "SHLVL", "_", "FORCE_COLOR", "CLICOLOR_FORCE",
))  # fmt: skip
"""Variables that would change the meaning of a shell line or force colours."""

_FIXED = {
    "HOLDFAST": "1",
    "AGENT": "holdfast",
    "AI_AGENT": "holdfast",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GCM_INTERACTIVE": "never",
    "GIT_EDITOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
}
"""No terminal is attached: programs must not prompt, page, colour or open an editor."""

_OWN_PREFIX = "HOLDFAST"
_MIN_SECRET_LENGTH = 8
_FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def command_environment(
    server: Mapping[str, str],
    client: Mapping[str, str],
    *,
    cwd: str,
    withheld: Collection[str] = (),
    secrets: Iterable[str] = (),
) -> dict[str, str]:
    """Return the environment of a command. Variables named in `withheld` or containing a value of
    `secrets` are removed.
    """
    hidden = tuple(secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH)
    known = {name: value for name, value in server.items() if name in _FROM_SERVER or name.startswith("LC_")}
    merged = {
        name: value
        for name, value in {**known, **client}.items()
        if _is_passed_on(name, value) and name not in withheld and not any(secret in value for secret in hidden)
    }
    merged["PATH"] = _absolute_entries(merged.get("PATH", "")) or _FALLBACK_PATH
    return {**merged, **_FIXED, "PWD": cwd}


def _absolute_entries(path: str) -> str:
    """Remove relative and empty entries from PATH: they would let the project define `ls`."""
    return ":".join(entry for entry in path.split(":") if entry.startswith("/"))


def _is_passed_on(name: str, value: str) -> bool:
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    return not name.startswith((_OWN_PREFIX, "BASH_FUNC_")) and name not in _SHELL_CONTROLS


Secrets = Callable[[], tuple[Collection[str], Collection[str]]]


def no_secrets() -> tuple[Collection[str], Collection[str]]:
    """Return no names and no values."""
    return (), ()


class Shell:
    """The user's bash, started anew for every line: it keeps no state and reads no start-up file.

    `secrets` returns the current names and values of variables to withhold from commands.
    """

    def __init__(self, processes: Processes, secrets: Secrets = no_secrets) -> None:
        self.processes = processes
        self._secrets = secrets

    def launch(
        self, line: str, cwd: str, client: Mapping[str, str], *, linger: float | None = 0.25, columns: int = 0
    ) -> CommandLaunch:
        """Return the launch of a line in a directory, given as a real path. Raises `CannotStart` if bash is missing."""
        env = self.environment(cwd, client)
        if columns > 0:
            env["COLUMNS"] = str(columns)
        return CommandLaunch((find_bash(client), "-c", "--", line), cwd, env, linger, is_real=True)

    def environment(self, cwd: str, client: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a line."""
        names, values = self._secrets()
        return command_environment(os.environ, client, cwd=cwd, withheld=names, secrets=values)

    async def call(
        self, line: str, cwd: str, client: Mapping[str, str], *, columns: int = 0, owner: str = ""
    ) -> ShellResult:
        """Run a line typed by a user. It is stopped if the caller is cancelled."""
        if "\0" in line:
            raise CannotStart("A command cannot contain a NUL character.")
        require_workspace(cwd)
        cwd = await asyncio.to_thread(os.path.realpath, cwd)
        launch = msgspec.structs.replace(self.launch(line, cwd, client, columns=columns), owner=owner)
        running, end = await self.processes.run(launch)
        if end.error:
            raise CannotStart(end.error)
        output = "".join(filter(None, (running.stdout.excerpt(), running.stderr.excerpt(), running.remark)))
        return ShellResult(output, 137 if end.code is None else end.code)


def find_bash(client: Mapping[str, str]) -> str:
    """Return the user's bash. Raises `CannotStart` if it is missing."""
    named = client.get("SHELL") or os.environ.get("SHELL", "")
    if Path(named).name == "bash" and os.access(named, os.X_OK):
        return named
    found = "/bin/bash" if os.access("/bin/bash", os.X_OK) else shutil.which("bash")
    if found is None:
        raise CannotStart("There is no bash on this machine: install it, or put it on the PATH.")
    return found
