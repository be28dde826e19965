"""Files created by sandboxed commands that would have effects outside: real commands, every available mechanism."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.config.locations import PROJECT_FILES
from holdfast.domain.processes import PROTECTED
from holdfast.extensions import search_paths
from holdfast.workspace.files.path_strings import as_one_line
from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.process.shell_launch import Shell
from holdfast.workspace.sandbox.git_dir_search import GitScanner
from holdfast.workspace.sandbox.quarantine import SandboxCleanup
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxPolicy, find_bubblewrap
from trials.sandbox_escapes import MECHANISMS, git


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty workspace."""
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def run_in_sandbox(line: str, place: Path, mechanism: str, sandbox: Sandbox | None = None) -> tuple[str, str]:
    """Run a line in the sandbox. Returns its output and the remark of the sandbox."""
    guard = Guard()
    await guard.ready()
    try:
        processes = Processes(guard, place.parent / "spills", sandbox=sandbox or sandbox_of(place, mechanism, guard))
        launch = Shell(processes).launch(line, str(place), {"HOME": str(place.parent), "PATH": os.environ["PATH"]})
        running, _ = await processes.run(launch)
        return running.stdout.excerpt() + running.stderr.excerpt(), running.remark
    finally:
        await guard.close()


def sandbox_of(place: Path, mechanism: str, guard: Guard) -> Sandbox:
    server = place.parent / "server"
    policy = SandboxPolicy(str(place), str(server / "scratch"), hidden=(str(server),))
    bubblewrap = find_bubblewrap() if mechanism == "bubblewrap" else None
    return Sandbox(policy, has_namespaces=guard.has_namespaces, bubblewrap=bubblewrap)


def quarantined(place: Path) -> list[str]:
    folder = place.parent / "server/scratch-kept"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_list_covers_all_effective_files() -> None:
    names = [name for name, _ in PROJECT_FILES]
    names += [
        *search_paths._PROJECT_SKILLS,
        *(name for name, _ in (*search_paths._PROJECT_COMMANDS, *search_paths._PROJECT_AGENTS)),
    ]
    names += [".claude/settings.json", ".mcp.json"]
    assert [name for name in names if name.split("/")[0] not in PROTECTED] == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("echo x > holdfast.toml", "holdfast.toml"),
        ("echo x > t; mv t .mcp.json", ".mcp.json"),
        ("mkdir -p .claude && echo x > .claude/settings.json", ".claude"),
        ("mkdir e && ln -s e .agents", ".agents"),
        ("mkdir -p .git/hooks && echo x > .git/hooks/pre-commit", ".git"),
        ("mkdir .git && mkdir e && ln -s ../e .git/hooks", ".git"),
        ("mkdir .git && echo x > .git/hooks", ".git"),
        ("git init -q . && git config core.fsmonitor ./evil", ".git"),
        ("git init -q . && git config alias.st '!./evil'", ".git"),
        ("git init -q . && git config include.path ../evil", ".git"),
        ("git init -q . && git config core.worktree /", ".git"),
        ("git init -q . && git config submodule.x.update '!./evil'", ".git"),
        ("git init -q . && git config remote.x.url 'ext::sh -c ./evil'", ".git"),
        ("git init -q . && mv .git/config c && ln -s ../c .git/config", ".git"),
        ("git init -q . && echo ../e > .git/commondir", ".git"),
        ("git init -q . && mkdir -p .git/modules/m && touch .git/modules/m/{HEAD,commondir}", ".git/modules/m"),
        ("git init -q e && echo 'gitdir: /' > .git", ".git"),
        ("git init -q e && ln -s e/.git .git", ".git"),
        ("git init -q --bare . && git config core.fsmonitor ./evil", "HEAD"),
        ("mkdir 'a\nb' && git init -q 'a\nb' && git -C 'a\nb' config core.fsmonitor ./evil", "a\nb/.git"),
        ("git init -q . && mkdir .git/rebase-merge && echo 'exec ./evil' > .git/rebase-merge/git-rebase-todo", ".git"),
        ("mkdir x && touch x/HEAD && echo / > x/commondir", "x"),
    ],
)
async def test_created_files_are_moved_and_reported(place: Path, mechanism: str, line: str, name: str) -> None:
    output, remark = await run_in_sandbox(line, place, mechanism)
    assert output == ""
    assert Path(name).name not in os.listdir((place / name).parent)
    assert quarantined(place) == [f"1-{Path(name).name}"]
    assert f"{as_one_line(name)} (now {place.parent}/server/scratch-kept/1-{Path(name).name})" in remark


async def test_file_cannot_become_head_of_repository(place: Path, mechanism: str) -> None:
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    output, remark = await run_in_sandbox("echo x > a", place, mechanism)
    assert (output, remark) == ("", "")
    _, remark = await run_in_sandbox(
        "mkdir objects refs && printf '[core]\\nfsmonitor=./evil' > config", place, mechanism
    )
    assert "HEAD (now" in remark
    assert not (place / "HEAD").exists()


async def test_other_files_stay(place: Path, mechanism: str) -> None:
    output, remark = await run_in_sandbox(
        "echo a > a && mkdir -p deep/.claude && echo x > deep/holdfast.toml", place, mechanism
    )
    assert (output, remark, quarantined(place)) == ("", "", [])
    assert (place / "deep/.claude").is_dir()


async def test_created_repository_is_usable_and_protected(place: Path, mechanism: str) -> None:
    name = "-c user.name=T -c user.email=t@example.com"
    line = f"git init -q . && touch a && git add a && git {name} commit -qm one && git log --format=%s"
    assert await run_in_sandbox(line, place, mechanism) == ("one\n", "")
    assert (place / ".git/hooks").is_dir()
    output, _ = await run_in_sandbox(
        "echo x > .git/hooks/pre-commit; git config core.fsmonitor ./evil; ls .git/hooks", place, mechanism
    )
    assert "pre-commit\n" not in output.replace("pre-commit.sample", "")
    assert "evil" not in (place / ".git/config").read_text()
    _, remark = await run_in_sandbox("echo ../e > .git/commondir", place, mechanism)
    assert ".git/commondir (now" in remark, remark
    assert not (place / ".git/commondir").exists()


async def test_nested_repositories_can_be_created_and_removed(place: Path, mechanism: str) -> None:
    git("init", cwd=place)
    commit = "git -c user.name=T -c user.email=t@example.com commit -q --allow-empty -m x"
    line = (
        f"git init -q sub && git -C sub config user.name X && (cd sub && {commit}) && git clone -q sub copy &&"
        " git -C sub worktree add -q ../tree 2>/dev/null && git clone -q --bare sub bare.git && ls"
    )
    guard = Guard()
    await guard.ready()
    try:
        sandbox = sandbox_of(place, mechanism, guard)
        assert await run_in_sandbox(line, place, mechanism, sandbox) == ("bare.git\ncopy\nsub\ntree\n", "")
        output, remark = await run_in_sandbox(
            "git -C copy config alias.x '!y'; rm -rf sub tree; ls", place, mechanism, sandbox
        )
        assert output == "bare.git\ncopy\n"
        assert "copy/.git/config (now" in remark
        assert "alias" not in (place / "copy/.git/config").read_text()
        # The next server knows the files created by commands: they can still be removed.
        assert (await run_in_sandbox("rm -rf copy; ls", place, mechanism))[0] == "bare.git\n"
    finally:
        await guard.close()


async def test_symlink_is_restored(place: Path, mechanism: str) -> None:
    (place.parent / "settings.json").write_text("{}")
    os.symlink("../settings.json", place / ".crush.json")
    _, remark = await run_in_sandbox("rm .crush.json && echo x > .crush.json", place, mechanism)
    assert ".crush.json (now" in remark
    assert os.readlink(place / ".crush.json") == "../settings.json"
    assert (place / ".crush.json").read_text() == "{}"


async def test_submodules_and_the_file_of_a_worktree_are_protected(place: Path, mechanism: str) -> None:
    other, main = place.parent / "other", place.parent / "main"
    for folder in (other, main):
        folder.mkdir()
        git("init", cwd=folder)
        git("commit", "--allow-empty", "-m", "first", cwd=folder)
    git("-c", "protocol.file.allow=always", "submodule", "add", str(other), "mod", cwd=main)
    before = (main / ".git/modules/mod/config").read_bytes()
    output, _ = await run_in_sandbox(
        "git -C mod config core.fsmonitor ./evil; echo x > .git/modules/mod/hooks/x", main, mechanism
    )
    assert output.count("Read-only") + output.count("busy") + output.count("denied") >= 2, output
    assert (main / ".git/modules/mod/config").read_bytes() == before
    git("worktree", "add", str(place / "linked"), cwd=main)
    output, _ = await run_in_sandbox("echo 'gitdir: ../e' > .git", place / "linked", mechanism)
    assert (place / "linked/.git").read_text().startswith(f"gitdir: {main}")


async def test_r9_files_created_before_kill_are_found_by_next_server(place: Path, mechanism: str) -> None:
    """R9: the next server checks the files of a command whose end was not observed."""
    guard = Guard()
    await guard.ready()
    try:
        (place / os.fsdecode(b"\xff")).mkdir()
        git("init", cwd=place / os.fsdecode(b"\xff"))
        sandbox_of(place, mechanism, guard).watch()
        (place / ".mcp.json").write_text("x")
        later = sandbox_of(place, mechanism, guard)
        assert ".mcp.json (now" in later.watch()()
    finally:
        await guard.close()
    assert quarantined(place) == ["1-.mcp.json"]
    assert not (place / ".mcp.json").exists()


async def test_files_of_job_are_moved_at_end_of_next_command(place: Path, mechanism: str) -> None:
    guard = Guard()
    await guard.ready()
    try:
        sandbox = sandbox_of(place, mechanism, guard)
        job, command = sandbox.watch(), sandbox.watch()
        (place / ".mcp.json").write_text("x")
        later = sandbox.watch()
        assert command()
        assert quarantined(place) == ["1-.mcp.json"]
        assert (job(), later()) == ("", "")
    finally:
        await guard.close()


# Submodules


COMMIT = "git -c user.name=T -c user.email=t@example.com commit -q --allow-empty -m x"


@pytest.fixture
def repository(place: Path) -> Path:
    git("init", cwd=place)
    git("commit", "--allow-empty", "-m", "first", cwd=place)
    return place


async def test_submodule_configuration_names_no_program(repository: Path, mechanism: str) -> None:
    """`git status` at the top also runs in every submodule, with its settings."""
    make = f"git init -q sub && (cd sub && {COMMIT} && git config core.fsmonitor ./evil) && git add sub 2>/dev/null"
    output, remark = await run_in_sandbox(make, repository, mechanism)
    assert (output, quarantined(repository)) == ("", ["1-.git"])
    assert "sub/.git (now" in remark
    git("status", cwd=repository)


async def test_a_submodule_can_be_added_and_used(repository: Path, mechanism: str) -> None:
    other = repository / "other"
    other.mkdir()
    git("init", cwd=other)
    git("commit", "--allow-empty", "-m", "first", cwd=other)
    add = "git -c protocol.file.allow=always submodule --quiet add ./other mod"
    output, remark = await run_in_sandbox(
        f"git config --file .git/config x.y z 2>/dev/null; {add}", repository, mechanism
    )
    assert remark == ""
    assert (repository / ".git/modules/mod/config").exists(), output
    _, remark = await run_in_sandbox(
        "git -C mod config core.fsmonitor ./evil; git -C mod status -s", repository, mechanism
    )
    assert (remark, quarantined(repository)) == ("", [])
    assert "evil" not in (repository / ".git/modules/mod/config").read_text()


async def test_repository_elsewhere_is_unchanged(repository: Path, mechanism: str) -> None:
    """Only the file or symlink that leads to it is moved."""
    other = repository.parent / "other"
    other.mkdir()
    git("init", cwd=other)
    git("config", "alias.x", "!y", cwd=other)
    make = (
        f"mkdir sub l && echo 'gitdir: {other}/.git' > sub/.git; ln -s {other}/.git l/.git; ln -s {other} .git/modules"
    )
    output, remark = await run_in_sandbox(make, repository, mechanism)
    assert output == ""
    assert sorted(name.split()[0] for name in remark.partition("obey it: ")[2].split("), ")) == ["l/.git", "sub/.git"]
    assert "alias" in (other / ".git/config").read_text()
    assert len(quarantined(repository)) == 2


async def test_a_repository_of_the_user_keeps_its_settings(repository: Path, mechanism: str) -> None:
    """Whatever they are: they existed before the command, which cannot change them."""
    own = repository / "own"
    own.mkdir()
    git("init", cwd=own)
    git("config", "alias.x", "!y", cwd=own)
    (own / ".git/hooks/pre-commit").write_text("x")
    line = "git -C own config alias.z w; echo z > own/.git/hooks/pre-commit; mv own moved && echo x > moved/a"
    _, remark = await run_in_sandbox(line, repository, mechanism)
    assert (remark, quarantined(repository)) == ("", [])
    assert "alias" in (repository / "moved/.git/config").read_text()
    assert "z" not in (repository / "moved/.git/hooks/pre-commit").read_text()
    assert (repository / "moved/a").exists()


async def test_hooks_in_the_workspace_are_protected(repository: Path, mechanism: str) -> None:
    """Also before they exist, and for every repository that names them."""
    git("config", "core.hooksPath", "tools/hooks", cwd=repository)
    _, remark = await run_in_sandbox("mkdir -p tools/hooks && echo x > tools/hooks/pre-commit", repository, mechanism)
    assert "tools/hooks (now" in remark
    (repository / "tools/hooks").mkdir()
    output, remark = await run_in_sandbox("echo x > tools/hooks/pre-commit; rm -rf tools", repository, mechanism)
    assert output.count("Read-only") + output.count("busy") >= 2, output
    assert remark == ""
    assert not list((repository / "tools/hooks").iterdir())


async def test_steps_of_a_rebase_that_run_programs_are_moved(repository: Path, mechanism: str) -> None:
    todo = ".git/rebase-merge/git-rebase-todo"
    make = f"mkdir .git/rebase-merge && echo 'pick 1 x' > {todo}"
    assert await run_in_sandbox(make, repository, mechanism) == ("", "")
    _, remark = await run_in_sandbox(f"echo 'x ./evil' >> {todo}", repository, mechanism)
    assert f"{todo} (now" in remark
    assert (repository / todo).read_text() == "pick 1 x\n"


async def test_concurrent_changes_of_user(repository: Path, mechanism: str) -> None:
    """Hooks are in a directory that is read-only for commands, so a new one belongs to the user.

    A file is different: git replaces it, the kernel removes the mount from the new one, and a running command could
    have written it.
    """
    guard = Guard()
    await guard.ready()
    try:
        sandbox = sandbox_of(repository, mechanism, guard)
        before = (repository / ".git/config").read_text()
        sandbox.confine(CommandLaunch(("true",), str(repository), {}))
        over = sandbox.watch()
        git("config", "branch.main.remote", "origin", cwd=repository)
        (repository / ".git/hooks/pre-commit").write_text("x")
        assert over() == ""
        over = sandbox.watch()
        git("config", "alias.x", "!y", cwd=repository)
        assert ".git/config (now" in over()
    finally:
        await guard.close()
    assert (repository / ".git/hooks/pre-commit").exists()
    assert (repository / ".git/config").read_text().startswith(before)
    assert "alias" not in (repository / ".git/config").read_text()
    assert "alias" in (repository.parent / "server/scratch-kept/1-config").read_text()


async def test_a_file_with_a_second_name_is_compared(repository: Path, mechanism: str) -> None:
    """A write to the other name bypasses the mount."""
    os.link(repository / ".git/config", repository / "k")
    _, remark = await run_in_sandbox("printf '[core]\\nfsmonitor = ./evil\\n' >> k", repository, mechanism)
    assert ".git/config (now" in remark
    assert "evil" not in (repository / ".git/config").read_text()


async def test_move_across_file_systems_with_special_files(
    repository: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To another file system, with special files and files without permissions in it."""
    real = os.rename

    def rename(*arguments: object, **more: object) -> None:
        if "server" in str(arguments[1]):
            raise OSError(errno.EXDEV, "other file system")
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)
    line = (
        "git init -q e && git -C e config core.fsmonitor ./evil && mkfifo e/.git/p && ln -s / e/.git/l &&"
        " echo x > e/.git/f && chmod 0 e/.git/f && mkdir e/.git/d && chmod 0 e/.git/d"
    )
    output, remark = await run_in_sandbox(line, repository, mechanism)
    assert (output, quarantined(repository)) == ("", ["1-.git"]), remark
    moved = repository.parent / "server/scratch-kept/1-.git"
    assert "evil" in (moved / "config").read_text()
    assert (moved / "f").exists()
    assert os.readlink(moved / "l") == "/"
    assert not (repository / "e/.git").exists()


async def test_deep_and_unreadable_directories(repository: Path, mechanism: str) -> None:
    """A directory nested deeper than any program supports is moved; an unlistable one is searched nevertheless."""
    deep = "d=x; for i in $(seq 220); do d=$d/y; done; mkdir -p $d"
    hide = "mkdir u && git init -q u/r && git -C u/r config core.fsmonitor ./evil && chmod 311 u"
    output, remark = await run_in_sandbox(f"{deep}; {hide}", repository, mechanism)
    assert output == ""
    assert "u/r/.git (now" in remark
    assert "y/y (now" in remark
    assert (repository / "u").stat().st_mode & 0o777 == 0o311
    (repository / "u").chmod(0o755)


def test_second_scan_reads_only_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / f"a{number}/b").mkdir(parents=True)
    monkeypatch.setattr("holdfast.workspace.sandbox.git_dir_search._RECENT", -(10**12))
    scanner = GitScanner(str(tmp_path))
    assert scanner.scan().entries == {}
    (tmp_path / "a7/b/.git").write_text("gitdir: x\n")
    read: list[object] = []
    real = os.scandir

    def scandir(place: int) -> object:
        read.append(place)
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    assert set(scanner.scan().entries) == {str(tmp_path / "a7/b/.git")}
    assert len(read) == 1


def repository_that_names_files(place: Path) -> None:
    """Create a repository of the user whose configuration and hooks name files of the workspace."""
    (place / "tools/hooks").mkdir(parents=True)
    (place / "linked-hooks").symlink_to("tools")
    for name in ("shared", "nested", "script"):
        (place / name).write_text("[include]\npath = deeper\n" if name == "nested" else "")
    git("init", "-q", cwd=place)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=place)
    git("worktree", "add", "-q", "tree", cwd=place)
    for value in ("../shared", "../missing", "../nested"):
        git("config", "--add", "include.path", value, cwd=place)
    git("config", "includeIf.onbranch:x.path", "../conditional", cwd=place)
    git("config", "core.hooksPath", "tools/hooks", cwd=place)
    git("config", "--file", ".git/config.worktree", "core.hooksPath", "linked-hooks/other", cwd=place)
    (place / ".git/hooks").mkdir(exist_ok=True)
    (place / ".git/hooks/pre-push").symlink_to("../../script")


async def test_files_named_by_git_configuration_are_protected(place: Path, mechanism: str) -> None:
    repository_that_names_files(place)
    made = (
        "missing", "deeper", "conditional", "tools/hooks/pre-commit", "tree/tools/hooks/pre-commit",
        "linked-hooks/other/pre-commit", ".git/rebase-merge/strategy", ".git/sequencer/opts",
    )  # fmt: skip
    line = "for f in shared nested script; do echo x >> $f; done; mv tools renamed; rm linked-hooks\n"
    line += "".join(f"mkdir -p $(dirname {name}); echo x/y > {name}\n" for name in made[:-1])
    line += f"printf '[options]\\nstrategy = x/y\\n' > {made[-1]}"
    _, remark = await run_in_sandbox(line, place, mechanism)
    assert [(place / name).read_text() for name in ("shared", "script")] == ["", ""]
    assert not [name for name in made if (place / name).exists()], remark


async def test_rebase_with_builtin_strategy_stays(place: Path, mechanism: str) -> None:
    git("init", "-q", cwd=place)
    line = "mkdir -p .git/rebase-merge .git/sequencer; echo ort > .git/rebase-merge/strategy"
    line += "; printf '[options]\\nstrategy = recursive\\nsignoff = true\\n' > .git/sequencer/opts"
    assert (await run_in_sandbox(line, place, mechanism))[1] == ""


def test_directory_exchanged_during_commands_is_compared_at_last_end(place: Path) -> None:
    """Its mounts may be at another place, and a search may miss it."""
    nested, away = place / "nested", place.parent / "away"
    nested.mkdir()
    git("init", "-q", cwd=nested)
    config = nested / ".git/config"
    before = config.read_text()
    cleanup = SandboxCleanup(str(place), (), str(place.parent / "kept"))
    cleanup.refresh()
    first, second, third = (cleanup.begin(frozenset((str(config),))) for _ in range(3))
    with config.open("a") as file:
        file.write("[core]\nfsmonitor = /bin/x\n")
    assert "nested/.git/config" in first()
    assert config.read_text() == before
    nested.rename(away)
    second()
    with (away / ".git/config").open("a") as file:
        file.write("[core]\nfsmonitor = /bin/x\n")
    away.rename(nested)
    assert "nested/.git/config" in third()
    assert config.read_text() == before
