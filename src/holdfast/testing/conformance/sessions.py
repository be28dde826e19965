"""Sessions and their contents."""

import msgspec

from holdfast.domain.event_erasure import session_of
from holdfast.domain.events import FileEvent, Removed, RemovedEvent, RunCompleteEvent, SessionEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.sessions import SessionPatch, Todo, apply_patch
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    CreateSession,
    DeleteSession,
    EndRun,
    MarkRead,
    PatchSession,
    PutMessage,
    Receipt,
    Write,
)
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, message, run, session

__all__ = ["CHECKS"]

SESSION = SessionId("s")


def _file(path: str, content: str, *, session: str = "s") -> FileVersion:
    return FileVersion(f"{path}:{content}", SessionId(session), path, content, 77, 1, 1)


async def a_session_is_created_once(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.open(subject.ledger)
    (entry,) = (await workspace_owner.do(CreateSession(session("s")))).entries
    assert isinstance(entry.event, SessionEvent)
    assert (entry.event.change.type, entry.event.change.object) == ("created", session("s"))
    assert await subject.ledger.session(workspace_owner.id, SESSION) == session("s")
    assert await workspace_owner.refused(CreateSession(session("s", updated_at=7))) == "session_exists"


async def patches_add_up(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    todo = Todo("Do it", "pending", "Doing it")
    first = SessionPatch(SESSION, 200, title="New", prompt_tokens=5, add_cost=0.5, todos=(todo,))
    second = SessionPatch(SESSION, 150, summary_message_id=MessageId("m"), add_cost=0.25, add_messages=2)
    await workspace_owner.do(PatchSession(first))
    (entry,) = (await workspace_owner.do(PatchSession(second))).entries
    expected = apply_patch(apply_patch(session("s"), first), second)
    assert isinstance(entry.event, SessionEvent)
    assert (entry.event.change.type, entry.event.change.object) == ("updated", expected)
    assert await subject.ledger.session(workspace_owner.id, SESSION) == expected
    assert (expected.cost, expected.updated_at) == (0.75, 200)


async def unknown_sessions_are_not_patched_deleted_or_given_files(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    nowhere = SessionId("nowhere")
    assert await workspace_owner.refused(PatchSession(SessionPatch(nowhere, 1))) == "unknown_session"
    assert await workspace_owner.refused(DeleteSession(nowhere)) == "unknown_session"
    assert await workspace_owner.refused(AddFile(_file("/a", "x", session="nowhere"))) == "unknown_session"
    assert await workspace_owner.do(MarkRead(ReadMark(nowhere, "/a", 1))) == Receipt()
    assert await subject.ledger.read_mark(workspace_owner.id, nowhere, "/a") is None


async def deleting_a_session_removes_all_its_rows(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger, "s", "kept")
    for name in ("s", "kept"):
        await workspace_owner.admit(f"r-{name}", session=name)
        await workspace_owner.do(
            EndRun(RunId(f"r-{name}"), "completed", 9),
            PutMessage(message(f"m-{name}", session=name, run=f"r-{name}")),
            AddFile(_file("/a", "x", session=name)),
            MarkRead(ReadMark(SessionId(name), "/a", 1)),
        )
    (entry,) = (await workspace_owner.do(DeleteSession(SESSION))).entries
    assert isinstance(entry.event, SessionEvent)
    assert (entry.event.change.type, entry.event.change.object.id) == ("deleted", "s")
    assert entry.event.change.object.title == ""
    ledger = subject.ledger
    assert await ledger.session(workspace_owner.id, SESSION) is None
    assert await ledger.run(workspace_owner.id, RunId("r-s")) is None
    assert list(await ledger.messages(workspace_owner.id, SESSION)) == []
    assert list(await ledger.messages_of_run(workspace_owner.id, RunId("r-s"))) == []
    assert list(await ledger.files(workspace_owner.id, SESSION)) == []
    assert list(await ledger.read_marks(workspace_owner.id, SESSION)) == []
    kept = SessionId("kept")
    assert (
        len(await ledger.messages(workspace_owner.id, kept)) == len(await ledger.files(workspace_owner.id, kept)) == 1
    )
    assert await ledger.run(workspace_owner.id, RunId("r-kept")) is not None


async def deleting_a_session_empties_its_events(subject: Subject) -> None:
    """Events of children and of the same batch are included. Numbers, ends and run ids stay."""
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger, "s", "kept")
    await workspace_owner.do(CreateSession(session("child", parent="s")))
    for name in ("s", "kept", "child"):
        await workspace_owner.do(
            Admit(run(f"r-{name}", session=name, prompt="canary"), b""), AddFile(_file("/a", "canary", session=name))
        )
    before = await workspace_owner.events()
    ends = [
        Write((PutMessage(message(f"m-{name}", "canary", session=name)), _end(name))) for name in ("s", "kept", "child")
    ]
    await workspace_owner.batch(*ends, Write((DeleteSession(SESSION),)))
    after = await workspace_owner.events()
    assert [number for number, _ in after] == list(range(1, len(after) + 1))
    for number, event in after[: len(before) + 6]:
        match session_of(event):
            case "kept":
                assert not isinstance(event, RemovedEvent)
            case owner if isinstance(event, RunCompleteEvent):
                end = event.change.object
                assert (end.run_id, end.outcome, end.text, end.error) == (f"r-{owner}", "failed", "", "")
            case owner:
                assert event == RemovedEvent(Removed(SessionId(owner))), number
    bodies = [body for _, body in await subject.ledger.events_after(workspace_owner.id, 0, 1000)]
    assert sum(b"canary" in body for body in bodies) == 4
    for name in ("s", "child"):
        assert await workspace_owner.refused(Admit(run(f"r-{name}", session="kept"), b"")) == "run_exists"


def _end(name: str) -> EndRun:
    return EndRun(RunId(f"r-{name}"), "failed", 9, error="canary", message_id=MessageId(f"m-{name}"), text="canary")


async def children_are_deleted_before_their_parent(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await workspace_owner.do(
        CreateSession(session("child", parent="s")), CreateSession(session("grandchild", parent="child"))
    )
    await workspace_owner.do(PutMessage(message("m", session="grandchild")))
    events = [entry.event for entry in (await workspace_owner.do(DeleteSession(SESSION))).entries]
    assert [event.change.object.id for event in events if isinstance(event, SessionEvent)] == [
        "grandchild",
        "child",
        "s",
    ]
    assert list((await subject.ledger.snapshot(workspace_owner.id, None)).sessions) == []


async def a_busy_session_is_not_deleted(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await workspace_owner.do(CreateSession(session("child", parent="s")))
    await workspace_owner.admit("r1", session="child")
    assert await workspace_owner.refused(DeleteSession(SessionId("child"))) == "busy"
    assert await workspace_owner.refused(DeleteSession(SESSION)) == "busy"
    await workspace_owner.do(EndRun(RunId("r1"), "completed", 9))
    await workspace_owner.do(DeleteSession(SESSION))


async def sessions_are_listed_latest_change_first_without_children(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.open(subject.ledger)
    for name, at in (("old", 1), ("same", 5), ("twin", 5), ("child", 9)):
        await workspace_owner.do(CreateSession(session(name, parent="old" if name == "child" else "", updated_at=at)))
    assert [item.id for item in await subject.ledger.sessions(workspace_owner.id)] == ["twin", "same", "old"]
    await workspace_owner.do(PatchSession(SessionPatch(SessionId("old"), 6)))
    assert [item.id for item in await subject.ledger.sessions(workspace_owner.id)] == ["old", "twin", "same"]
    every = (await subject.ledger.snapshot(workspace_owner.id, None)).sessions
    assert [item.id for item in every] == ["child", "old", "twin", "same"]


async def file_versions_count_per_session_and_path(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    files = (_file("/b", "1"), _file("/a", "1"), _file("/b", "2"), _file("/b", "1", session="t"))
    events = [(await workspace_owner.do(AddFile(file))).entries[0].event for file in files]
    versions = [event.change.object.version for event in events if isinstance(event, FileEvent)]
    assert versions == [0, 0, 1, 0]
    found = await subject.ledger.files(workspace_owner.id, SESSION)
    assert list(found) == [
        msgspec.structs.replace(_file("/a", "1"), version=0),
        msgspec.structs.replace(_file("/b", "1"), version=0),
        msgspec.structs.replace(_file("/b", "2"), version=1),
    ]


async def a_missing_file_is_not_an_empty_one(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger, "s")
    missing = msgspec.structs.replace(_file("/a", ""), origin="outside", is_missing=True)
    files = [missing, missing, _file("/a", ""), _file("/a", ""), msgspec.structs.replace(_file("/a", "x"), restores=0)]
    await workspace_owner.do(*(AddFile(file) for file in files))
    found = await subject.ledger.files(workspace_owner.id, SESSION)
    assert [(file.version, file.content, file.is_missing) for file in found] == [
        (0, "", True),
        (1, "", False),
        (2, "x", False),
    ]
    assert [(file.origin, file.restores) for file in found] == [("outside", -1), ("tool", -1), ("tool", 0)]


async def equal_contents_of_two_sessions_are_deleted_separately(subject: Subject) -> None:
    """Two sessions have files with the same text; deleting one session does not affect the other."""
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    for owner, path in (("s", "/a"), ("s", "/b"), ("t", "/a")):
        await workspace_owner.do(AddFile(_file(path, "same", session=owner)))
    await workspace_owner.do(DeleteSession(SESSION))
    assert [file.content for file in await subject.ledger.files(workspace_owner.id, SessionId("t"))] == ["same"]
    await workspace_owner.do(DeleteSession(SessionId("t")))
    assert await subject.ledger.files(workspace_owner.id, SessionId("t")) in ((), [])


async def read_marks_are_stored_without_events(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    marks = [ReadMark(SESSION, "/a", 1, "d1"), ReadMark(SESSION, "/b", 2), ReadMark(SESSION, "/a", 3, "d2")]
    assert await workspace_owner.do(*(MarkRead(mark) for mark in marks)) == Receipt()
    assert await subject.ledger.read_mark(workspace_owner.id, SESSION, "/a") == marks[2]
    assert await subject.ledger.read_mark(workspace_owner.id, SessionId("t"), "/a") is None
    assert list(await subject.ledger.read_marks(workspace_owner.id, SESSION)) == [marks[2], marks[1]]


CHECKS = tuple(
    Check(check)
    for check in (
        a_session_is_created_once,
        patches_add_up,
        unknown_sessions_are_not_patched_deleted_or_given_files,
        deleting_a_session_removes_all_its_rows,
        deleting_a_session_empties_its_events,
        children_are_deleted_before_their_parent,
        a_busy_session_is_not_deleted,
        sessions_are_listed_latest_change_first_without_children,
        file_versions_count_per_session_and_path,
        a_missing_file_is_not_an_empty_one,
        equal_contents_of_two_sessions_are_deleted_separately,
        read_marks_are_stored_without_events,
    )
)
