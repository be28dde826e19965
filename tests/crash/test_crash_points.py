"""Kill -9 at every write point of two scenarios, start again, and check the promises: R1 R2 R3 R6 R7 R9."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from crash.crash_points import CrashPoint, Violation, count_points, evidence_of, try_crash, try_point
from crash.faulty_stores import FLAWS
from crash.invariants import Evidence, JournalEntries, problems
from crash.scenarios import SCENARIOS
from crash.workspace import ANSWER, LOST, WRITTEN, expected_answers
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId
from holdfast.domain.messages import Message, Text, TextPart

STRIPES = 12
"""The points are distributed over this many tests, so that several processes can share them."""


@pytest.mark.parametrize("stripe", range(STRIPES))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_every_write_point_breaks_no_promise(scenario: str, stripe: int) -> None:
    point = CrashPoint(scenario, stripe + 1)
    while try_point(point):
        point = msgspec.structs.replace(point, kill_at=point.kill_at + STRIPES)


@pytest.mark.parametrize("again", range(1, 13))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_during_recovery_breaks_no_promise(scenario: str, again: int) -> None:
    """Each of the first write points of the next start, after kills spread over the scenario."""
    kills = sum(try_point(CrashPoint(scenario, kill_at, again)) for kill_at in range(10 + again, 200, 90))
    assert kills >= 2


def test_a_kill_around_an_answer_leaves_no_call_without_a_stored_permission() -> None:
    """R10: at every write point of a scenario in which two clients answer at once."""
    kill_at = 1
    while try_point(CrashPoint("approved", kill_at)):
        kill_at += 1
    assert kill_at > 20


@pytest.mark.parametrize("stripe", range(2))
def test_kill_around_withdrawn_attempts_and_a_summary_keeps_the_requested_responses(stripe: int) -> None:
    """R7: at write points spread over the scenario; scripts/long draws the same activities at any point."""
    kill_at = 3 * stripe + 1
    while try_point(CrashPoint("retried", kill_at)):
        kill_at += 18
    assert kill_at > 60


def test_kill_around_sub_agents_and_an_undo_keeps_files_and_responses_complete() -> None:
    """R7 R9: sub-agents started by the real tool, files written and reverted; most points around the undo."""
    kills = sum(try_point(CrashPoint("helped", kill_at)) for kill_at in (*range(8, 150, 24), *range(152, 168, 3)))
    assert kills == 12


@pytest.mark.parametrize("seed", range(12))
def test_random_crashes_break_no_promise(seed: int) -> None:
    """Random scenarios, kills in the middle of a file's write: a few here, many in scripts/long."""
    try_crash(seed)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_has_the_same_write_points_each_time(scenario: str) -> None:
    """Otherwise "every point" would mean nothing. Together they allow more than a hundred kills."""
    counts = {count_points(scenario) for _ in range(2)}
    assert len(counts) == 1
    assert min(counts) > 100


# The checks detect violations.


def violations_of(flaw: str, scenario: str, points: range) -> str:
    """Return all violations found by kills at these points."""
    found: list[str] = []
    for kill_at in points:
        try:
            try_point(CrashPoint(scenario, kill_at, flaw=flaw))
        except Violation as violation:
            found.append(str(violation))
    return "\n".join(found)


@pytest.mark.parametrize(
    ("flaw", "scenario", "points", "promises"),
    [
        ("hasty", "working", range(1, 12, 4), {"R1", "R2", "R6"}),
        ("forgetful", "working", range(20, 90, 20), {"R7", "R9"}),
        ("deaf", "stopped", range(82, 96), {"R3"}),
    ],
)
def test_a_planted_mistake_is_caught(flaw: str, scenario: str, points: range, promises: set[str]) -> None:
    """A store that replies before it has written, one that loses starts, one that only pretends to cancel."""
    found = violations_of(flaw, scenario, points)
    assert promises <= set(re.findall(r"^(R\d):", found, re.MULTILINE))
    assert f"replay: try_point(CrashPoint(scenario='{scenario}', kill_at=" in found


def test_every_flaw_is_tried() -> None:
    assert set(FLAWS) == {"hasty", "forgetful", "deaf"}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Evidence of a trial without violations: the run `a-1` had started when the server was killed, `a-2` waited."""
    found, kills = evidence_of(CrashPoint("working", 78), tmp_path_factory.mktemp("crash"))
    assert kills == 1
    assert problems(found) == []
    return found


@pytest.mark.parametrize(
    ("lifetime", "line", "promise"),
    [
        (0, "accepted unknown", "R1: unknown was accepted and is gone"),
        (0, "ended held failed", "R2: held was published as failed"),
        (1, "ended unknown completed", "R2: unknown was published as completed"),
        (0, "cancelled a-1 a-2", "R3: the cancel of a-2 was answered and it is completed"),
        (0, "event 3 0123456789abcdef", "R6: event 3 was published and is not in the log like that"),
        (0, "event 999999 0123456789abcdef", "R6: event 999999 was published"),
        (1, "event 3 0123456789abcdef", "R6: the number 3 was given before"),
        (1, "tool a-1 another", "R9: a-1 had started, and went on after the restart"),
        (0, "tool held held.0.0", "R9: the call ('held', 'held.0.0') was executed twice"),
        (1, "tool held held.0.0", "R9: the call ('held', 'held.0.0') was executed again after a restart"),
        (1, "tool held held.0.0-2", "R9: the call ('held', 'held.0.0') was executed again after a restart"),
        (0, "permitted held.0.0", "R10: the call held.0.0 went on"),
        (0, "answered unknown allow", "R10: allow was confirmed for unknown"),
        (1, "trouble R7: a request has nothing in it", "R7: a request has nothing in it"),
    ],
)
def test_broken_promise_is_detected(evidence: Evidence, lifetime: int, line: str, promise: str) -> None:
    journal = list(evidence.journals)
    journal[lifetime] = JournalEntries((*journal[lifetime].lines, tuple(line.split(" "))))
    found = problems(msgspec.structs.replace(evidence, journals=tuple(journal)))
    assert any(problem.startswith(promise) for problem in found), found


def test_repeated_prompt_may_repeat_its_calls(evidence: Evidence) -> None:
    """In one lifetime, a call whose id has a number appended is another call: it was requested again."""
    journal = (JournalEntries((*evidence.journals[0].lines, ("tool", "held", "held.0.0-2"))), *evidence.journals[1:])
    assert problems(msgspec.structs.replace(evidence, journals=journal)) == []


def test_changed_end_is_detected(evidence: Evidence) -> None:
    """The final state of the disk is compared with the state at the kill."""
    end = evidence.end
    runs = [msgspec.structs.replace(run, outcome="completed", error="") for run in end.runs]
    problems_after_change = [
        msgspec.structs.replace(end, runs=tuple(runs)),
        msgspec.structs.replace(end, events=end.events[1:]),
    ]
    messages = {session: stored[:-1] for session, stored in end.messages.items()}
    problems_after_change.append(msgspec.structs.replace(end, messages=messages))
    for states, promise in zip(problems_after_change, ("R2", "R6", "R7"), strict=True):
        found = problems(msgspec.structs.replace(evidence, states=(*evidence.states[:-1], states)))
        assert any(problem.startswith(promise) for problem in found), (promise, found)


def problems_after_change(evidence: Evidence, run_id: str, change: Callable[[Message], Message | None]) -> list[str]:
    """Return the problems if messages of a run were changed or missing."""
    end = evidence.end
    messages = {
        session: tuple(new for item in stored if (new := change(item) if item.run_id == run_id else item) is not None)
        for session, stored in end.messages.items()
    }
    states = msgspec.structs.replace(end, messages=messages)
    return problems(msgspec.structs.replace(evidence, states=(*evidence.states[:-1], states)))


def test_unexpected_conversation_is_detected(evidence: Evidence) -> None:
    """A missing or additional text, call or response; the run `a-2` was completed after the restart."""
    complaint = "R7: a-2 was sent"

    def without_text(message: Message) -> Message:
        return msgspec.structs.replace(message, parts=tuple(p for p in message.parts if not isinstance(p, TextPart)))

    def withdrawn(message: Message) -> Message:
        return msgspec.structs.replace(message, parts=(TextPart(Text(LOST)), *message.parts))

    def without_answers(message: Message) -> Message | None:
        return None if message.role == "assistant" else message

    assert problems_after_change(evidence, "a-2", lambda message: message) == []
    for change in (without_text, withdrawn, without_answers):
        assert any(problem.startswith(complaint) for problem in problems_after_change(evidence, "a-2", change)), change
    assert "R7: a-2 holds words of an attempt that was withdrawn" in problems_after_change(evidence, "a-2", withdrawn)


def test_excess_content_of_an_interrupted_run_is_detected(evidence: Evidence) -> None:
    """The run `held` had called a tool when the server was killed."""

    def with_other_text(message: Message) -> Message:
        found = (TextPart(Text("Other words.")), *message.parts)
        return message if message.role == "user" else msgspec.structs.replace(message, parts=found)

    found = problems_after_change(evidence, "held", with_other_text)
    assert any(problem.startswith("R7: held was sent") and "was cut off" in problem for problem in found), found


def test_file_that_differs_from_its_record_is_detected(evidence: Evidence) -> None:
    def problems_with(files: dict[str, str], versions: tuple[FileVersion, ...], *undone: str) -> list[str]:
        journal = JournalEntries((*evidence.journals[0].lines, *(("undone", name) for name in undone)))
        end = msgspec.structs.replace(evidence.end, files=files, versions=versions)
        states = (*evidence.states[:-1], end)
        return problems(msgspec.structs.replace(evidence, journals=(journal, *evidence.journals[1:]), states=states))

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
def test_expected_responses_of_a_prompt(prompt: str, answers: list[tuple[str, tuple[str, ...]]]) -> None:
    assert expected_answers(prompt) == answers


def test_missing_database_is_not_a_violation(tmp_path: Path) -> None:
    """Killed while the database is being created: the next start creates it."""
    for kill_at in (1, 2, 3):
        found, kills = evidence_of(CrashPoint("working", kill_at, level="file"), tmp_path / str(kill_at))
        assert (problems(found), kills) == ([], 1)
