"""Invariants after a crash, as a function that returns violations: R1 R2 R3 R6 R7 R9.

The evidence is the journal of each lifetime, the state of the disk when it ended, and the state once all work is done.
The engine is never queried.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import apsw
import msgspec

from crash.workspace import LOST, WRITTEN, digest, expected_answers
from holdfast.domain.events import DurableEvent, MessageEvent, PermissionNotificationEvent, RunCompleteEvent, RunEvent
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import Message, TextPart, ToolCallPart
from holdfast.domain.runs import Outcome, Run
from holdfast.storage.sqlite_ledger import WorkspaceTables
from holdfast.testing.conversation_validity import problems_of_session

__all__ = ["DiskState", "Evidence", "JournalEntries", "problems", "read_disk_state", "read_journal"]

_Answer: TypeAlias = tuple[str, tuple[str, ...]]
_NUMBER = re.compile(r"-\d+$")
_decoder: msgspec.json.Decoder[DurableEvent] = msgspec.json.Decoder(DurableEvent)


class JournalEntries(msgspec.Struct, frozen=True):
    """The acknowledgements of one lifetime, word by word, in order."""

    lines: tuple[tuple[str, ...], ...] = ()

    def all(self, word: str) -> list[tuple[str, ...]]:
        return [line[1:] for line in self.lines if line[0] == word]


class DiskState(msgspec.Struct, frozen=True):
    """State of the disk: the log, the runs in queue order, the conversations, the files."""

    events: tuple[tuple[int, bytes], ...] = ()
    runs: tuple[Run, ...] = ()
    messages: Mapping[SessionId, tuple[Message, ...]] = msgspec.field(default_factory=dict)
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Content of the project directory."""
    versions: tuple[FileVersion, ...] = ()

    @property
    def newest(self) -> int:
        return self.events[-1][0] if self.events else 0

    def run(self, run_id: str) -> Run | None:
        return next((run for run in self.runs if run.run_id == run_id), None)


class Evidence(msgspec.Struct, frozen=True):
    """Each lifetime with the disk state it left; the last one ended gracefully."""

    journals: tuple[JournalEntries, ...]
    states: tuple[DiskState, ...]

    @property
    def end(self) -> DiskState:
        return self.states[-1]

    def steps(self) -> Iterator[tuple[DiskState, JournalEntries, DiskState]]:
        """Yield the state before, the journal and the state after each lifetime except the first."""
        yield from zip(self.states[:-1], self.journals[1:], self.states[1:], strict=True)


def read_journal(path: Path) -> JournalEntries:
    lines = path.read_text().splitlines() if path.exists() else []
    return JournalEntries(tuple(tuple(line.split(" ")) for line in lines))


def read_disk_state(data: Path) -> DiskState:
    """Read the database without changing its files."""
    path = data / "holdfast.db"
    if not path.exists():
        return DiskState()
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?mode=ro", flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    with contextlib.closing(connection):
        keys = [int(key) for (key,) in connection.execute("SELECT key FROM workspaces")]
        if not keys:
            return DiskState()
        rows = WorkspaceTables(connection, keys[0])
        runs = sorted(rows.runs.page(None, 1_000_000, 0), key=lambda run: rows.runs.rank(run.run_id))
        sessions = [session.id for session in rows.sessions.every()]
        messages = {session: tuple(rows.messages.of_session(session)) for session in sorted(sessions)}
        versions = tuple(version for session in sorted(sessions) for version in rows.files.of_session(session))
        project = data.with_name("project")
        files = {path.name: path.read_text() for path in sorted(project.iterdir())} if project.exists() else {}
        return DiskState(tuple(rows.log.after(0, 1_000_000)), tuple(runs), messages, files, versions)


def problems(evidence: Evidence) -> list[str]:
    """Return the violations; empty if every promise was kept."""
    return [problem for check in _CHECKS for problem in check(evidence)]


def _check_acceptances(evidence: Evidence) -> Iterator[str]:
    for journal in evidence.journals:
        for (run,) in journal.all("accepted"):
            if evidence.end.run(run) is None:
                yield f"R1: {run} was accepted and is gone"


def _check_ends(evidence: Evidence) -> Iterator[str]:
    ends: dict[RunId, list[tuple[int, Outcome]]] = {run.run_id: [] for run in evidence.end.runs}
    last: dict[RunId, int] = {}
    for number, event in _decode(evidence.end.events):
        run_id = _run_of(event)
        last[run_id] = number
        if isinstance(event, RunCompleteEvent):
            ends.setdefault(run_id, []).append((number, event.change.object.outcome))
    for run in evidence.end.runs:
        if [outcome for _, outcome in ends[run.run_id]] != [run.outcome]:
            yield f"R2: {run.run_id} is stored as {run.outcome} and its ends are {ends[run.run_id]}"
        elif ends[run.run_id][0][0] != last[run.run_id]:
            yield f"R2: {run.run_id} ended at {ends[run.run_id][0][0]} and was spoken of at {last[run.run_id]}"
    yield from (f"R2: {run_id}, which is not stored, ended" for run_id in ends if evidence.end.run(run_id) is None)
    for journal in evidence.journals:
        for name, outcome in journal.all("ended"):
            stored = evidence.end.run(name)
            if stored is None or stored.outcome != outcome:
                yield f"R2: {name} was published as {outcome} and is {stored and stored.outcome}"


def _check_cancels(evidence: Evidence) -> Iterator[str]:
    for journal in evidence.journals:
        for runs in journal.all("cancelled"):
            for run_id in runs:
                # A run that is not stored was refused at the same moment, or R1 reports it.
                stored = evidence.end.run(run_id)
                if stored is not None and stored.outcome != "cancelled":
                    yield f"R3: the cancel of {run_id} was answered and it is {stored.outcome}"
    for found, journal, left in evidence.steps():
        for run in found.runs:
            if run.cancel_requested and _has_acted(run.run_id, found, journal, left):
                yield f"R3: {run.run_id} was cancelled, and went on after the restart"


def _has_acted(run_id: RunId, found: DiskState, journal: JournalEntries, left: DiskState) -> bool:
    """Return true if the run called a tool or started a provider request in the lifetime between."""
    if any(run == run_id for run, _ in journal.all("tool")):
        return True
    runs = [
        event.change.object
        for _, event in _decode(left.events, after=found.newest)
        if isinstance(event, RunEvent) and event.change.object.run_id == run_id
    ]
    before = found.run(run_id)
    return any(run.step > (before.step if before else 0) for run in runs)


def _check_numbers(evidence: Evidence) -> Iterator[str]:
    log = dict(evidence.end.events)
    seen: dict[str, str] = {}
    for journal in evidence.journals:
        newest = max((int(number) for number in seen), default=0)
        for number, sha in journal.all("event"):
            if int(number) <= newest:
                yield f"R6: the number {number} was given before"
            seen[number] = sha
            if int(number) not in log or digest(log[int(number)]) != sha:
                yield f"R6: event {number} was published and is not in the log like that"
    for found, _, left in evidence.steps():
        if left.events[: len(found.events)] != found.events:
            yield f"R6: the log up to {found.newest} has changed"
        if any(number <= found.newest for number, _ in left.events[len(found.events) :]):
            yield f"R6: a number up to {found.newest} was used again"


def _check_conversations(evidence: Evidence) -> Iterator[str]:
    for session, messages in evidence.end.messages.items():
        yield from (f"R7: in session {session} {problem}" for problem in problems_of_session(messages))


def _check_responses(evidence: Evidence) -> Iterator[str]:
    """A completed run contains the responses that its prompt asked for, and nothing of a withdrawn attempt."""
    hosts = {run.folded_into for run in evidence.end.runs}
    for run in evidence.end.runs:
        stored = [message for message in evidence.end.messages.get(run.session_id, ()) if message.run_id == run.run_id]
        found = [_answer_of(message) for message in stored if message.role == "assistant"]
        if run.outcome == "completed" and any(LOST in text for text, _ in found):
            yield f"R7: {run.run_id} holds words of an attempt that was withdrawn"
        if run.kind != "prompt" or run.folded_into or run.run_id in hosts:
            continue
        if run.outcome != "completed":
            if not _is_prefix(found, expected_answers(run.prompt)):
                yield f"R7: {run.run_id} was sent {run.prompt!r}, was cut off and holds {found}"
        elif found != expected_answers(run.prompt):
            yield f"R7: {run.run_id} was sent {run.prompt!r} and holds {found}"


def _is_prefix(found: Sequence[_Answer], expected: Sequence[_Answer]) -> bool:
    """Return true for the remains of an unfinished run: complete responses, the last one possibly partial."""
    if not found:
        return True
    *whole, (text, calls) = [(text.replace(LOST, ""), calls) for text, calls in found]
    # The kill may come while the text of a failing attempt is streamed: only its beginning is stored then.
    begun = next(length for length in range(len(LOST), -1, -1) if text.endswith(LOST[:length]))
    text = text[: len(text) - begun]
    if len(found) > len(expected) or whole != expected[: len(whole)]:
        return False
    last_text, last_calls = expected[len(whole)]
    return last_text.startswith(text) and last_calls[: len(calls)] == calls


def _check_undo(evidence: Evidence) -> Iterator[str]:
    """A file is complete or missing, and all files of one undo are reverted together or not at all."""
    end = evidence.end
    for name, text in end.files.items():
        # Files set aside by a killed server stay, under names of their own.
        if text != WRITTEN and not name.startswith(".holdfast-"):
            yield f"R9: {name} holds {text!r}"
    journal = {name for lifetime in evidence.journals for (name,) in lifetime.all("undone")}
    yield from (f"R9: {name} was taken back and is there" for name in sorted(journal & end.files.keys()))
    newest = {Path(version.path).name: version for version in end.versions}
    for name in sorted(journal):
        last = newest.get(name)
        if last is None or last.origin != "undo" or not last.is_missing:
            yield f"R9: {name} was taken back, and {last} is stored"
    for run in end.runs:
        paths = {Path(version.path).name for version in end.versions if version.run_id == run.run_id}
        if run.outcome == "completed" and len({name in end.files for name in paths}) > 1:
            yield f"R9: only a part of {sorted(paths)} is there"


def _answer_of(message: Message) -> _Answer:
    text = "".join(part.data.text for part in message.parts if isinstance(part, TextPart))
    return text, tuple(part.data.name for part in message.parts if isinstance(part, ToolCallPart))


def _check_repetitions(evidence: Evidence) -> Iterator[str]:
    """Started runs are over and never continue; the others continue, in order."""
    lifetimes = [journal.all("tool") for journal in evidence.journals]
    yield from (f"R9: the call {call} was executed twice" for calls in lifetimes for call in _duplicates(calls))
    # A lifetime that repeats an earlier call finds its id in use, and appends a number to it.
    bare = [{(run, _NUMBER.sub("", call)) for run, call in calls} for calls in lifetimes]
    again = _duplicates(call for calls in bare for call in calls)
    yield from (f"R9: the call {call} was executed again after a restart" for call in again)
    for found, journal, left in evidence.steps():
        for run in found.runs:
            if run.started_at and _has_acted(run.run_id, found, journal, left):
                yield f"R9: {run.run_id} had started, and went on after the restart"
            if run.outcome is None:
                yield from _expected_outcome(run, found, evidence)


def _duplicates(calls: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    counts = Counter(calls)
    return sorted(call for call in counts if counts[call] > 1)


def _expected_outcome(run: Run, found: DiskState, evidence: Evidence) -> Iterator[str]:
    stored = evidence.end.run(run.run_id)
    outcome = None if stored is None else stored.outcome
    expected: tuple[Outcome, ...]
    host = found.run(run.folded_into or run.parent_run_id)
    if run.cancel_requested if host is None or run.parent_run_id else host.cancel_requested:
        expected = ("cancelled",)
    elif run.parent_run_id:
        expected = ("cancelled",) if host is not None and host.cancel_requested else ("interrupted",)
    elif run.started_at or run.kind == "summary":
        expected = ("interrupted",)
    elif found is evidence.states[-2]:
        expected = ("completed", "failed")
    else:
        # The lifetime that resumes it may be killed as well.
        expected = ("completed", "failed", "interrupted")
    if outcome not in expected:
        yield f"R9: {run.run_id} was left as {run} and is {outcome}, not one of {expected}"


def _check_order(evidence: Evidence) -> Iterator[str]:
    """In each session, runs with a turn of their own start in queue order, and so do steering ones."""
    begun = list(_started_runs(evidence.end.events))
    unruly = set(_reordered(evidence))
    for session in evidence.end.messages:
        mine = [run for run in evidence.end.runs if run.session_id == session and run.run_id not in unruly]
        for steers in (False, True):
            queue = [run.run_id for run in mine if (run.delivery == "steer") is steers and run.run_id in begun]
            order = [run_id for run_id in begun if run_id in queue]
            if order != queue:
                yield f"R1: in session {session} the runs {queue} began in the order {order}"


def _reordered(evidence: Evidence) -> Iterator[RunId]:
    """Runs whose delivery was changed, so that they were in both queues; and runs that were moved while they started,
    whose move was not acknowledged.
    """
    last: dict[RunId, Run] = {}
    moves = Counter(RunId(run) for journal in evidence.journals for (run,) in journal.all("moved"))
    for _, event in _decode(evidence.end.events):
        if not isinstance(event, RunEvent):
            continue
        run = msgspec.structs.replace(event.change.object, prompt="")
        before = last.get(run.run_id)
        last[run.run_id] = run
        if before is not None and run.delivery != before.delivery:
            yield run.run_id
        # A move publishes the run unchanged.
        moves[run.run_id] -= run == before
    yield from (run for run, left in moves.items() if left)


def _started_runs(events: Iterable[tuple[int, bytes]]) -> Iterator[RunId]:
    seen: set[RunId] = set()
    for _, event in _decode(events):
        if isinstance(event, RunEvent):
            run = event.change.object
            if run.started_at and run.run_id not in seen:
                seen.add(run.run_id)
                yield run.run_id


def _check_answers(evidence: Evidence) -> Iterator[str]:
    """A call continued only after its permission was stored; the acknowledged answer is the one in the log."""
    for journal, left in zip(evidence.journals, evidence.states, strict=True):
        notices = [
            event.change.object for _, event in _decode(left.events) if isinstance(event, PermissionNotificationEvent)
        ]
        granted = {notice.tool_call_id for notice in notices if notice.granted}
        for (call,) in journal.all("permitted"):
            if call not in granted:
                yield f"R10: the call {call} went on, and no permission for it is stored"
        actions = {notice.id: notice.action for notice in notices if notice.granted or notice.denied}
        for request, action in journal.all("answered"):
            if actions.get(request) != action:
                yield f"R10: {action} was confirmed for {request}, and {actions.get(request)} is stored"


def _check_reported_problems(evidence: Evidence) -> Iterator[str]:
    for journal in evidence.journals:
        yield from (" ".join(line) for line in journal.all("trouble"))


_CHECKS: Sequence[Callable[[Evidence], Iterable[str]]] = (
    _check_acceptances,
    _check_ends,
    _check_cancels,
    _check_numbers,
    _check_conversations,
    _check_responses,
    _check_undo,
    _check_repetitions,
    _check_order,
    _check_answers,
    _check_reported_problems,
)


def _decode(events: Iterable[tuple[int, bytes]], after: int = 0) -> Iterator[tuple[int, DurableEvent]]:
    for number, body in events:
        if number > after:
            yield number, _decoder.decode(body)


def _run_of(event: DurableEvent) -> RunId:
    match event:
        case RunEvent() | RunCompleteEvent() | MessageEvent():
            return event.change.object.run_id
        case _:
            return RunId("")
