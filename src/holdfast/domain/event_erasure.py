"""The log after the deletion of a session: which events belong to it, and what remains of them. Pure.

Numbers stay, so that readers can resume. Of a run's end, the run id and the outcome stay, so that a client that
reconnects still receives it. Everything else becomes a `removed` event.
"""

import msgspec

from holdfast.domain.events import (
    AgentEvent,
    MessageDeltaEvent,
    MessagePartEvent,
    Removed,
    RemovedEvent,
    RunCompleteEvent,
    ToolOutputEvent,
    decode_event,
    encode_event,
)
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.sessions import Session

__all__ = ["EventSubject", "event_subject", "redact_body", "redact_event", "redact_session", "session_of"]


class _Subject(msgspec.Struct, frozen=True):
    id: str = ""
    session_id: str = ""
    run_id: str = ""


class _Change(msgspec.Struct, frozen=True):
    """The payload of a change, or the session id of a `removed` event."""

    object: _Subject = msgspec.field(default=_Subject(), name="payload")
    session_id: str = ""


class EventSubject(msgspec.Struct, frozen=True):
    """Type, session and run of a stored event; the rest of it is not decoded."""

    type: str
    change: _Change = msgspec.field(name="payload")

    @property
    def session(self) -> str:
        """The session that the event belongs to."""
        if self.type == "removed":
            return self.change.session_id
        return self.change.object.id if self.type == "session" else self.change.object.session_id

    @property
    def run(self) -> str:
        """The run that the event belongs to; empty if none."""
        return self.change.object.run_id


_decoder = msgspec.json.Decoder(EventSubject)


def event_subject(body: bytes) -> EventSubject:
    """Decode only the fields of a stored event that identify its session and run."""
    return _decoder.decode(body)


def redact_body(body: bytes, session: str) -> bytes:
    """Return the bytes that replace a stored event of a deleted session."""
    return encode_event(redact_event(decode_event(body), session))


def redact_event(event: object, session: str) -> RunCompleteEvent | RemovedEvent:
    """Return the event that replaces one of a deleted session."""
    if isinstance(event, RunCompleteEvent):
        change = event.change
        end = msgspec.structs.replace(change.object, message_id=MessageId(""), text="", error="")
        return RunCompleteEvent(msgspec.structs.replace(change, object=end))
    return RemovedEvent(Removed(SessionId(session)))


def redact_session(session: Session) -> Session:
    """Return a deleted session as its last event shows it: its ids and times, without title, tasks and counts."""
    return Session(
        id=session.id,
        parent_session_id=session.parent_session_id,
        title="",
        message_count=0,
        prompt_tokens=0,
        completion_tokens=0,
        summary_message_id=MessageId(""),
        cost=0.0,
        created_at=session.created_at,
        updated_at=session.updated_at,
        is_busy=False,
        attached_clients=0,
    )


def session_of(event: object) -> str:
    """Return the session that an event, stored or live, belongs to; empty if it belongs to none."""
    match event:
        case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
            return growth.session_id
        case ToolOutputEvent(payload=output):
            return output.session_id
        case RemovedEvent(payload=removed):
            return removed.session_id
        case AgentEvent(change=change):
            return change.object.session_id
        case _:
            subject = getattr(getattr(event, "change", None), "object", None)
            return str(subject.id if isinstance(subject, Session) else getattr(subject, "session_id", ""))
