"""Kill -9 at every write point of two stories, start again, and hold the server to its promises: R1 R2 R3 R6 R7 R9."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from crash.crash_points import Point, Violation, count_points, evidence_of, try_crash, try_point
from crash.faulty_stores import FLAWS
from crash.invariants import Evidence, Told, problems
from crash.scenarios import STORIES
from crash.workspace import ANSWER, LOST, WRITTEN, expected_answers
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId
from holdfast.domain.messages import Message, Text, TextPart

STRIPES = 12
"""The points are dealt out to so many tests, so that several processes can share them."""


@pytest.mark.parametrize("stripe", range(STRIPES))
@pytest.mark.parametrize("story", STORIES)
def test_a_kill_at_every_write_point_breaks_no_promise(story: str, stripe: int) -> None:
    point = Point(story, stripe + 1)
    while try_point(point):
        point = msgspec.structs.replace(point, kill_at=point.kill_at + STRIPES)


@pytest.mark.parametrize("again", range(1, 13))
@pytest.mark.parametrize("story", STORIES)
def test_a_kill_during_recovery_breaks_no_promise(story: str, again: int) -> None:
    """Each of the first write points of the next start, after kills spread over the story."""
    kills = sum(try_point(Point(story, kill_at, again)) for kill_at in range(10 + again, 200, 90))
    assert kills >= 2


def test_a_kill_around_an_answer_leaves_no_call_without_a_stored_permission() -> None:
    """R10: at every write point of a story in which two clients answer at once."""
    kill_at = 1
    while try_point(Point("approved", kill_at)):
        kill_at += 1
    assert kill_at > 20


@pytest.mark.parametrize("stripe", range(2))
def test_a_kill_around_withdrawn_attempts_and_a_summary_leaves_the_answers_that_were_asked_for(stripe: int) -> None:
    """R7: at write points spread over the story; scripts/long draws the same scenes at any point."""
    kill_at = 3 * stripe + 1
    while try_point(Point("retried", kill_at)):
        kill_at += 18
    assert kill_at > 60


def test_a_kill_around_helpers_and_an_undo_leaves_whole_files_and_the_answers_that_were_asked_for() -> None:
    """R7 R9: helpers sent by the real tool, files written and taken back; closest around the undo."""
    kills = sum(try_point(Point("helped", kill_at)) for kill_at in (*range(8, 150, 24), *range(152, 168, 3)))
    assert kills == 12


@pytest.mark.parametrize("seed", range(12))
def test_random_crashes_break_no_promise(seed: int) -> None:
    """Tangled stories, kills in the middle of a file's write: a few here, many in scripts/long."""
    try_crash(seed)


@pytest.mark.parametrize("story", STORIES)
def test_a_story_has_the_same_write_points_each_time(story: str) -> None:
    """Otherwise "every point" would mean nothing. Together they make for more than a hundred kills."""
    counts = {count_points(story) for _ in range(2)}
    assert len(counts) == 1
    assert min(counts) > 100


# The checker bites.


def caught(flaw: str, story: str, points: range) -> str:
    """All that the trials say against kills at these points."""
    said: list[str] = []
    for kill_at in points:
        try:
            try_point(Point(story, kill_at, flaw=flaw))
        except Violation as violation:
            said.append(str(violation))
    return "\n".join(said)


@pytest.mark.parametrize(
    ("flaw", "story", "points", "promises"),
    [
        ("hasty", "working", range(1, 12, 4), {"R1", "R2", "R6"}),
        ("forgetful", "working", range(20, 90, 20), {"R7", "R9"}),
        ("deaf", "stopped", range(82, 96), {"R3"}),
    ],
)
def test_a_planted_mistake_is_caught(flaw: str, story: str, points: range, promises: set[str]) -> None:
    """A store that answers before it has written, one that forgets starts, one that only pretends to cancel."""
    said = caught(flaw, story, points)
    assert promises <= set(re.findall(r"^(R\d):", said, re.MULTILINE))
    assert f"replay: try_point(Point(story='{story}', kill_at=" in said


def test_every_flaw_is_tried() -> None:
    assert set(FLAWS) == {"hasty", "forgetful", "deaf"}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Of a trial in which nothing is wrong: the run `a-1` had started when the server died, `a-2` waited."""
    found, kills = evidence_of(Point("working", 78), tmp_path_factory.mktemp("crash"))
    assert kills == 1
    assert problems(found) == []
    return found


@pytest.mark.parametrize(
    ("life", "line", "promise"),
    [
        (0, "accepted nobody", "R1: nobody was accepted and is gone"),
        (0, "ended held failed", "R2: held was told to be failed"),
        (1, "ended nobody completed", "R2: nobody was told to be completed"),
        (0, "cancelled a-1 a-2", "R3: the cancel of a-2 was answered and it is completed"),
        (0, "event 3 0123456789abcdef", "R6: event 3 was told and is not in the log as it was told"),
        (0, "event 999999 0123456789abcdef", "R6: event 999999 was told"),
        (1, "event 3 0123456789abcdef", "R6: the number 3 was given before"),
        (1, "tool a-1 another", "R9: a-1 had started, and went on after the restart"),
        (0, "tool held held.0.0", "R9: the call ('held', 'held.0.0') was executed twice"),
        (1, "tool held held.0.0", "R9: the call ('held', 'held.0.0') was executed again after a restart"),
        (1, "tool held held.0.0-2", "R9: the call ('held', 'held.0.0') was executed again after a restart"),
        (0, "permitted held.0.0", "R10: the call held.0.0 went on"),
        (0, "answered nobody allow", "R10: allow was confirmed for nobody"),
        (1, "trouble R7: a request has nothing in it", "R7: a request has nothing in it"),
    ],
)
def test_a_broken_promise_is_noticed(evidence: Evidence, life: int, line: str, promise: str) -> None:
    told = list(evidence.told)
    told[life] = Told((*told[life].lines, tuple(line.split(" "))))
    found = problems(msgspec.structs.replace(evidence, told=tuple(told)))
    assert any(problem.startswith(promise) for problem in found), found


def test_a_prompt_that_is_sent_twice_may_ask_for_the_same_twice(evidence: Evidence) -> None:
    """In one life, a call with a number behind its id is another call: somebody asked for it again."""
    told = (Told((*evidence.told[0].lines, ("tool", "held", "held.0.0-2"))), *evidence.told[1:])
    assert problems(msgspec.structs.replace(evidence, told=told)) == []


def test_a_changed_end_is_noticed(evidence: Evidence) -> None:
    """What lies on the disk at the end is held against what lay there at the kill."""
    end = evidence.end
    runs = [msgspec.structs.replace(run, outcome="completed", error="") for run in end.runs]
    changed = [msgspec.structs.replace(end, runs=tuple(runs)), msgspec.structs.replace(end, events=end.events[1:])]
    messages = {session: stored[:-1] for session, stored in end.messages.items()}
    changed.append(msgspec.structs.replace(end, messages=messages))
    for remains, promise in zip(changed, ("R2", "R6", "R7"), strict=True):
        found = problems(msgspec.structs.replace(evidence, remains=(*evidence.remains[:-1], remains)))
        assert any(problem.startswith(promise) for problem in found), (promise, found)


def changed(evidence: Evidence, run_id: str, change: Callable[[Message], Message | None]) -> list[str]:
    """The problems if messages of a run were others, or not there."""
    end = evidence.end
    messages = {
        session: tuple(new for item in stored if (new := change(item) if item.run_id == run_id else item) is not None)
        for session, stored in end.messages.items()
    }
    remains = msgspec.structs.replace(end, messages=messages)
    return problems(msgspec.structs.replace(evidence, remains=(*evidence.remains[:-1], remains)))


def test_another_conversation_than_the_prompts_asked_for_is_noticed(evidence: Evidence) -> None:
    """A text, a call or an answer that is missing or too much; the run `a-2` was completed after the restart."""
    complaint = "R7: a-2 was asked"

    def without_text(message: Message) -> Message:
        return msgspec.structs.replace(message, parts=tuple(p for p in message.parts if not isinstance(p, TextPart)))

    def withdrawn(message: Message) -> Message:
        return msgspec.structs.replace(message, parts=(TextPart(Text(LOST)), *message.parts))

    def without_answers(message: Message) -> Message | None:
        return None if message.role == "assistant" else message

    assert changed(evidence, "a-2", lambda message: message) == []
    for change in (without_text, withdrawn, without_answers):
        assert any(problem.startswith(complaint) for problem in changed(evidence, "a-2", change)), change
    assert "R7: a-2 holds words of an attempt that was withdrawn" in changed(evidence, "a-2", withdrawn)


def test_more_than_the_beginning_of_a_run_that_was_cut_off_is_noticed(evidence: Evidence) -> None:
    """The run `held` had called a tool when the server died."""

    def retold(message: Message) -> Message:
        said = (TextPart(Text("Other words.")), *message.parts)
        return message if message.role == "user" else msgspec.structs.replace(message, parts=said)

    found = changed(evidence, "held", retold)
    assert any(problem.startswith("R7: held was asked") and "was cut off" in problem for problem in found), found


def test_a_file_that_is_not_as_it_was_told_is_noticed(evidence: Evidence) -> None:
    def problems_with(files: dict[str, str], versions: tuple[FileVersion, ...], *undone: str) -> list[str]:
        told = Told((*evidence.told[0].lines, *(("undone", name) for name in undone)))
        end = msgspec.structs.replace(evidence.end, files=files, versions=versions)
        remains = (*evidence.remains[:-1], end)
        return problems(msgspec.structs.replace(evidence, told=(told, *evidence.told[1:]), remains=remains))

    run = next(run for run in evidence.end.runs if run.outcome == "completed")
    x, y = (FileVersion(name, run.session_id, f"/{name}.txt", WRITTEN, 0, 1, 1, run_id=run.run_id) for name in "xy")
    gone = msgspec.structs.replace(x, origin="undo", is_missing=True, run_id=RunId(""))
    assert problems_with({"x.txt": WRITTEN, "y.txt": WRITTEN}, (x, y)) == []
    assert problems_with({}, (x, gone), "x.txt") == []
    assert problems_with({"x.txt": WRITTEN[:5]}, (x,)) == ["R9: x.txt holds 'What '"]
    assert problems_with({"x.txt": WRITTEN}, (x, y)) == ["R9: only a part of ['x.txt', 'y.txt'] is there"]
    assert problems_with({"x.txt": WRITTEN}, (x, gone), "x.txt") == ["R9: x.txt was taken back and is there"]
    assert problems_with({}, (x,), "x.txt")[0].startswith("R9: x.txt was taken back, and FileVersion(")


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [
        ("a1 say", [(ANSWER, ())]),
        ("anything else", [(ANSWER, ())]),
        ("a1 think say hold:x say", [(2 * ANSWER, ())]),
        ("a1 note look / hold:x look / say", [("", ("note", "look")), ("", ("look",)), (ANSWER, ())]),
        ("a1 say cut slow:x / say cut say", [(ANSWER, ("note",)), (2 * ANSWER, ())]),
        ("a1 note / permit", [("", ("note",)), ("", ("permit",)), (ANSWER, ())]),
    ],
)
def test_what_a_prompt_asks_for(prompt: str, answers: list[tuple[str, tuple[str, ...]]]) -> None:
    assert expected_answers(prompt) == answers


def test_a_folder_that_was_never_written_is_no_violation(tmp_path: Path) -> None:
    """Killed while the database is being made: the next start makes it."""
    for kill_at in (1, 2, 3):
        found, kills = evidence_of(Point("working", kill_at, level="file"), tmp_path / str(kill_at))
        assert (problems(found), kills) == ([], 1)
