"""The sandbox with real commands in real directories, for every available mechanism."""

import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.settings import SandboxSettings
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.guard_client import Containment, Guard
from holdfast.workspace.sandbox.linked_git_dirs import decide_linked_git, find_linked_git
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxImpossible, SandboxPolicy, SandboxState, find_bubblewrap
from scratch import scratch_directory
from trials.hostile_commands import start_shape
from trials.sandbox_escapes import MECHANISMS, PARTS, Case, find_escapes, find_escapes_as_user, git
from workspace.commands import run_line


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace with a repository, and a directory beside it."""
    root = tmp_path / "repo/project"
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git/config").write_text("[core]\n")
    (root / "holdfast.toml").write_text("")
    (root / ".claude").mkdir()
    (tmp_path / "server").mkdir()
    (tmp_path / "server/token").write_text("secret")
    (tmp_path / "home").mkdir()
    # The repository above a workspace is readable.
    (tmp_path / "repo/.git").mkdir()
    (tmp_path / "repo/beside.txt").write_text("beside")
    return root


def policy_of(workspace: Path, beside: Path) -> SandboxPolicy:
    scratch = beside / "server/w1/scratch"
    hidden = (str(beside / "server"), str(beside / "home/.config/holdfast"))
    return SandboxPolicy(str(workspace), str(scratch), hidden=hidden, home_directory=str(beside / "home"))


SandboxRunner = Callable[..., AbstractAsyncContextManager[Processes]]


@pytest.fixture(params=MECHANISMS)
def run_sandboxed(request: pytest.FixtureRequest, place: Path) -> SandboxRunner:
    """Run commands in a sandbox of this mechanism."""

    @asynccontextmanager
    async def make(
        *,
        network: bool = True,
        containment: Containment = "auto",
        workspace: Path = place,
        home: tuple[str, ...] = (),
        readable: tuple[str, ...] = (),
    ) -> AsyncIterator[Processes]:
        guard = Guard(containment)
        await guard.ready()
        beside = place.parents[1]
        policy = policy_of(workspace, beside)
        policy = msgspec.structs.replace(policy, network=network, home=SandboxSettings(home, readable))
        bubblewrap = find_bubblewrap() if request.param == "bubblewrap" else None
        sandbox = Sandbox(policy, has_namespaces=guard.has_namespaces, bubblewrap=bubblewrap)
        try:
            yield Processes(guard, beside / "spills", sandbox=sandbox)
        finally:
            await guard.close()

    return make


async def test_the_workspace_can_be_written(run_sandboxed: SandboxRunner, place: Path) -> None:
    line = (
        "echo new > new.txt && mkdir -p a/b && echo deep > a/b/c && mv a d && rm d/b/c && pwd && echo ok > .git/index"
    )
    async with run_sandboxed() as processes:
        stdout, stderr, end = await run_line(processes, line, place)
    assert (stdout, stderr, end.code) == (f"{place}\n", "", 0)
    assert (place / "new.txt").read_text() == "new\n"
    assert (place / "d/b").is_dir()


@pytest.mark.parametrize("part", PARTS)
async def test_no_escape_attempt_succeeds(tmp_path: Path, part: str) -> None:
    """Every attempt of the list, as the user that runs the tests. `scripts/long` tries all other combinations."""
    assert await find_escapes(tmp_path, Case(MECHANISMS[-1]), [part]) == []


def test_no_escape_attempt_succeeds_from_linked_work_tree() -> None:
    """As an ordinary user if the tests run as root; the directory must then be accessible to that user."""
    with scratch_directory() as folder:
        assert find_escapes_as_user(folder, Case(MECHANISMS[0], network=False, place="linked")) == []


async def test_sandbox_without_process_namespace(run_sandboxed: SandboxRunner, place: Path) -> None:
    async with run_sandboxed(containment="tree") as processes:
        stdout, _, end = await run_line(processes, "echo in > in; cat in; echo x > .git/hooks/x", place)
        await (await start_shape(processes, "respawner")).stop(0.05)
    assert (stdout, end.code) == ("in\n", 1)


async def test_other_files_are_readable_except_hidden_ones(run_sandboxed: SandboxRunner, place: Path) -> None:
    async with run_sandboxed() as processes:
        stdout, _, end = await run_line(processes, "cat ../beside.txt; cat ../../server/token", place)
    assert stdout == "beside"
    assert end.code != 0


async def test_tmp_and_the_home_directory_are_private(run_sandboxed: SandboxRunner, place: Path) -> None:
    """Both are writable; temporary files are kept for the next command."""
    home = place.parents[1] / "home"
    async with run_sandboxed() as processes:
        first = f"echo t > /tmp/t && echo $TMPDIR && echo h > {home}/h && cat {home}/h && echo x > ../../server/y"
        stdout, stderr, end = await run_line(processes, first, place)
        assert (stdout, end.code) == ("/tmp\nh\n", 1)
        assert "No such file" in stderr
        assert (await run_line(processes, f"cat /tmp/t; ls {home}", place))[0] == "t\n"
    assert (place.parents[1] / "server/w1/scratch/t").read_text() == "t\n"
    assert not (home / "h").exists()
    assert not (place.parents[1] / "server/y").exists()


async def test_network_can_be_disabled(run_sandboxed: SandboxRunner, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo connected"
        async with run_sandboxed() as processes:
            assert (await run_line(processes, line, place))[0] == "connected\n"
        async with run_sandboxed(network=False) as processes:
            stdout, _, end = await run_line(processes, line, place)
            assert (stdout, end.code != 0) == ("", True)


async def test_a_sandboxed_tree_is_gone_after_a_cancel(run_sandboxed: SandboxRunner, place: Path) -> None:
    async with run_sandboxed() as processes:
        for shape in ("respawner", "deaf to all", "user of a PTY"):
            await (await start_shape(processes, shape)).stop(0.05)


async def test_active_restrictions_are_reported(run_sandboxed: SandboxRunner, place: Path) -> None:
    async with run_sandboxed(network=False) as processes:
        assert isinstance(processes.sandbox, Sandbox)
        state = processes.sandbox.describe()
    assert state.mode == "workspace"
    assert state.mechanism in MECHANISMS
    assert not state.network
    assert str(place) in state.writable
    assert str(place / ".git/hooks") in state.protected
    assert SandboxState().mode == "off"


@pytest.mark.parametrize(("version", "why"), [(0, "no Landlock"), (2, "too old a Landlock"), (3, "Landlock alone")])
def test_unenforceable_policy_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch, version: int, why: str) -> None:
    monkeypatch.setattr("holdfast.workspace.sandbox.sandbox.landlock_version", lambda: version)
    policy = SandboxPolicy(str(place), str(place.parents[1] / "scratch"))
    with pytest.raises(SandboxImpossible, match=rf"{why}.*Install it"):
        Sandbox(policy, has_namespaces=False)


@pytest.mark.parametrize("name", [".", "..", "../..", ".ssh", ".ssh/x", "../server", "../server/w1", ".config"])
def test_workspace_in_private_directory_is_refused(place: Path, name: str) -> None:
    home = place.parents[1] / "home"
    path = (home / name).resolve()
    path.mkdir(parents=True, exist_ok=True)
    policy = policy_of(path, place.parents[1])
    with pytest.raises(SandboxImpossible, match=r"cannot confine commands to .*Open a project directory"):
        Sandbox(policy, has_namespaces=True, bubblewrap=find_bubblewrap())


@pytest.mark.parametrize("path", ["/", "/home", "/tmp", "/usr", "/etc", "/run"])
def test_a_system_directory_is_refused(place: Path, path: str) -> None:
    with pytest.raises(SandboxImpossible, match="system or home directory"):
        Sandbox(policy_of(Path(path), place.parents[1]), has_namespaces=True, bubblewrap=find_bubblewrap())


def test_gaps_of_a_kernel_are_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(place, place.parents[1])
    sandbox = Sandbox(policy, has_namespaces=True, bubblewrap="/bin/true")
    assert sandbox.describe().gaps == ()
    assert "TCP" in " ".join(sandbox.describe().notes)
    monkeypatch.setattr("holdfast.workspace.sandbox.sandbox.landlock_version", lambda: 5)
    monkeypatch.setattr("holdfast.workspace.sandbox.sandbox.can_filter", lambda: False)
    gaps = " ".join(sandbox.describe().gaps)
    assert "Abstract unix sockets" in gaps
    assert "keyrings" in gaps
    closed = Sandbox(msgspec.structs.replace(policy, network=False), has_namespaces=True, bubblewrap="/bin/true")
    assert "Abstract" not in " ".join(closed.describe().gaps)


async def test_exceptions_of_the_home_directory(run_sandboxed: SandboxRunner, place: Path) -> None:
    """Toolchains without their credentials, a name for git, and the configured caches."""
    home = place.parents[1] / "home"
    for name in (".cargo/bin", ".cache/pip", ".ssh", ".bun", "caches"):
        (home / name).mkdir(parents=True)
    (home / ".cargo/bin/tool").write_text("#!/bin/sh\necho tool\n")
    (home / ".cargo/bin/tool").chmod(0o755)
    (home / ".cargo/credentials").write_text("SECRET")
    (home / ".ssh/id").write_text("SECRET")
    (home / ".gitconfig").write_text("[user]\nname = Ann\n[alias]\nx = y\n")
    (home / "link").symlink_to(".ssh")
    async with run_sandboxed(
        home=(".cache/pip", "~/caches", ".ssh", ".ssh/id", "link", "..", "."), readable=(".bun",)
    ) as processes:
        line = (
            f"{home}/.cargo/bin/tool; git config user.name; git config alias.x; echo c > {home}/.cache/pip/c;"
            f"cat {home}/.cargo/credentials {home}/.ssh/id {home}/link/id; echo x > {home}/.cargo/bin/x; ls {home}/.bun"
        )
        stdout, _, _ = await run_line(processes, line, place, {"HOME": str(home)})
        assert isinstance(processes.sandbox, Sandbox)
        state = processes.sandbox.describe()
    assert stdout == "tool\nAnn\n"
    assert (home / ".cache/pip/c").read_text() == "c\n"
    assert not (home / ".cargo/bin/x").exists()
    assert {str(home / ".cache/pip"), str(home / "caches")} < set(state.writable)
    refused = {note for note in state.notes if "is never opened" in note}
    assert {note.split()[1] for note in refused} == {".ssh", ".ssh/id", "link", "..", "."}


# Repositories


def test_hooks_are_protected_before_they_exist(place: Path) -> None:
    (place / ".git/hooks").rmdir()
    sandbox = Sandbox(policy_of(place, place.parents[1]), has_namespaces=True, bubblewrap="/bin/true")
    assert str(place / ".git/hooks") in sandbox.describe().protected


@pytest.fixture
def linked(place: Path) -> Path:
    """A linked work tree, with a submodule."""
    main, other = place.parents[1] / "home/main", place.parents[1] / "other"
    for folder in (main, other):
        folder.mkdir(parents=True)
        git("init", cwd=folder)
        git("commit", "--allow-empty", "-m", "first", cwd=folder)
    git("submodule", "add", str(other), "mod", cwd=main)
    git("commit", "-m", "mod", cwd=main)
    git("worktree", "add", str(place.parents[1] / "linked"), cwd=main)
    return place.parents[1] / "linked"


async def test_a_linked_work_tree_can_add_and_commit(run_sandboxed: SandboxRunner, linked: Path) -> None:
    """Its own git directory and the objects, references and logs of the shared one are writable, nothing else."""
    common = linked.parent / "home/main/.git"
    own = common / "worktrees/linked"
    name = "-c user.name=T -c user.email=t@example.com"
    lines = [f"echo x > a && git add a && git {name} commit -qm second && git log --format=%s -1"]
    lines += [f"echo x > {own}/{name}" for name in ("config.worktree", "commondir", "gitdir", "hooks")]
    lines += [f"echo x >> {common}/{name}" for name in ("config", "hooks/x", "HEAD", "index", "packed-refs", "new")]
    lines += [f"git config core.fsmonitor ./x; mv {own}/commondir {own}/c; rm -f {own}/gitdir; rm -rf {common}/hooks"]
    before = {
        path: path.read_bytes() for path in (common / "config", common / "HEAD", own / "commondir", own / "gitdir")
    }
    async with run_sandboxed(workspace=linked) as processes:
        stdout, stderr, _ = await run_line(processes, "\n".join(lines), linked)
    assert stdout == "second\n", stderr
    assert {path: path.read_bytes() for path in before} == before
    assert not [name for name in ("new", "packed-refs", "hooks/x") if (common / name).exists()]
    assert not (own / "config.worktree").exists()
    assert (common / "hooks").is_dir()


def test_only_the_git_directory_of_the_work_tree_itself_is_opened(linked: Path) -> None:
    common = linked.parent / "home/main/.git"
    own = common / "worktrees/linked"
    assert find_linked_git(str(linked)) is not None
    mod = linked.parent / "home/main/mod"
    found = find_linked_git(str(mod))
    assert found is not None
    assert found.writable == (str(common / "modules/mod"),)
    fake = linked.parent / "fake"
    shutil.copytree(own, fake / "worktrees/linked")
    forms = {
        "anything": str(linked.parent),
        "the shared directory": str(common),
        "a copy at another place": str(fake / "worktrees/linked"),
        "a submodule of another": str(common / "modules/mod"),
        "nothing": str(linked.parent / "nothing"),
        "the root": "/",
        "the work tree": str(linked),
    }
    for form, target in forms.items():
        (linked / ".git").write_text(f"gitdir: {target}\n")
        assert find_linked_git(str(linked)) is None, form
    for text in (f"gitdir: {own} \n", f"gitdir:{own}\n", f"GITDIR: {own}\n", f"gitdir: {own}\n\n", ""):
        (linked / ".git").write_text(text)
        assert find_linked_git(str(linked)) is None, text
    (linked / ".git").write_text(f"gitdir: {own}\n")
    (own / "gitdir").write_text(f"{mod}/.git\n")
    assert find_linked_git(str(linked)) is None


def test_a_git_directory_is_opened_only_if_it_was_the_work_trees_own_before(linked: Path, tmp_path: Path) -> None:
    """Also for the next server: the decision is stored."""
    record = tmp_path / "record.json"
    file = (linked / ".git").read_text()
    (linked / ".git").unlink()
    assert decide_linked_git(str(linked), record, lambda _: True) is None
    (linked / ".git").write_text(file)
    assert decide_linked_git(str(linked), record, lambda _: True) is None
    record.unlink()
    assert decide_linked_git(str(linked), record, lambda _: False) is None
    record.unlink()
    found = decide_linked_git(str(linked), record, lambda _: True)
    assert found is not None
    (linked / ".git").write_text(f"gitdir: {tmp_path}\n")
    assert decide_linked_git(str(linked), record, lambda _: True) is None
    (linked / ".git").write_text(file)
    assert decide_linked_git(str(linked), record, lambda _: True) == found
