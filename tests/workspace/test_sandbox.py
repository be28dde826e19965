"""The sandbox, with real commands in real directories: by every mechanism this machine has."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from holdfast.testing.hostile import start_shape
from holdfast.workspace.guard import Containment, Guard
from holdfast.workspace.process import Processes
from holdfast.workspace.sandbox import (
    Sandbox,
    SandboxImpossible,
    SandboxPolicy,
    SandboxState,
    find_bubblewrap,
)
from holdfast.workspace.sandbox_landlock import landlock_version
from holdfast.workspace.ward import protected_in
from workspace.commands import guarded, run_line

MECHANISMS = ["bubblewrap"] * (find_bubblewrap() is not None) + ["landlock"] * (landlock_version() >= 3)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace with a repository, and something beside it."""
    root = tmp_path / "project"
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git/config").write_text("[core]\n")
    (root / "holdfast.toml").write_text("")
    (root / ".claude").mkdir()
    (tmp_path / "server").mkdir()
    (tmp_path / "server/token").write_text("secret")
    (tmp_path / "beside.txt").write_text("beside")
    return root


Shut = Callable[..., AbstractAsyncContextManager[Processes]]


@pytest.fixture(params=MECHANISMS)
def shut_in(request: pytest.FixtureRequest, place: Path) -> Shut:
    """Commands in a sandbox of this mechanism."""

    @asynccontextmanager
    async def make(*, network: bool = True, containment: Containment = "auto") -> AsyncIterator[Processes]:
        guard = Guard(containment)
        await guard.ready()
        beside = place.parent
        policy = SandboxPolicy(str(place), str(beside / "server/w1/scratch"), network, hidden=(str(beside / "server"),))
        bubblewrap = find_bubblewrap() if request.param == "bubblewrap" else None
        sandbox = Sandbox(policy, has_namespaces=guard.has_namespaces, bubblewrap=bubblewrap)
        try:
            yield Processes(guard, beside / "spills", sandbox=sandbox)
        finally:
            await guard.close()

    return make


async def test_the_workspace_can_be_written(shut_in: Shut, place: Path) -> None:
    line = (
        "echo new > new.txt && mkdir -p a/b && echo deep > a/b/c && mv a d && rm d/b/c && pwd && echo ok > .git/index"
    )
    async with shut_in() as processes:
        stdout, stderr, end = await run_line(processes, line, place)
    assert (stdout, stderr, end.code) == (f"{place}\n", "", 0)
    assert (place / "new.txt").read_text() == "new\n"
    assert (place / "d/b").is_dir()


def traces() -> list[str]:
    return [path for path in ("/var/tmp/holdfast-was-here", f"{Path.home()}/holdfast-was-here") if os.path.exists(path)]


@pytest.mark.parametrize(
    "line",
    [
        "echo x > ../beside.txt",
        "echo x > ../new.txt",
        "rm ../beside.txt",
        "mv ../beside.txt here.txt",
        "ln -s ../beside.txt link && echo x > link",
        "echo x > /var/tmp/holdfast-was-here",
        "echo x > ~/holdfast-was-here",
        "echo x > .git/hooks/pre-commit",
        "rm -r .git/hooks",
        "echo x >> .git/config",
        "echo x > c && mv c .git/config",
        "echo x > holdfast.toml",
        "mv .git g && cp -r g .git && echo x > .git/hooks/pre-commit",
        "mv holdfast.toml h && echo x > holdfast.toml",
        "echo x > .claude/settings.json",
        "mv .claude c && mkdir .claude && echo x > .claude/settings.json",
        "mount -o remount,rw / && echo x > /var/tmp/holdfast-was-here",
        "umount .git/hooks && echo x > .git/hooks/pre-commit",
        "now=$(cat /proc/sys/kernel/core_pattern) && echo $now > /proc/sys/kernel/core_pattern",
        "unshare -m true && echo x > .git/hooks/pre-commit",
        "nsenter -t 1 -m true && echo x > .git/hooks/pre-commit",
    ],
)
async def test_what_is_outside_or_protected_cannot_be_changed(shut_in: Shut, place: Path, line: str) -> None:
    before = sorted(os.walk(place / ".git"))
    async with shut_in() as processes:
        _, stderr, end = await run_line(processes, f"export HOME={Path.home()}; {line}", place)
    assert end.code != 0
    assert stderr
    assert sorted(os.walk(place / ".git")) == before
    assert (place / ".git/config").read_text() == "[core]\n"
    assert (place / "holdfast.toml").read_text() == ""
    assert (place.parent / "beside.txt").read_text() == "beside"
    assert not (place.parent / "new.txt").exists()
    assert traces() == []


async def test_it_is_the_same_where_commands_are_no_namespaces(shut_in: Shut, place: Path) -> None:
    async with shut_in(containment="tree") as processes:
        stdout, _, end = await run_line(processes, "echo in > in; cat in; echo x > .git/hooks/x", place)
        await (await start_shape(processes, "respawner")).stop(0.05)
    assert (stdout, end.code) == ("in\n", 1)


async def test_the_rest_can_be_read_but_not_what_is_hidden(shut_in: Shut, place: Path) -> None:
    async with shut_in() as processes:
        stdout, _, end = await run_line(processes, "cat ../beside.txt; cat ../server/token", place)
    assert stdout == "beside"
    assert end.code != 0


async def test_there_is_a_place_for_temporary_files(shut_in: Shut, place: Path) -> None:
    """It lies in what is hidden, and is all that can be seen of it."""
    async with shut_in() as processes:
        line = "echo t > $(mktemp) && echo x > /dev/null && ls ../server && echo x > ../server/y"
        stdout, stderr, end = await run_line(processes, line, place)
    assert (stdout, end.code) == ("w1\n", 1)
    assert "Read-only" in stderr or "denied" in stderr
    [made] = (place.parent / "server/w1/scratch").iterdir()
    assert made.read_text() == "t\n"
    assert not (place.parent / "server/y").exists()


@pytest.mark.skipif(find_bubblewrap() is None, reason="bubblewrap is not installed")
async def test_bubblewrap_has_a_tmp_of_its_own(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        policy = SandboxPolicy(root, str(place.parent / "scratch"))
        sandbox = Sandbox(policy, has_namespaces=False, bubblewrap=find_bubblewrap())
        async with guarded(place.parent / "spills", sandbox=sandbox) as processes:
            line = f"echo mine > /tmp/mine && echo $TMPDIR && echo here > {root}/here && echo x > {place}/x"
            stdout, _, end = await run_line(processes, line, root)
        assert (stdout, end.code) == ("/tmp\n", 1)
        assert os.listdir(root) == ["here"]
    assert (place.parent / "scratch/mine").read_text() == "mine\n"
    assert not (place / "x").exists()


async def test_the_network_can_be_taken_away(shut_in: Shut, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected"
        async with shut_in() as processes:
            assert (await run_line(processes, line, place))[0] == "connected\n"
        async with shut_in(network=False) as processes:
            stdout, _, end = await run_line(processes, line, place)
            assert (stdout, end.code != 0) == ("", True)


async def test_a_sandboxed_tree_is_gone_after_a_cancel(shut_in: Shut, place: Path) -> None:
    async with shut_in() as processes:
        for shape in ("respawner", "deaf to all", "user of a PTY"):
            await (await start_shape(processes, shape)).stop(0.05)


async def test_it_says_what_is_in_force(shut_in: Shut, place: Path) -> None:
    async with shut_in(network=False) as processes:
        assert isinstance(processes.sandbox, Sandbox)
        state = processes.sandbox.describe()
    assert state.mode == "workspace"
    assert state.mechanism in MECHANISMS
    assert not state.network
    assert str(place) in state.writable
    assert str(place / ".git/hooks") in state.protected
    assert SandboxState().mode == "off"


async def test_servers_that_start_programs_for_whoever_asks_cannot_be_reached(
    shut_in: Shut, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own among them, wherever it listens: it could be asked to switch the sandbox off."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short, contextlib.ExitStack() as stack:
        runtime = Path(short, "runtime")
        (runtime / "bus").mkdir(parents=True)
        (place.parent / "server/run").mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        paths = [runtime / "bus/socket", Path(short, "door"), Path(short, "open")]
        monkeypatch.setattr("holdfast.workspace.sandbox._DOORS", (str(paths[1]), "/nothing/there"))
        for path in paths:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(path))
            server.listen()
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        async with shut_in() as processes:
            for path in paths:
                line = f"{sys.executable} -c '{code}' {path} && echo in"
                stdout, stderr, end = await run_line(processes, line, place)
                assert (stdout, end.code) == (("in\n", 0) if path.name == "open" else ("", 1)), (path, stderr)


@pytest.mark.parametrize(("version", "why"), [(0, "no Landlock"), (2, "too old a Landlock"), (3, "Landlock alone")])
def test_what_cannot_be_kept_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch, version: int, why: str) -> None:
    monkeypatch.setattr("holdfast.workspace.sandbox.landlock_version", lambda: version)
    policy = SandboxPolicy(str(place), str(place.parent / "scratch"))
    with pytest.raises(SandboxImpossible, match=rf"{why}.*Install it"):
        Sandbox(policy, has_namespaces=False)


# Repositories


def git(*arguments: str, cwd: Path) -> None:
    name = ("-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *name, *arguments], cwd=cwd, check=True, capture_output=True)


def test_hooks_are_protected_before_there_are_any(place: Path) -> None:
    (place / ".git/hooks").rmdir()
    assert str(place / ".git/hooks") in protected_in(str(place))


async def test_a_linked_worktree_can_commit_but_not_change_hooks(shut_in: Shut, place: Path) -> None:
    main, linked = place.parent / "main", place.parent / "linked"
    main.mkdir()
    git("init", cwd=main)
    git("commit", "--allow-empty", "-m", "first", cwd=main)
    git("worktree", "add", str(linked), cwd=main)
    assert str(main / ".git/hooks") in protected_in(str(linked))
    policy = SandboxPolicy(str(linked), str(place.parent / "scratch"))
    line = (
        "git -c user.name=T -c user.email=t@example.com commit -q --allow-empty -m second && git log --format=%s;"
        f"echo x > {main}/.git/hooks/pre-commit"
    )
    async with shut_in() as processes:
        kind = processes.sandbox
        assert isinstance(kind, Sandbox)
        bubblewrap = find_bubblewrap() if kind.mechanism == "bubblewrap" else None
        processes.sandbox = Sandbox(policy, has_namespaces=processes.guard.has_namespaces, bubblewrap=bubblewrap)
        stdout, stderr, end = await run_line(processes, line, linked)
    assert stdout == "second\nfirst\n", stderr
    assert end.code != 0
    assert not (main / ".git/hooks/pre-commit").exists()
