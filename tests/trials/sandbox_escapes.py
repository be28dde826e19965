"""Runs the attempts of `sandbox_escape_lines` in a real sandbox and reports those that left a trace.

Everything is created below one directory: a home with keys and sockets, a data directory, a repository, the workspace
in it. Many attempts share one command, each in a shell of its own, so that all of them take seconds.
"""

import asyncio
import contextlib
import json
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.sandbox.privileges import landlock_version
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxPolicy, find_bubblewrap
from trials import sandbox_escape_lines as lines

__all__ = [
    "MECHANISMS",
    "PARTS",
    "Case",
    "EscapeEnvironment",
    "find_escapes",
    "find_escapes_as_user",
    "git",
    "try_escapes",
]

MECHANISMS = ("bubblewrap",) * (find_bubblewrap() is not None) + ("landlock",) * (landlock_version() >= 3)
PARTS = ("change", "read", "socket", "system", "two steps", "repositories", "existing repositories")
_MARK = "#attempt "
_USER = 54_321
_TIMEOUT = 300
_ATTEMPT_SECONDS = 10
_UNUSED_GIT_DIRECTORIES = frozenset(("objects", "refs", "info", "logs", "hooks", "branches"))
"""Directories of git in which no attempt creates anything."""


class Case(NamedTuple):
    """The kind of sandbox, and the location of the workspace: below the home directory, or beside it as a linked work
    tree.
    """

    mechanism: str
    network: bool = True
    place: str = "home"


def git(*arguments: str, cwd: Path, check: bool = True) -> None:
    """Run git as the user would, outside the sandbox."""
    settings = ("-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", "-c", "safe.directory=*")
    name = ("-c", "user.name=T", "-c", "user.email=t@example.com")
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", *settings, *name, *arguments]
    subprocess.run(command, cwd=cwd, check=check, capture_output=True, env=env, timeout=_TIMEOUT)


class EscapeEnvironment:
    """The directories and listeners of one case."""

    def __init__(self, root: Path, case: Case, attempts: int = 200) -> None:
        self.root = root
        self.case = case
        self.home, self.data, self.config = root / "h", root / "d", root / "h/.config/holdfast"
        self.runtime, self.above = root / "r", root / "h/src"
        self.workspace = root / ("h/src/w" if case.place == "home" else "w")
        # Victims that a command can see: in the repository above the workspace, or in the shared git directory.
        self.outside = root / ("h/src/o" if case.place == "home" else "h/src/main/.git/o")
        self.trace = root / "ran"
        self.program = root / "run"
        self.sockets: list[socket.socket] = []
        for folder in (self.home, self.data, self.config, self.runtime, self.above):
            folder.mkdir(parents=True, exist_ok=True)
        self._make_repositories()
        self.outside.mkdir()
        self._write_files(attempts)

    def _write_files(self, attempts: int) -> None:
        secrets = (
            ".ssh/id", ".aws/credentials", ".gnupg/key", ".netrc", ".docker/config.json", ".cargo/credentials.toml",
            ".cargo/credentials", ".local/share/uv/credentials/c", ".bash_history", "other/file",
            ".config/holdfast/credentials.toml",
        )  # fmt: skip
        files = {name: "SECRET\n" for name in secrets}
        files[".cargo/config.toml"] = "[registry]\ntoken = 'SECRET'\n"
        files[".cargo/bin/tool"] = "#!/bin/sh\necho tool\n"
        files[".gitconfig"] = "[user]\nname = Ann\nemail = ann@example.com\n[alias]\nx = !echo SECRET\n"
        for name, text in files.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(text)
        (self.home / ".cargo/bin/tool").chmod(0o755)
        (self.data / "token").write_text("SECRET")
        (self.home / ".local/share/uv/a/b/c").mkdir(parents=True)
        for number in range(attempts):
            (self.outside / str(number)).write_text("victim")
        self.program.write_text(f"#!/bin/sh\necho $0 $@ >> {self.trace}\nexit 1\n")
        self.program.chmod(0o755)

    def _make_repositories(self) -> None:
        main = self.root / "h/src/main"
        for folder in (main, self.root / "other"):
            folder.mkdir(parents=True)
            git("init", "-q", cwd=folder)
            git("commit", "-q", "--allow-empty", "-m", "first", cwd=folder)
        if self.case.place == "linked":
            git("worktree", "add", "-q", str(self.workspace), cwd=main)
        else:
            self.workspace.mkdir()
            git("init", "-q", cwd=self.above)
            git("init", "-q", cwd=self.workspace)
            git("commit", "-q", "--allow-empty", "-m", "first", cwd=self.workspace)
            git("submodule", "--quiet", "add", str(self.root / "other"), "mod", cwd=self.workspace)
            git("worktree", "add", "-q", str(self.root / "linked"), cwd=self.workspace)
        for name in ("plain", "nested"):
            (self.workspace / name).mkdir()
            git("init", "-q", cwd=self.workspace / name)
            git("commit", "-q", "--allow-empty", "-m", "first", cwd=self.workspace / name)
        (self.workspace / "tools/hooks").mkdir(parents=True)
        git("config", "core.hooksPath", "tools/hooks", cwd=self.workspace)

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        """Listen on a socket at each location, and on an abstract one, whose name is yielded."""
        name = f"holdfast-{os.getpid()}-{self.root.name}"
        places = [
            self.home,
            self.home / ".cargo",
            self.home / ".local/share/uv/a/b/c",
            self.runtime,
            self.above,
            self.data,
        ]
        with contextlib.ExitStack() as stack:
            for address in (*(str(place / "s") for place in places), f"\0{name}"):
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(address)
                listener.listen(64)
            datagram = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            datagram.bind(str(self.runtime / "d"))
            yield name

    @contextlib.asynccontextmanager
    async def processes(self) -> AsyncIterator[Processes]:
        guard = Guard()
        await guard.ready()
        bubblewrap = find_bubblewrap() if self.case.mechanism == "bubblewrap" else None
        policy = SandboxPolicy(
            str(self.workspace),
            str(self.data / "w1/scratch"),
            self.case.network,
            hidden=(str(self.data), str(self.config), str(self.runtime)),
            home_directory=str(self.home),
        )
        try:
            sandbox = Sandbox(policy, has_namespaces=guard.has_namespaces, bubblewrap=bubblewrap)
            yield Processes(guard, self.root / "spills", sandbox=sandbox)
        finally:
            await guard.close()

    def words(self, number: int, name: str, abstract: str = "") -> dict[str, object]:
        return {
            "ws": self.workspace,
            "victim": self.outside / str(number),
            "new": self.outside / f"new-{number}",
            "home": self.home,
            "data": self.data,
            "config": self.config,
            "above": self.above,
            "runtime": self.runtime,
            "outside": self.outside,
            "py": (shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or sys.executable) + " -I -S",
            "pid": os.getpid(),
            "run": self.program,
            "name": str(number),
            "abstract": abstract,
            "tty": _terminal(),
            "shm": os.getpid(),
        }

    def run_everywhere(self) -> None:
        """Run git in every directory of the workspace and of the repository, as a user or a prompt would."""
        (self.workspace / "changed").write_text("x")
        folders = [self.root / "linked", *self._folders(self.workspace)]
        for folder in folders:
            if folder.is_dir():
                git("status", cwd=folder, check=False)

    def traces(self, name: str) -> list[str]:
        """Return and forget the programs that have run outside."""
        if not self.trace.exists():
            return []
        text = self.trace.read_text()
        self.trace.unlink()
        return [f"{name}: a program ran outside: {text[:300]!r}"]

    def _folders(self, top: Path) -> Iterator[Path]:
        yield top
        # A directory that cannot be listed is reached by the link of its attempt.
        for path in sorted(top.iterdir()) if os.access(top, os.R_OK) else ():
            if path.is_dir() and path.name not in _UNUSED_GIT_DIRECTORIES:
                yield from [path] if path.is_symlink() else self._folders(path)


def _terminal() -> str:
    return next((str(path) for path in sorted(Path("/dev/pts").glob("[0-9]*"))), "/dev/pts/none")


async def _run(processes: Processes, environment: EscapeEnvironment, script: str) -> dict[str, str]:
    """Run a script of several attempts and return its output by attempt."""
    env = {"PATH": os.environ["PATH"], "HOME": str(environment.home), "HOLDFAST_TEST": "1", "LC_ALL": "C"}
    launch = CommandLaunch(("/bin/bash", "-c", script), str(environment.workspace), env, 0.25)
    running, _ = await processes.run(launch)
    found: dict[str, str] = {"": running.remark}
    for part in running.stdout.excerpt().split(_MARK)[1:]:
        name, _, text = part.partition("\n")
        found[name] = found.get(name, "") + text
    return found


def _script(attempts: Mapping[str, str]) -> str:
    """Each attempt in a shell of its own, for a few seconds; its stderr is ignored."""
    shell = f"timeout -s KILL {_ATTEMPT_SECONDS} bash -c"
    parts = (
        f"echo; echo {_quoted(_MARK + name)}; {shell} {_quoted(line)} 2>/dev/null" for name, line in attempts.items()
    )
    return "\n".join(parts)


def _is_changed(environment: EscapeEnvironment, number: int, before: os.stat_result) -> bool:
    victim = environment.outside / str(number)
    try:
        after = victim.stat()
        same = [(s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns, s.st_ctime_ns) for s in (before, after)]
        return same[0] != same[1] or victim.read_text() != "victim"
    except OSError:
        return True


async def find_escapes(root: Path, case: Case, parts: Collection[str] = PARTS) -> list[str]:
    """Try everything once, or some parts; return the names of the attempts that left a trace."""
    environment = EscapeEnvironment(root, case)
    found: list[str] = []
    with environment.listening() as abstract:
        async with environment.processes() as processes:
            found += await _try_attempts(environment, processes, abstract, parts)
            if "two steps" in parts:
                found += await _try_two_steps(environment, processes)
            if "repositories" in parts:
                found += await _try_repositories(environment, processes, _all_forms())
            if "existing repositories" in parts:
                found += await _try_top(environment, processes)
    return found


async def _try_attempts(
    environment: EscapeEnvironment, processes: Processes, abstract: str, parts: Collection[str]
) -> list[str]:
    kinds = {"change": lines.CHANGES, "read": lines.READS, "socket": lines.SOCKETS}
    if platform.machine() == "x86_64":
        kinds["system"] = lines.SYSTEM
    attempts: dict[str, str] = {}
    victims: dict[str, tuple[int, os.stat_result]] = {}
    for kind in parts:
        for name, line in kinds.get(kind, {}).items():
            number = len(victims)
            victims[f"{kind}: {name}"] = number, (environment.outside / str(number)).stat()
            attempts[f"{kind}: {name}"] = line.format(**environment.words(number, name, abstract))
    output = await _run(processes, environment, _script(attempts))
    found = [f"new: {path.name}" for path in environment.outside.glob("new-*")]
    for name, (number, before) in victims.items():
        text = output.get(name)
        if text is None or "SECRET" in text or f"reached-{number}" in text or _is_changed(environment, number, before):
            found.append(f"{name}: {text!r}"[:160])
    return found


async def _try_two_steps(environment: EscapeEnvironment, processes: Processes) -> list[str]:
    found = []
    for number, (name, (first, second)) in enumerate(lines.TWO_STEPS.items(), 150):
        before = (environment.outside / str(number)).stat()
        words = environment.words(number, name)
        await _run(processes, environment, _script({name: first.format(**words)}))
        await _run(processes, environment, _script({name: second.format(**words)}))
        if _is_changed(environment, number, before):
            found.append(f"two steps: {name}")
    return found


def _all_forms() -> dict[str, str]:
    """Return every form with one setting, and every setting with one form."""
    pairs = [(form, "fsmonitor") for form in lines.GIT_FORMS] + [("repository", name) for name in lines.GIT_SETTINGS]
    return {
        f"{form}, {name}": _form(form, lines.GIT_SETTINGS[name], f"f{number}")
        for number, (form, name) in enumerate(pairs)
    }


def _form(form: str, key: str, folder: str) -> str:
    words = {"dir": folder, "base": os.path.basename(folder), "key": key, "value": "{run}", "ws": "{ws}"}
    return lines.GIT_FORMS[form].format(**words)


async def _try_repositories(
    environment: EscapeEnvironment, processes: Processes, forms: Mapping[str, str]
) -> list[str]:
    words = environment.words(0, "")
    await _run(processes, environment, _script({name: line.format(**words) for name, line in forms.items()}))
    environment.run_everywhere()
    return environment.traces("repositories")


async def _try_top(environment: EscapeEnvironment, processes: Processes) -> list[str]:
    """Each in a command of its own: some of them leave a repository that no other attempt can use."""
    words = environment.words(0, "")
    found = []
    for name, line in lines.TOP.items():
        await _run(processes, environment, _script({name: line.format(**words)}))
        for folder in (
            environment.workspace,
            environment.workspace / "nested",
            environment.workspace / "mod",
            environment.root / "linked",
        ):
            if folder.is_dir():
                git("status", cwd=folder, check=False)
        found += environment.traces(f"top {name}")
    environment.run_everywhere()
    return [*found, *environment.traces("top")]


def find_escapes_as_user(root: Path, case: Case) -> list[str]:
    """Try everything in another process: as an ordinary user, if this is root."""
    user: list[str] = []
    if os.geteuid() == 0:
        os.chown(root, _USER, _USER)
        user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
    command = [*user, _python_for(user), "-m", __name__]
    paths = ":".join(path for path in sys.path if path and not path.startswith(sys.base_prefix))
    known = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}}
    env = {**known, "HOME": str(root / "h"), "PYTHONPATH": paths, "SECRET_OF_THE_SERVER": "SECRET"}
    command += [str(root), json.dumps(case)]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2_000:])
    found: list[str] = json.loads(done.stdout)
    return found


def _python_for(user: list[str]) -> str:
    """Return a Python that the user can start: this one may be in root's home directory."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (os.path.realpath(sys.executable), f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        # setpriv itself still has the rights of root when it starts a program.
        done = subprocess.run([*user, "sh", "-c", f"{program} -c ''"], capture_output=True, check=False)
        if done.returncode == 0:
            return program
    raise RuntimeError(f"an ordinary user cannot start any {version} here")


def try_escapes(seed: int) -> None:
    """Try the list, or repositories of random forms and names, in a random sandbox. Raise `AssertionError`."""
    chance = random.Random(seed)
    case = Case(chance.choice(MECHANISMS), chance.random() < 0.5, chance.choice(("home", "linked")))
    kind = chance.choice(("random", "random", "list", "list as a user"))
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        if kind == "list as a user":
            found = find_escapes_as_user(Path(folder), case)
        else:
            root = Path(folder)
            found = asyncio.run(find_escapes(root, case) if kind == "list" else _try_random(root, case, chance))
    assert not found, f"{case}, {kind}: {found}"


async def _try_random(root: Path, case: Case, chance: random.Random) -> list[str]:
    environment = EscapeEnvironment(root, case, 10)
    forms: dict[str, str] = {}
    for number in range(12):
        form, name = chance.choice([*lines.GIT_FORMS]), chance.choice([*lines.GIT_SETTINGS])
        folder = chance.choice(("a", "a b", "ä", ".x", "A.git", "x\ny", "$(y)", "-z", "b/c", "deep/er")) + str(number)
        make = _form(form, lines.GIT_SETTINGS[name], f"r{number}")
        move = f'mkdir -p -- "$(dirname -- {_quoted(folder)})"; mv -- r{number} {_quoted("./" + folder)}'
        forms[f"{number}"] = make + chance.choice(("", f"; {move}", f"; ( sleep 0.1; {move} ) &", f"; {move}; true"))
    async with environment.processes() as processes:
        return await _try_repositories(environment, processes, forms)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(find_escapes(Path(sys.argv[1]), Case(*json.loads(sys.argv[2]))))))
