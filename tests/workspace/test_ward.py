"""What a sandboxed command makes that would be obeyed outside: with real commands, by every mechanism there is."""

import os
from pathlib import Path

import pytest

from holdfast.config.locations import PROJECT_FILES
from holdfast.domain.sandbox import PROTECTED
from holdfast.extensions import folders
from holdfast.workspace.guard import Guard
from holdfast.workspace.process import Processes
from holdfast.workspace.sandbox import Sandbox, SandboxPolicy, find_bubblewrap
from holdfast.workspace.shell_call import Shell
from workspace.test_sandbox import MECHANISMS, git


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace with nothing in it."""
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def done(line: str, place: Path, mechanism: str) -> tuple[str, str]:
    """Run a line in the sandbox; what it said, and what the sandbox says about it."""
    guard = Guard()
    await guard.ready()
    try:
        processes = Processes(guard, place.parent / "spills", sandbox=sandbox_of(place, mechanism, guard))
        launch = Shell(processes).launch(line, str(place), {"HOME": str(place.parent), "PATH": os.environ["PATH"]})
        running, _ = await processes.run(launch)
        return running.stdout.shown() + running.stderr.shown(), running.remark
    finally:
        await guard.close()


def sandbox_of(place: Path, mechanism: str, guard: Guard) -> Sandbox:
    server = place.parent / "server"
    policy = SandboxPolicy(str(place), str(server / "scratch"), hidden=(str(server),))
    bubblewrap = find_bubblewrap() if mechanism == "bubblewrap" else None
    return Sandbox(policy, has_namespaces=guard.has_namespaces, bubblewrap=bubblewrap)


def kept(place: Path) -> list[str]:
    folder = place.parent / "server/scratch-kept"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_all_that_is_obeyed_is_on_the_list() -> None:
    names = [name for name, _ in PROJECT_FILES]
    names += [*folders._PROJECT_SKILLS, *(name for name, _ in (*folders._PROJECT_COMMANDS, *folders._PROJECT_AGENTS))]
    names += [".claude/settings.json", ".mcp.json"]
    assert [name for name in names if name.split("/")[0] not in PROTECTED] == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("echo x > holdfast.toml", "holdfast.toml"),
        ("echo x > t; mv t .mcp.json", ".mcp.json"),
        ("mkdir -p .claude && echo x > .claude/settings.json", ".claude"),
        ("mkdir e && ln -s e .agents", ".agents"),
        ("mkdir -p .git/hooks && echo x > .git/hooks/pre-commit", ".git/hooks/pre-commit"),
        ("mkdir .git && mkdir e && ln -s ../e .git/hooks", ".git/hooks"),
        ("mkdir .git && echo x > .git/hooks", ".git/hooks"),
        ("git init -q . && git config core.fsmonitor ./evil", ".git/config"),
        ("git init -q . && git config alias.st '!./evil'", ".git/config"),
        ("git init -q . && git config core.worktree /", ".git/config"),
        ("git init -q . && mv .git/config c && ln -s ../c .git/config", ".git/config"),
        ("git init -q . && echo ../e > .git/commondir", ".git/commondir"),
        (
            "git init -q . && mkdir -p .git/modules/m && touch .git/modules/m/{HEAD,commondir}",
            ".git/modules/m/commondir",
        ),
        ("git init -q e && echo 'gitdir: e/.git' > .git", ".git"),
        ("git init -q --bare . && git config core.fsmonitor ./evil", "HEAD"),
    ],
)
async def test_what_is_made_is_taken_away_and_said(place: Path, mechanism: str, line: str, name: str) -> None:
    said, remark = await done(line, place, mechanism)
    assert said == ""
    assert Path(name).name not in os.listdir((place / name).parent)
    assert kept(place) == [f"1-{Path(name).name}"]
    assert f"{name} (now {place.parent}/server/scratch-kept/1-{Path(name).name})" in remark


async def test_a_file_does_not_become_the_head_of_a_repository(place: Path, mechanism: str) -> None:
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    said, remark = await done("echo x > a", place, mechanism)
    assert (said, remark) == ("", "")
    _, remark = await done("mkdir objects refs && printf '[core]\\nfsmonitor=./evil' > config", place, mechanism)
    assert "HEAD (now" in remark
    assert not (place / "HEAD").exists()


async def test_everything_else_stays(place: Path, mechanism: str) -> None:
    said, remark = await done("echo a > a && mkdir -p deep/.claude && echo x > deep/holdfast.toml", place, mechanism)
    assert (said, remark, kept(place)) == ("", "", [])
    assert (place / "deep/.claude").is_dir()


async def test_a_repository_can_be_made_and_used_and_is_protected_from_then_on(place: Path, mechanism: str) -> None:
    name = "-c user.name=T -c user.email=t@example.com"
    line = f"git init -q . && touch a && git add a && git {name} commit -qm one && git log --format=%s"
    assert await done(line, place, mechanism) == ("one\n", "")
    assert (place / ".git/hooks").is_dir()
    said, _ = await done(
        "echo x > .git/hooks/pre-commit; git config core.fsmonitor ./evil; ls .git/hooks", place, mechanism
    )
    assert "pre-commit\n" not in said.replace("pre-commit.sample", "")
    assert "evil" not in (place / ".git/config").read_text()
    _, remark = await done("echo ../e > .git/commondir", place, mechanism)
    assert ".git/commondir (now" in remark
    assert not (place / ".git/commondir").exists()


async def test_repositories_below_the_top_are_free(place: Path, mechanism: str) -> None:
    git("init", cwd=place)
    line = "git init -q sub && git -C sub config core.fsmonitor ./x && git clone -q sub copy 2>&1 | grep -v empty; ls"
    said, remark = await done(line, place, mechanism)
    assert (said, remark) == ("copy\nsub\n", "")


async def test_a_link_is_put_back(place: Path, mechanism: str) -> None:
    (place.parent / "settings.json").write_text("{}")
    os.symlink("../settings.json", place / ".crush.json")
    _, remark = await done("rm .crush.json && echo x > .crush.json", place, mechanism)
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
    said, _ = await done("git -C mod config core.fsmonitor ./evil; echo x > .git/modules/mod/hooks/x", main, mechanism)
    assert said.count("Read-only") + said.count("busy") + said.count("denied") >= 2, said
    assert (main / ".git/modules/mod/config").read_bytes() == before
    git("worktree", "add", str(place / "linked"), cwd=main)
    said, _ = await done("echo 'gitdir: ../e' > .git", place / "linked", mechanism)
    assert (place / "linked/.git").read_text().startswith(f"gitdir: {main}")


async def test_what_was_made_while_the_server_was_killed_is_found_later(place: Path, mechanism: str) -> None:
    """R9: the next server looks at what a command did whose end nobody saw."""
    guard = Guard()
    await guard.ready()
    try:
        sandbox_of(place, mechanism, guard).watch()
        (place / ".mcp.json").write_text("x")
        sandbox_of(place, mechanism, guard)
    finally:
        await guard.close()
    assert kept(place) == ["1-.mcp.json"]
    assert not (place / ".mcp.json").exists()


async def test_what_a_job_makes_is_taken_away_when_the_next_command_ends(place: Path, mechanism: str) -> None:
    guard = Guard()
    await guard.ready()
    try:
        sandbox = sandbox_of(place, mechanism, guard)
        job, command = sandbox.watch(), sandbox.watch()
        (place / ".mcp.json").write_text("x")
        later = sandbox.watch()
        assert command()
        assert kept(place) == ["1-.mcp.json"]
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


async def test_a_repository_that_git_goes_into_by_itself_names_no_program(repository: Path, mechanism: str) -> None:
    """Whoever asks git how things are, at the top, has it ask in every submodule, by the settings that are there."""
    make = f"git init -q sub && (cd sub && {COMMIT} && git config core.fsmonitor ./evil) && git add sub 2>/dev/null"
    said, remark = await done(make, repository, mechanism)
    assert (said, kept(repository)) == ("", ["1-config"])
    assert "sub/.git/config (now" in remark
    git("status", cwd=repository)
    # One that is known is mounted; a directory that takes its place is not.
    again = "mv sub old && cp -r old sub && git -C sub config core.fsmonitor ./evil; echo x > old/.git/hooks/pre-commit"
    said, remark = await done(again, repository, mechanism)
    assert "sub/.git/config (now" in remark
    assert not (repository / "old/.git/hooks/pre-commit").exists()


async def test_a_submodule_can_be_added_and_used(repository: Path, mechanism: str) -> None:
    other = repository / "other"
    other.mkdir()
    git("init", cwd=other)
    git("commit", "--allow-empty", "-m", "first", cwd=other)
    add = "git -c protocol.file.allow=always submodule --quiet add ./other mod"
    said, remark = await done(f"git config --file .git/config x.y z 2>/dev/null; {add}", repository, mechanism)
    assert remark == ""
    assert (repository / ".git/modules/mod/config").exists(), said
    _, remark = await done("git -C mod config core.fsmonitor ./evil; git -C mod status -s", repository, mechanism)
    assert (remark, kept(repository)) == ("", [])
    assert "evil" not in (repository / ".git/modules/mod/config").read_text()


async def test_an_index_that_cannot_be_read_any_more_is_taken_away(repository: Path, mechanism: str) -> None:
    make = f"git init -q sub && (cd sub && {COMMIT}) && git add sub 2>/dev/null"
    assert (await done(make, repository, mechanism))[1] == ""
    _, remark = await done("git update-index --index-version 4", repository, mechanism)
    assert ".git/index (now" in remark


async def test_what_lies_elsewhere_is_left_alone(repository: Path, mechanism: str) -> None:
    """A repository of the user's that a submodule only names cannot have been changed by the command."""
    other = repository.parent / "other"
    other.mkdir()
    git("init", cwd=other)
    git("config", "alias.x", "!y", cwd=other)
    git("commit", "--allow-empty", "-m", "first", cwd=other)
    make = f"mkdir sub && echo 'gitdir: {other}/.git' > sub/.git && git add sub 2>/dev/null"
    assert await done(make, repository, mechanism) == ("", "")
    _, remark = await done(f"ln -s {other} .git/modules; mkdir l; ln -s {other}/.git l/.git", repository, mechanism)
    assert (remark, kept(repository)) == ("", [])
    assert "alias" in (other / ".git/config").read_text()


async def test_what_is_older_than_the_sandbox_was_not_made_in_it(repository: Path, mechanism: str) -> None:
    """A repository of the user's own, below, that becomes a submodule by accident."""
    for name in ("own", "later"):
        (repository / name).mkdir()
        git("init", cwd=repository / name)
        git("commit", "--allow-empty", "-m", "first", cwd=repository / name)
    git("config", "alias.x", "!y", cwd=repository / "own")
    assert await done("true", repository, mechanism) == ("", "")
    said, remark = await done("git -C later config alias.x '!y'", repository, mechanism)
    assert (said, remark) == ("", "")
    said, remark = await done("git add own later 2>/dev/null", repository, mechanism)
    assert (said, kept(repository)) == ("", ["1-config"])
    assert "later/.git/config (now" in remark


async def test_what_others_change_in_a_repository_meanwhile_stays(repository: Path, mechanism: str) -> None:
    """Its hooks and settings are mounted read-only for commands: it was not one of them."""
    guard = Guard()
    await guard.ready()
    try:
        over = sandbox_of(repository, mechanism, guard).watch()
        git("config", "alias.x", "!y", cwd=repository)
        (repository / ".git/hooks/pre-commit").write_text("x")
        assert over() == ""
    finally:
        await guard.close()
    assert (repository / ".git/hooks/pre-commit").exists()
