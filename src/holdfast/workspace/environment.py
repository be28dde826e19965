"""Environment of a command: the client's variables, a selection of the server's, and none of Holdfast's own. Pure."""

from collections.abc import Collection, Iterable, Mapping

__all__ = ["command_environment"]

_FROM_SERVER = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOSTNAME",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy",
    "no_proxy", "all_proxy", "CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOROOT", "GOPROXY", "JAVA_HOME", "NVM_DIR",
    "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS",
))  # fmt: skip
"""Server variables that commands need to find programs, the user's files and the network."""

_CHANGES_THE_SHELL = frozenset((
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

_OURS = "HOLDFAST"
_LONG_ENOUGH = 8
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
    hidden = tuple(secret for secret in secrets if len(secret) >= _LONG_ENOUGH)
    known = {name: value for name, value in server.items() if name in _FROM_SERVER or name.startswith("LC_")}
    merged = {
        name: value
        for name, value in {**known, **client}.items()
        if _may_pass(name, value) and name not in withheld and not any(secret in value for secret in hidden)
    }
    merged["PATH"] = _from_the_top(merged.get("PATH", "")) or _FALLBACK_PATH
    return {**merged, **_FIXED, "PWD": cwd}


def _from_the_top(path: str) -> str:
    """Remove relative and empty entries from PATH: they would let the project define `ls`."""
    return ":".join(entry for entry in path.split(":") if entry.startswith("/"))


def _may_pass(name: str, value: str) -> bool:
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    return not name.startswith((_OURS, "BASH_FUNC_")) and name not in _CHANGES_THE_SHELL
