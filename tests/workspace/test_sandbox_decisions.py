"""Decisions of the sandbox before a command starts: open, mounted, hidden and dropped paths.

No command runs here; `test_sandbox.py` runs them. Every clause of a decision has a row that only it decides.
"""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.settings import SandboxSettings
from holdfast.workspace.process.command_process import CommandLaunch
from holdfast.workspace.process.guard_client import Bounds
from holdfast.workspace.sandbox import mount_view, sandbox
from holdfast.workspace.sandbox.mount_view import (
    ViewPlan,
    bound_sockets,
    bubblewrap_options,
    build_mounts,
    credentials_below,
    home_directories,
    is_private,
    is_system,
    write_gitconfig,
)
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxImpossible, SandboxPolicy, unavailable_reason
from planting import assert_every_clause_decides


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def bind(path: Path) -> Path:
    """Create a socket at a path; its name may be too long for a system call."""
    path.parent.mkdir(parents=True, exist_ok=True)
    here = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)
    return path


# The view


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine below a directory with the directories of users and services, instead of the real one."""
    base = Path(os.path.realpath(tmp_path)) / "machine"
    for name in ("tmp", "var/tmp", "home", "run", "etc/ssl/private", "services", "proc/sys"):
        (base / name).mkdir(parents=True)
    put(base / "etc/shadow", "secret")
    put(base / "etc/resolv.conf", "")
    put(base / "run/resolv.conf", "")
    os.symlink("../run/resolv.conf", base / "etc/linked.conf")
    os.symlink("run", base / "var/run")
    monkeypatch.setattr(mount_view, "_TMP", str(base / "tmp"))
    monkeypatch.setattr(mount_view, "_LOST", str(base / "var/tmp"))
    private = tuple(str(base / name) for name in ("home", "nothing", "run"))
    monkeypatch.setattr(mount_view, "_PRIVATE", private)
    readable = tuple(str(base / name) for name in ("etc/resolv.conf", "etc/linked.conf", "nothing"))
    monkeypatch.setattr(mount_view, "_READABLE_EXCEPTIONS", readable)
    keys = tuple(str(base / name) for name in ("etc/shadow", "etc/shadow-", "etc/ssl/private", "etc/*_key"))
    monkeypatch.setattr(mount_view, "_KEYS", keys)
    monkeypatch.setattr(mount_view, "_SERVICES", (str(base / "services"), str(base / "nothing")))
    monkeypatch.setattr(mount_view, "_KERNEL", (str(base / "proc/sys"), str(base / "proc/nothing")))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return base


def mounts_of(base: Path, **parts: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    """Return the mounts of a plan; sources only where they differ from their target."""
    (base / "work").mkdir(exist_ok=True)
    plan = msgspec.structs.replace(ViewPlan(str(base / "work"), str(base / "scratch")), **parts)
    found = []
    for operation, path, source in build_mounts(plan):
        other = f" from {os.path.relpath(source, base)}" if source and source != path else ""
        found.append((operation, f"{os.path.relpath(path, base)}{other}"))
        assert bool(source) is (operation in ("bind", "read"))
    return found


ALWAYS_FIRST = [("bind", "tmp from scratch"), ("tmpfs", "var/tmp")]
ALWAYS_LAST = [("mask", "etc/shadow"), ("tmpfs", "etc/ssl/private"), ("tmpfs", "services"), ("freeze", "proc/sys")]
SEALS = [("seal", "home"), ("seal", "run"), ("seal", "etc/ssl/private"), ("seal", "services")]


def test_minimal_view(machine: Path) -> None:
    assert mounts_of(machine) == [
        *ALWAYS_FIRST,
        ("tmpfs", "home"),
        ("tmpfs", "run"),
        ("read", "run/resolv.conf"),
        ("bind", "work"),
        *ALWAYS_LAST,
        *SEALS,
    ]


def test_mount_order_of_full_view(machine: Path) -> None:
    base = str(machine)
    for name in ("home/me", "repository", "hidden", "work/.git"):
        (machine / name).mkdir(parents=True)
    put(machine / "work/protected")
    put(machine / "work/secret")
    found = mounts_of(
        machine,
        homes=(f"{base}/home/me",),
        home_readable=((f"{base}/home/me/go", f"{base}/elsewhere"),),
        home_writable=((f"{base}/home/me/.cache/pip", f"{base}/home/me/.cache/pip"),),
        gitconfig=f"{base}/gitconfig",
        readable=(f"{base}/repository", f"{base}/tmp/above/repository"),
        writable=(f"{base}/home/me/git/objects",),
        pinned=(f"{base}/work/.git",),
        protected=(f"{base}/work/protected",),
        hidden=(f"{base}/hidden", f"{base}/work/secret", f"{base}/nothing", f"{base}/home/me/covered"),
    )
    assert found == [
        *ALWAYS_FIRST,
        ("tmpfs", "tmp/above"),
        ("tmpfs", "home"),
        ("tmpfs", "run"),
        ("tmpfs", "home/me"),
        ("tmpfs", "home/me/git"),
        ("read", "home/me/go from elsewhere"),
        ("bind", "home/me/.cache/pip"),
        ("read", "home/me/.gitconfig from gitconfig"),
        ("read", "run/resolv.conf"),
        ("read", "repository"),
        ("read", "tmp/above/repository"),
        ("bind", "work"),
        ("bind", "home/me/git/objects"),
        ("bind", "work/.git"),
        ("read", "work/protected"),
        ("tmpfs", "hidden"),
        ("mask", "work/secret"),
        *ALWAYS_LAST,
        ("seal", "tmp/above"),
        ("seal", "home"),
        ("seal", "run"),
        ("seal", "home/me/git"),
        ("seal", "hidden"),
        *SEALS[2:],
    ]


def test_only_existing_visible_paths_are_hidden(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a symlink nor a covered path; a directory only if it can be entered."""
    base = str(machine)
    os.symlink("etc", machine / "link")
    put(machine / "run/covered")
    bind(machine / "work/s")
    put(machine / "tmp/file")
    (machine / "closed").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("closed") and real(path, mode))
    names = ("link", "run/covered", "work/s", "tmp/file", "closed", "run/resolv.conf")
    found = mounts_of(machine, hidden=tuple(f"{base}/{name}" for name in names))
    masks = [path for operation, path in found if operation in ("mask", "tmpfs")]
    assert masks == [
        "var/tmp", "home", "run", "work/s", "run/resolv.conf", "etc/shadow", "etc/ssl/private", "services",
    ]  # fmt: skip


def test_kernel_files_are_read_only_for_root(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert [item for item in mounts_of(machine) if item[0] == "freeze"] == []


def test_home_equal_to_private_directory_is_writable(machine: Path) -> None:
    """As /root is: it is empty, but not sealed."""
    found = mounts_of(machine, homes=(f"{machine}/run",))
    assert ("seal", "run") not in found
    assert found.count(("tmpfs", "run")) == 2


def test_the_same_view_for_bubblewrap() -> None:
    mounts = [
        ("tmpfs", "/a", ""), ("bind", "/b", "/B"), ("read", "/c", "/C"), ("mask", "/d", ""), ("freeze", "/e", ""),
        ("seal", "/a", ""),
    ]  # fmt: skip
    assert bubblewrap_options(mounts) == [
        "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/a", "--bind", "/B", "/b",
        "--ro-bind", "/C", "/c", "--ro-bind", "/dev/null", "/d", "--ro-bind", "/e", "/e", "--remount-ro", "/a",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="other"):
        bubblewrap_options([("other", "/a", "")])


def test_system_directories() -> None:
    for path in ("/", "/usr", "/etc", "/home", "/root", "/tmp", "/var", "/var/tmp", "/run", "/mnt"):
        assert is_system(path), path
    for path in ("/home/me", "/tmp/x", "/usr/src", "/opt", "/srv", "/var/lib"):
        assert not is_system(path), path


def test_sockets_that_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(os.path.realpath(tmp_path))
    bind(base / "real/s")
    put(base / "real/file")
    os.symlink("real", base / "link")
    os.symlink("s", base / "real/to s")
    lines = ["Num RefCount", *(f"0: 2 0 0 1 1 5 {path}" for path in (
        f"{base}/link/s", f"{base}/real/s", f"{base}/real/file", f"{base}/real/to s", f"{base}/gone", "@abstract",
    )), "0: 2 0 0 1 1 5"]  # fmt: skip
    listing = put(tmp_path / "unix", "\n".join(lines) + "\n")
    monkeypatch.setattr(mount_view, "_SOCKETS", str(listing))
    # Two names are two lines; their target counts.
    assert list(bound_sockets()) == [f"{base}/real/s"] * 2
    listing.unlink()
    assert list(bound_sockets()) == []


# The home directory


class Home:
    def __init__(self, base: Path) -> None:
        self.path = Path(os.path.realpath(base)) / "home"
        for name in (".ssh", ".config/git", ".cargo/bin", "project/src", "keys"):
            (self.path / name).mkdir(parents=True)
        put(self.path / ".cargo/credentials", "secret")
        os.symlink("../keys", self.path / ".config/gh")
        os.symlink(".ssh", self.path / "link")


def check_private(home: Home) -> None:
    homes = ("/nowhere", str(home.path))
    private = ("", ".ssh", ".ssh/id", ".config", ".config/git/x", ".cargo/credentials", ".bashrc", ".local", "keys")
    for name in (*private, "..", "../.."):
        assert is_private(os.path.normpath(home.path / name), homes), name
    # An exception may contain the credentials of a toolchain, which are masked in it.
    for name in ("project", "project/src", ".cargo", ".cargo/bin", "other", ".sshx", "../homex", "link"):
        assert not is_private(os.path.normpath(home.path / name), homes), name
    assert not is_private(str(home.path), ())


def test_never_opened_home_paths(tmp_path: Path) -> None:
    home = Home(tmp_path)
    check_private(home)
    assert_every_clause_decides(is_private, lambda: check_private(home))


def test_home_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(os.path.realpath(tmp_path))
    for name in ("client", "server", "own"):
        (base / name).mkdir()
    os.symlink("client", base / "link")
    put(base / "file")
    entry = type("Entry", (), {"pw_dir": str(base / "own")})
    monkeypatch.setattr(mount_view.pwd, "getpwuid", lambda _: entry)  # type: ignore[attr-defined]
    rows: list[tuple[str, str | None, list[str]]] = [
        ("", None, ["own"]),
        (str(base / "client"), str(base / "server"), ["client", "server", "own"]),
        (str(base / "link"), str(base / "client"), ["client", "own"]),
        ("/", "relative", ["own"]),
        (str(base / "file"), str(base / "nothing"), ["own"]),
    ]
    for client, server, expected in rows:
        if server is None:
            monkeypatch.delenv("HOME", raising=False)
        else:
            monkeypatch.setenv("HOME", server)
        assert home_directories(client) == tuple(str(base / name) for name in expected), client

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(mount_view.pwd, "getpwuid", unknown)  # type: ignore[attr-defined]
    assert home_directories(str(base / "client")) == (str(base / "client"),)


def test_credentials_in_what_is_opened_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.path.realpath(tmp_path)) / "home"
    named = [home / name for name in (".cargo/credentials", ".cargo/credentials.toml", ".local/share/uv/credentials")]
    put(home / ".cargo/config", "[registry]\nTOKEN = 'x'\n")
    put(home / ".cargo/config.toml", "[build]\njobs = 2\n")
    for name in ("Credentials", "a/.NPMRC", "a/b/.env", "plain", "a/plain", ".env/x"):
        put(home / "opened" / name)
    bind(home / "opened/a/s")
    (home / "opened/folder").mkdir()
    os.symlink("a", home / "opened/.netrc")
    found = set(credentials_below(str(home), str(home / "opened")))
    below = {home / "opened" / name for name in ("Credentials", "a/.NPMRC", "a/s", ".env", ".netrc")}
    assert found == set(map(str, (*named, home / ".cargo/config", *below)))
    monkeypatch.setattr(mount_view, "_MAX_ENTRIES", 0)
    assert set(credentials_below(str(home), str(home / "opened"))) == set(map(str, (*named, home / ".cargo/config")))


def test_private_git_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    home = tmp_path / "home"
    target = tmp_path / "data/gitconfig"
    put(home / ".gitconfig", "[user]\n\tname = Ann\n[include]\n\tpath = more\n[core]\n\tpager = x\n")
    put(home / "more", "[user]\n\temail = ann@example.org\n\tsigningkey = x\n")
    write_gitconfig(target, str(home))
    assert target.read_text() == "[user]\n\tname = Ann\n\temail = ann@example.org\n"
    assert stat.S_IMODE(target.stat().st_mode) & 0o077 == 0
    write_gitconfig(target, "")
    assert target.read_text() == ""
    put(tmp_path / "config/git/config", "[user]\n\tname = Other\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_gitconfig(target, str(tmp_path / "nothing"))
    assert target.read_text() == "[user]\n\tname = Other\n"


# Opened paths


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with a project, and a server; the real machine is not read."""
    base = Path(os.path.realpath(tmp_path))
    for name in ("home/project", "server/data", "work"):
        (base / name).mkdir(parents=True)
    monkeypatch.setattr(sandbox, "home_directories", lambda _: (str(base / "home"),))
    monkeypatch.setattr(sandbox, "_runtime_directories", tuple)
    monkeypatch.setattr(sandbox, "bound_sockets", lambda: iter(()))
    return base


def policy(base: Path, workspace: str = "work", **more: Any) -> SandboxPolicy:  # noqa: ANN401
    hidden = (str(base / "server"),)
    return msgspec.structs.replace(
        SandboxPolicy(str(base / workspace), str(base / "server/data/scratch"), hidden=hidden), **more
    )


def make(base: Path, workspace: str = "work", bubblewrap: str | None = "/bin/true", **more: Any) -> Sandbox:  # noqa: ANN401
    return Sandbox(policy(base, workspace, **more), has_namespaces=True, bubblewrap=bubblewrap)


def test_inseparable_workspaces_are_refused(ground: Path) -> None:
    for name in ("home/.ssh/x", "home/.config/holdfast", "server/data/below"):
        (ground / name).mkdir(parents=True)
    for name in ("work", "home/project"):
        make(ground, name)
    refused = {
        "home": "a system or home directory",
        ".": "a system or home directory",
        "/usr": "a system or home directory",
        "home/.ssh/x": "keys or settings",
        "server": "keys or settings",
        "server/data/below": "keys or settings",
    }
    for name, why in refused.items():
        with pytest.raises(SandboxImpossible, match=why):
            make(ground, os.path.normpath(ground / name))
    (ground / "outer/hidden").mkdir(parents=True)
    with pytest.raises(SandboxImpossible, match="keys or settings"):
        make(ground, "outer", hidden=(str(ground / "outer/hidden"),))


def test_exceptions_of_the_home_directory(ground: Path) -> None:
    home = ground / "home"
    for name in ("go", ".cargo", ".ssh", "cache", "read", "elsewhere/x"):
        (home / name).mkdir(parents=True)
    os.symlink("../server", home / "to server")
    os.symlink(".ssh", home / "to keys")
    os.symlink("elsewhere", home / "linked")
    os.symlink("/usr/share", home / "to usr")
    bind(home / "socket")
    asked = ("cache", "~/linked", "missing", "to server", "to keys", "to usr", "socket", ".", "../work", ".ssh")
    settings = SandboxSettings(home=asked, home_readonly=("read",))
    made = make(ground, home=settings)
    state = made.describe()
    assert state.writable == (str(ground / "work"), str(home / "cache"), str(home / "linked"))
    (note,) = [note for note in state.notes if "can read" in note]
    assert {name for name in (".cargo", "go", "read", "cache", ".rustup") if str(home / name) in note} == {
        ".cargo", "go", "read",
    }  # fmt: skip
    refused = [note.removeprefix("sandbox.home: ").removesuffix(" is never opened.") for note in state.notes]
    assert [name for name in refused if name in asked] == [
        "to server", "to keys", "to usr", "socket", ".", "../work", ".ssh",
    ]  # fmt: skip
    launch, _ = made.confine(CommandLaunch(("true",), str(ground / "work"), {}))
    # A symlink in the home directory exposes its target.
    assert " ".join(["--bind", str(home / "elsewhere"), str(home / "linked")]) in " ".join(launch.argv)


def test_the_repository_above_a_workspace_can_be_read(ground: Path) -> None:
    for name in ("repository/.git", "repository/a/b", "home/.ssh/.git", "home/.ssh/x"):
        (ground / name).mkdir(parents=True)

    def readable(workspace: str) -> list[str]:
        launch, _ = make(ground, workspace).confine(CommandLaunch(("true",), "/", {}))
        words = list(launch.argv)
        pairs = [(words[place + 1], words[place + 2]) for place, word in enumerate(words) if word == "--ro-bind"]
        return [
            os.path.relpath(path, ground) for path, other in pairs if path == other and path.startswith(str(ground))
        ]

    assert readable("repository/a/b") == ["repository"]
    assert readable("work") == []
    (ground / "home/.git").mkdir()
    assert readable("home/project") == [], "not if it is the home directory"


def test_the_git_directory_of_a_linked_work_tree(ground: Path) -> None:
    common, tree = ground / "main/.git", ground / "work"
    for name in ("objects", "refs", "worktrees/w"):
        (common / name).mkdir(parents=True)
    put(common / "HEAD")
    own = common / "worktrees/w"
    put(own / "HEAD")
    put(own / "config.worktree")
    put(own / "commondir", "../..\n")
    put(own / "gitdir", f"{tree}/.git\n")
    put(tree / ".git", f"gitdir: {own}\n")
    made = make(ground)
    made.prepare()
    state = made.describe()
    assert state.writable == (str(tree), str(own), str(common / "objects"), str(common / "refs"))
    assert set(state.protected) == {
        str(tree / ".git"),
        *(str(own / name) for name in ("config.worktree", "commondir", "gitdir")),
    }
    # In a hidden directory or a system directory it stays closed.
    for name in ("server/data/scratch-git.json", "server/data/scratch-kept.json"):
        (ground / name).unlink(missing_ok=True)
    closed = make(ground, hidden=(str(ground / "server"), str(common / "objects"))).describe()
    assert closed.writable == (str(tree),)


# One command


def test_launch_of_command(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {name: "x" for name in (*sandbox._DROPPED, "PATH", "TMPDIR", "HOME")}
    launch = CommandLaunch(("run", "it"), str(ground / "work"), env, 0.5, is_real=True, owner="s1")
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    made = make(ground)
    found, bounds = made.confine(launch)
    assert found.env == {"PATH": "x", "HOME": "x", "TMPDIR": "/tmp"}
    assert (found.cwd, found.linger, found.is_real, found.owner) == (launch.cwd, 0.5, True, "s1")
    assert found.argv[0] == "/bin/true"
    assert found.argv[-5:] == ("--chdir", launch.cwd, "--", "run", "it")
    assert {"--unshare-pid", "--unshare-ipc"} < set(found.argv)
    assert not {"--unshare-net", "--cap-drop"} & set(found.argv)
    assert bounds == Bounds(restricted=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found, _ = make(ground, network=False).confine(launch)
    words = list(found.argv)
    assert "--unshare-net" in words
    begin = words.index("--cap-drop")
    kept = ("DAC_OVERRIDE", "CHOWN", "FOWNER", "FSETID", "KILL", "SETUID", "SETGID")
    assert words[begin : begin + 2] == ["--cap-drop", "ALL"]
    assert words[begin + 2 : begin + 16] == [word for name in kept for word in ("--cap-add", f"CAP_{name}")]


def test_launch_of_command_without_bubblewrap(ground: Path) -> None:
    for network in (True, False):
        launch, bounds = make(ground, bubblewrap=None, network=network).confine(CommandLaunch(("run",), "/", {}))
        assert launch.argv == ("run",)
        assert (bounds.restricted, bounds.network) == (True, network)
        writable = [path for operation, path, _ in bounds.mounts if operation in ("bind", "tmpfs")]
        assert [*bounds.landlock] == [
            *writable,
            "/dev/null",
            "/dev/zero",
            "/dev/full",
            "/dev/tty",
            "/dev/pts",
            "/dev/shm",
        ]
        assert str(ground / "work") in writable


def test_a_program_with_set_uid_gets_no_filter(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have no effect after privileges are dropped. Root does not need the bit."""
    program = put(ground / "bwrap")
    program.chmod(0o4755)
    rows = {(1_000, 0o4755): False, (0, 0o4755): True, (1_000, 0o755): True}
    for (user, mode), restricted in rows.items():
        program.chmod(mode)
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        made = make(ground, bubblewrap=str(program))
        assert made.confine(CommandLaunch(("run",), "/", {}))[1] == Bounds(restricted=restricted)
        assert bool([gap for gap in made.describe().gaps if "keyrings" in gap]) is not restricted


def test_protected_workspace_paths(ground: Path) -> None:
    work = ground / "work"
    names = ("holdfast.toml", ".claude/settings.json", ".hg/hgrc", "deep/holdfast.toml", ".git/config", ".git/HEAD")
    for name in names:
        put(work / name)
    os.symlink("real", work / ".mcp.json")
    put(work / "real")
    os.symlink("/etc/passwd", work / ".crush.json")
    put(work / "sub/.git/config")
    put(work / "sub/.git/HEAD")
    put(work / "tree/.git", "gitdir: ../sub/.git\n")
    put(work / ".git/hooks/x")
    made = make(ground)
    made.prepare()
    found = {os.path.relpath(path, work) for path in made.describe().protected}
    assert found == {
        "holdfast.toml", ".claude", ".hg/hgrc", "real", ".git/config", ".git/hooks", "sub/.git/config", "tree/.git",
    }  # fmt: skip
    launch, _ = made.confine(CommandLaunch(("run",), "/", {}))
    words = " ".join(launch.argv)
    pinned = words.index(f"--bind {work}/.git {work}/.git")
    assert words.index(f"--bind {work} {work}") < pinned < words.index(f"--ro-bind {work}/.git/config")
    # A path that the server can no longer mount is compared afterwards, except for the repository itself.
    for number in range(sandbox._MAX_MOUNTED):
        put(work / f"a{number:03}/.git/config")
        put(work / f"a{number:03}/.git/HEAD")
    made.prepare()
    protected = {os.path.relpath(path, work) for path in made.describe().protected}
    assert ".git/config" in protected
    assert sum(path.startswith("a") for path in protected) == sandbox._MAX_MOUNTED - 1
    assert "sub/.git/config" not in protected


def test_sockets_and_credentials_are_hidden(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_view, "_TMP", str(ground / "tmp"))
    sockets = [bind(ground / name) for name in ("work/s", "server/data/scratch/s", "other/s", "home/s")]
    monkeypatch.setattr(sandbox, "bound_sockets", lambda: iter(map(str, sockets)))
    put(ground / "home/.cargo/credentials")
    made = make(ground)
    launch, _ = made.confine(CommandLaunch(("run",), "/", {}))
    hidden = {os.path.relpath(launch.argv[place + 2], ground) for place, word in enumerate(launch.argv)
              if launch.argv[place : place + 2] == ("--ro-bind", os.devnull)}  # fmt: skip
    assert {"other/s", "home/.cargo/credentials"} <= hidden
    assert not {"work/s", "server/data/scratch/s"} & hidden
    (gap,) = [gap for gap in made.describe().gaps if "The socket" in gap]
    assert str(ground / "work/s") in gap
    monkeypatch.setattr(sandbox, "_MAX_SOCKETS", 0)
    launch, _ = made.confine(CommandLaunch(("run",), "/", {}))
    assert str(ground / "other/s") not in launch.argv


def test_gaps_of_machine_are_reported(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(word: str, **more: Any) -> bool:  # noqa: ANN401
        return any(word in gap for gap in make(ground, **more).describe().gaps)

    for version, network, expected in ((6, True, False), (5, True, True), (5, False, False)):
        monkeypatch.setattr(sandbox, "landlock_version", lambda version=version: version)
        assert named("Abstract unix sockets", network=network) is expected
        state = make(ground, network=network).describe()
        assert any("network is open" in note for note in state.notes) is network
        assert (state.network, state.mode, state.mechanism) == (network, "workspace", "bubblewrap")
    for can_filter in (True, False):
        monkeypatch.setattr(sandbox, "can_filter", lambda can_filter=can_filter: can_filter)
        assert named("keyrings") is not can_filter


@pytest.mark.parametrize(
    ("bubblewrap", "version", "namespaces", "why"),
    [
        ("/bin/true", 0, False, ""),
        (None, 3, True, ""),
        (None, 3, False, "Landlock alone"),
        (None, 2, True, "too old a Landlock"),
        (None, 0, True, "no Landlock"),
    ],
)
def test_unsupported_machines(
    monkeypatch: pytest.MonkeyPatch, bubblewrap: str | None, version: int, namespaces: bool, why: str
) -> None:
    monkeypatch.setattr(sandbox, "landlock_version", lambda: version)
    found = unavailable_reason(has_namespaces=namespaces, bubblewrap=bubblewrap)
    assert why in found if why else found == ""


def test_a_sandbox_that_cannot_be_prepared_is_refused(ground: Path) -> None:
    put(ground / "server/data/scratch")
    with pytest.raises(SandboxImpossible, match="cannot be prepared"):
        make(ground)


def test_path_replaced_during_build_does_not_raise(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(ground)

    def replaced(_: object) -> None:
        raise FileNotFoundError(2, "gone", "/work/x")

    monkeypatch.setattr(sandbox, "build_mounts", replaced)
    with pytest.raises(SandboxImpossible, match="/work/x was replaced"):
        made.confine(CommandLaunch(("run",), "/", {}))


def test_socket_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"/tmp/holdfast-{os.getuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert sandbox._runtime_directories() == ("/run/user/7", "/run/user", own)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert sandbox._runtime_directories() == ("/run/user", own)
