"""What a model is told of the place it works in."""

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.domain.ids import SessionId
from holdfast.domain.surroundings import ContextFile, GitState, Surroundings
from holdfast.engine.instructions import helper_instructions, system_prompt
from holdfast.workspace.surroundings import Lookout, Manners, context_files, context_places, git_state

SESSION, OTHER = SessionId("s1"), SessionId("s2")


def git(directory: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=trunk"]
    subprocess.run([*command, *arguments], cwd=directory, check=True, capture_output=True)


def put(directory: Path, name: str, text: str) -> Path:
    place = directory / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def found(directory: Path, *own: Path, more: tuple[str, ...] = ()) -> list[str]:
    return [file.text for file in context_files(context_places(directory, own, more))]


# Context files.


def test_files_from_the_top_of_the_repository_down(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    put(tmp_path, "AGENTS.md", "top")
    put(tmp_path, "pkg/CLAUDE.md", "middle")
    put(tmp_path, "pkg/app/.cursor/rules/b.md", "rule b")
    put(tmp_path, "pkg/app/.cursor/rules/a.md", "rule a")
    own = put(tmp_path.parent, f"{tmp_path.name}-own.md", "mine")
    assert found(tmp_path / "pkg/app", own) == ["mine", "top", "middle", "rule a", "rule b"]


def test_without_a_repository_parents_are_none_of_our_business(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "not ours")
    put(tmp_path, "here/AGENTS.md", "ours")
    assert found(tmp_path / "here") == ["ours"]


def test_the_same_file_under_two_names_is_told_once(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "rules")
    (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
    os.link(tmp_path / "AGENTS.md", tmp_path / "GEMINI.md")
    put(tmp_path, "CRUSH.md", "rules\n")
    assert found(tmp_path) == ["rules"]


def test_more_files_by_name(tmp_path: Path) -> None:
    put(tmp_path, "docs/style.md", "style")
    assert found(tmp_path, more=("docs/style.md", "docs/none.md")) == ["style"]


@pytest.mark.parametrize("name", ["AGENTS.md", ".cursor/rules", ".cursor/rules/a.md", "docs/a.md"])
def test_links_of_a_project_do_not_lead_out_of_it(tmp_path: Path, name: str) -> None:
    put(tmp_path, "away/key", "secret")
    project = tmp_path / "project"
    place = project / name
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "away" if name.endswith("rules") else tmp_path / "away" / "key")
    assert found(project, more=("docs", "docs/a.md")) == []


def test_what_a_user_names_outside_may_be_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "key", "secret")
    put(tmp_path, "notes/a.md", "mine")
    (tmp_path / "notes" / "b.md").symlink_to(tmp_path / "key")
    (tmp_path / "project").mkdir()
    assert found(tmp_path / "project", more=("../notes", str(tmp_path / "notes"))) == ["mine"]


@pytest.mark.parametrize("setting", ["filter.x.clean", "core.fsmonitor", "diff.external", "gpg.program"])
async def test_looking_at_a_repository_runs_nothing_that_it_names(tmp_path: Path, setting: str) -> None:
    git(tmp_path, "init")
    put(tmp_path, "a.txt", "one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert await git_state(tmp_path) is not None
    put(tmp_path, ".gitattributes", "* filter=x")
    put(tmp_path, "a.txt", "two")
    git(tmp_path, "config", setting, f"touch {tmp_path}/ran; cat")
    await git_state(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_long_files_are_cut_and_all_together_is_bounded(tmp_path: Path) -> None:
    for name in ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "CRUSH.md"):
        put(tmp_path, name, name + "x" * 200_000)
    files = context_files(context_places(tmp_path, ()))
    assert [len(file.text) for file in files] == [32_768, 32_768, 32_768]
    assert all(file.left_out > 60_000 for file in files)


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "AGENTS.md")
    (tmp_path / "CLAUDE.md").mkdir()
    (tmp_path / "GEMINI.md").symlink_to("GEMINI.md")
    (tmp_path / "CRUSH.md").write_bytes(b"caf\xe9")
    put(tmp_path, ".cursorrules", "   \n")
    assert found(tmp_path) == ["caf\ufffd"]


# Git.


async def test_the_state_of_a_repository(tmp_path: Path) -> None:
    git(tmp_path, "init")
    put(tmp_path, "a.txt", "a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first words")
    put(tmp_path, "a.txt", "b")
    put(tmp_path, "new.txt", "n")
    state = await git_state(tmp_path)
    assert state is not None
    assert state.branch == "trunk"
    assert state.status == (" M a.txt", "?? new.txt")
    assert [line.partition(" ")[2] for line in state.commits] == ["first words"]


async def test_a_repository_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert await git_state(tmp_path) == GitState("trunk")


async def test_many_changes_are_counted(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for number in range(30):
        put(tmp_path, f"{number}.txt", "x")
    state = await git_state(tmp_path)
    assert state is not None
    assert (len(state.status), state.more_changes) == (20, 10)


async def test_no_repository_no_state(tmp_path: Path) -> None:
    assert await git_state(tmp_path) is None


async def test_nothing_of_the_repository_is_run(tmp_path: Path) -> None:
    git(tmp_path, "init")
    trap = put(tmp_path, "trap.sh", f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "diff.external"):
        git(tmp_path, "config", key, str(trap))
    await git_state(tmp_path)
    assert not (tmp_path / "sprung").exists()


async def test_without_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await git_state(tmp_path) is None


# What a session keeps.


async def test_a_session_keeps_what_it_saw(tmp_path: Path) -> None:
    days = iter(["Monday", "Tuesday"])
    git(tmp_path, "init")
    put(tmp_path, "AGENTS.md", "be kind")
    lookout = Lookout(str(tmp_path), today=lambda: next(days))
    first = await lookout.look(SESSION)
    put(tmp_path, "later.txt", "x")
    assert await lookout.look(SESSION) is first
    other = await lookout.look(OTHER)
    assert other.date == "Tuesday"
    assert other.git != first.git


async def test_a_changed_file_is_read_again_and_the_rest_stays(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "be kind")
    lookout = Lookout(str(tmp_path), today=lambda: "Monday")
    first = await lookout.look(SESSION)
    put(tmp_path, "AGENTS.md", "be kind and quick")
    second = await lookout.look(SESSION)
    assert [file.text for file in second.context] == ["be kind and quick"]
    assert (second.date, second.git) == (first.date, first.git)


async def test_settings_add_their_own(tmp_path: Path) -> None:
    put(tmp_path, "house.md", "house rules")
    manners = Manners(context_paths=("house.md",), trailer="Assisted-by: Holdfast", notes=("# Skills\n\nnone",))
    seen = await Lookout(str(tmp_path), lambda: manners).look(SESSION)
    assert [file.text for file in seen.context] == ["house rules"]
    assert (seen.trailer, seen.notes) == ("Assisted-by: Holdfast", ("# Skills\n\nnone",))


# What is said.


def test_the_prompt_tells_all_of_it() -> None:
    git = GitState("trunk", (" M a.txt",), 3, ("abc123 first words",))
    files = (ContextFile("/p/AGENTS.md", "be kind", left_out=7),)
    place = Surroundings("/p", "Linux", "2026-11-16", git, files, ("# Skills",), "Assisted-by: Holdfast")
    prompt = system_prompt(place)
    for fact in ("/p", "Linux", "2026-11-16", "trunk", "a.txt", "3 more", "abc123", "be kind", "7 more", "Assisted-by"):
        assert fact in prompt
    assert prompt.index("be kind") < prompt.index("# Skills") < prompt.index("2026-11-16")


def test_a_helper_is_told_where_it_is_and_not_to_change_anything() -> None:
    told = helper_instructions(Surroundings("/p", context=(ContextFile("/p/AGENTS.md", "commit often"),)))
    assert "/p" in told
    assert "not in a git repository" in told
    assert "commit often" not in told
