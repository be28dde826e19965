"""Project context for the model."""

import asyncio
import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.project_context import ContextFile, GitChanges, GitState, ProjectContext
from holdfast.engine.system_prompt import git_note, subagent_prompt, system_prompt
from holdfast.workspace.git.background_status import StatusScan
from holdfast.workspace.project_context import ContextLoader, ContextOptions, find_context_sources, read_context_files

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
    return [file.text for file in read_context_files(find_context_sources(directory, own, more))]


# Context files.


def test_context_files_from_repository_root_down(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    put(tmp_path, "AGENTS.md", "top")
    put(tmp_path, "pkg/CLAUDE.md", "middle")
    put(tmp_path, "pkg/app/.cursor/rules/b.md", "rule b")
    put(tmp_path, "pkg/app/.cursor/rules/a.md", "rule a")
    own = put(tmp_path.parent, f"{tmp_path.name}-own.md", "mine")
    assert found(tmp_path / "pkg/app", own) == ["mine", "top", "middle", "rule a", "rule b"]


def test_parents_are_ignored_without_repository(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "not ours")
    put(tmp_path, "here/AGENTS.md", "ours")
    assert found(tmp_path / "here") == ["ours"]


def test_a_file_with_two_names_is_included_once(tmp_path: Path) -> None:
    put(tmp_path, "AGENTS.md", "rules")
    (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
    os.link(tmp_path / "AGENTS.md", tmp_path / "GEMINI.md")
    put(tmp_path, "CRUSH.md", "rules\n")
    assert found(tmp_path) == ["rules"]


def test_configured_context_files(tmp_path: Path) -> None:
    put(tmp_path, "docs/style.md", "style")
    assert found(tmp_path, more=("docs/style.md", "docs/none.md")) == ["style"]


@pytest.mark.parametrize("name", ["AGENTS.md", ".cursor/rules", ".cursor/rules/a.md", "docs/a.md"])
def test_project_symlinks_do_not_leave_project(tmp_path: Path, name: str) -> None:
    put(tmp_path, "away/key", "secret")
    project = tmp_path / "project"
    place = project / name
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "away" if name.endswith("rules") else tmp_path / "away" / "key")
    assert found(project, more=("docs", "docs/a.md")) == []


def test_user_path_outside_project_may_be_directory(tmp_path: Path) -> None:
    put(tmp_path, "key", "secret")
    put(tmp_path, "notes/a.md", "mine")
    (tmp_path / "notes" / "b.md").symlink_to(tmp_path / "key")
    (tmp_path / "project").mkdir()
    assert found(tmp_path / "project", more=("../notes", str(tmp_path / "notes"))) == ["mine"]


def test_files_are_truncated_and_total_is_bounded(tmp_path: Path) -> None:
    for name in ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "CRUSH.md"):
        put(tmp_path, name, name + "x" * 200_000)
    files = read_context_files(find_context_sources(tmp_path, ()))
    assert [len(file.text) for file in files] == [32_768, 32_768, 32_768]
    assert all(file.left_out > 60_000 for file in files)


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "AGENTS.md")
    (tmp_path / "CLAUDE.md").mkdir()
    (tmp_path / "GEMINI.md").symlink_to("GEMINI.md")
    (tmp_path / "CRUSH.md").write_bytes(b"caf\xe9")
    put(tmp_path, ".cursorrules", "   \n")
    assert found(tmp_path) == ["caf\ufffd"]


# State of a session


async def test_session_keeps_its_context(tmp_path: Path) -> None:
    days = iter(["Monday", "Tuesday"])
    git(tmp_path, "init")
    put(tmp_path, "AGENTS.md", "be kind")
    context_loader = ContextLoader(str(tmp_path), today=lambda: next(days))
    first = await context_loader.load(SESSION)
    git(tmp_path, "checkout", "-b", "other")
    assert await context_loader.load(SESSION) is first
    other = await context_loader.load(OTHER)
    assert other.date == "Tuesday"
    assert (first.git, other.git) == (GitState("trunk"), GitState("other"))


async def test_a_changed_file_is_read_again_and_the_rest_stays(tmp_path: Path) -> None:
    git(tmp_path, "init")
    put(tmp_path, "AGENTS.md", "be kind")
    context_loader = ContextLoader(str(tmp_path), today=lambda: "Monday")
    first = await context_loader.load(SESSION)
    git(tmp_path, "checkout", "-b", "other")
    put(tmp_path, "AGENTS.md", "be kind and quick")
    second = await context_loader.load(SESSION)
    assert [file.text for file in second.context] == ["be kind and quick"]
    assert (second.date, second.git) == (first.date, GitState("trunk")), "those of the beginning of the session"


async def test_each_source_of_the_context_is_noticed_and_the_date_stays(tmp_path: Path) -> None:
    days = iter(["Monday", "Tuesday"])
    options = ContextOptions()
    loader = ContextLoader(str(tmp_path), lambda: options, today=lambda: next(days))
    first = await loader.load(SESSION)
    assert await loader.load(SESSION) is first
    for options in (ContextOptions(trailer="By me"), ContextOptions(notes=("# Note",)), ContextOptions()):
        seen = await loader.load(SESSION)
        assert (seen.trailer, seen.notes, seen.date) == (options.trailer, options.notes, "Monday")


async def test_a_session_is_scanned_once_and_the_least_recently_used_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.workspace.project_context._MAX_SESSIONS", 2)
    scans: list[StatusScan] = []

    def scan() -> StatusScan:
        scans.append(StatusScan(0.0))
        return scans[-1]

    loader = ContextLoader(str(tmp_path), scan=scan)
    for session in ("a", "b", "a", "c", "a", "b"):
        await loader.load(SessionId(session))
    assert len(scans) == 4, "only b was forgotten and scanned again"


@pytest.mark.parametrize(("seconds", "threads"), [(0.0, 1), (0.004, 2)], ids=["short", "long"])
async def test_branch_and_commit_are_read_in_a_thread_only_while_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, threads: int
) -> None:
    git(tmp_path, "init")
    clock, calls = itertools.count(), []

    async def in_thread(work: Callable[[], object]) -> object:
        calls.append(work)
        return work()

    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    monkeypatch.setattr("holdfast.workspace.short_calls.time.perf_counter", lambda: next(clock) * seconds)
    monkeypatch.setattr("holdfast.workspace.short_calls.time.thread_time", lambda: 0.0)
    loader = ContextLoader(str(tmp_path))
    for session in (SESSION, OTHER):
        assert (await loader.load(session)).git == GitState("trunk")
    assert len(calls) == threads


def test_the_size_of_what_is_left_out(tmp_path: Path) -> None:
    """Characters of the part that was read, and bytes of the rest."""
    for name, size in (("AGENTS.md", 32_768), ("CLAUDE.md", 32_769), ("GEMINI.md", 200_000)):
        put(tmp_path, name, name[0] * size)
    files = read_context_files(find_context_sources(tmp_path, ()))
    assert [file.left_out for file in files] == [0, 1, 200_000 - 32_768]


async def test_the_result_of_a_scan_stays_with_its_message(tmp_path: Path) -> None:
    """The first request has it if the scan is done by then, otherwise the next one; nothing waits for it."""
    scan = StatusScan(0.0)
    context_loader = ContextLoader(str(tmp_path), scan=lambda: scan)
    assert context_loader.git_changes(SESSION, MessageId("m0")) == {}
    await context_loader.load(SESSION)
    assert context_loader.git_changes(SESSION, MessageId("m1")) == {}
    scan.changes = GitChanges((" M a.txt",))
    for newest in ("m2", "m3"):
        assert context_loader.git_changes(SESSION, MessageId(newest)) == {MessageId("m2"): scan.changes}
    await context_loader.load(OTHER)
    assert context_loader.git_changes(OTHER, MessageId("n1")) == {MessageId("n1"): scan.changes}


async def test_settings_add_their_own(tmp_path: Path) -> None:
    put(tmp_path, "house.md", "house rules")
    context_options = ContextOptions(
        context_paths=("house.md",), trailer="Assisted-by: Holdfast", notes=("# Skills\n\nnone",)
    )
    seen = await ContextLoader(str(tmp_path), lambda: context_options).load(SESSION)
    assert [file.text for file in seen.context] == ["house rules"]
    assert (seen.trailer, seen.notes) == ("Assisted-by: Holdfast", ("# Skills\n\nnone",))


# Text of the prompt


def test_prompt_contains_context() -> None:
    git = GitState("trunk", "0123456789abcdef")
    files = (ContextFile("/p/AGENTS.md", "be kind", left_out=7),)
    place = ProjectContext("/p", "Linux", "2026-11-16", git, files, ("# Skills",), "Assisted-by: Holdfast")
    prompt = system_prompt(place)
    for fact in ("/p", "Linux", "2026-11-16", "trunk", "0123456789ab ", "be kind", "7 more", "Assisted-by"):
        assert fact in prompt
    assert prompt.index("be kind") < prompt.index("# Skills") < prompt.index("2026-11-16")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (GitState("trunk"), "Git branch: trunk, without commits"),
        (GitState("", "0123456789abcdef"), "detached HEAD, commit 0123456789ab "),
        (GitState(), "its branch is not known"),
    ],
)
def test_branch_description(state: GitState, text: str) -> None:
    assert text in system_prompt(ProjectContext("/p", git=state))


def test_changes_and_commits_are_described() -> None:
    note = git_note(GitChanges((" M a.txt",), 3, ("abc123 first words",)))
    for fact in ("   M a.txt", "3 more", "abc123 first words"):
        assert fact in note
    assert "No changes" in git_note(GitChanges())


def test_a_sub_agent_gets_its_directory_and_may_not_change_anything() -> None:
    reported = subagent_prompt(ProjectContext("/p", context=(ContextFile("/p/AGENTS.md", "commit often"),)))
    assert "/p" in reported
    assert "not in a git repository" in reported
    assert "commit often" not in reported
