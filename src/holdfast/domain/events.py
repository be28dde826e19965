"""Everything a workspace says to those who listen.

Durable events are stored and numbered; a reader gets each of them exactly once. Live events have no
number; a slow reader may get the whole part instead of its deltas. Every event encodes to the one
line of JSON that is stored and sent: `{"type": T, "payload": P}`.
"""

from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.domain.asks import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.languages import LspNotice
from holdfast.domain.mcp import McpNotice
from holdfast.domain.messages import Message, Part
from holdfast.domain.runs import Outcome, Run
from holdfast.domain.sessions import Session
from holdfast.domain.skills import SkillStates

__all__ = [
    "AgentEvent",
    "AgentNotice",
    "AskEvent",
    "Attached",
    "AttachedEvent",
    "Change",
    "ChangeKind",
    "ConfigChanged",
    "ConfigChangedEvent",
    "DurableEvent",
    "Event",
    "FileEvent",
    "Gap",
    "GapEvent",
    "Hello",
    "HelloEvent",
    "LiveEvent",
    "LspEvent",
    "McpEvent",
    "MessageDelta",
    "MessageDeltaEvent",
    "MessageEvent",
    "MessagePart",
    "MessagePartEvent",
    "PermissionNotificationEvent",
    "PermissionRequestEvent",
    "QuestionNotificationEvent",
    "QuestionRequestEvent",
    "Removed",
    "RemovedEvent",
    "RunComplete",
    "RunCompleteEvent",
    "RunEvent",
    "SessionEvent",
    "SkillsEvent",
    "Spoken",
    "ToolOutput",
    "ToolOutputEvent",
    "decode_event",
    "decode_spoken",
    "encode_event",
]

T = TypeVar("T")
ChangeKind = Literal["created", "updated", "deleted"]


class Change(msgspec.Struct, Generic[T], frozen=True):
    """What happened to a thing, and the thing as it is now."""

    type: ChangeKind
    payload: T


class MessageEvent(msgspec.Struct, frozen=True, tag="message"):
    """Durable. `created` precedes every other event about the message; `updated` when its structure
    changed or it ended, never for mere growth.
    """

    payload: Change[Message]


class SessionEvent(msgspec.Struct, frozen=True, tag="session"):
    """Durable. `deleted` is the last event of a session, and carries no more than its id. Every turn's end is preceded
    by an `updated`.
    """

    payload: Change[Session]


class FileEvent(msgspec.Struct, frozen=True, tag="file"):
    """Durable. A new version of a file in a session's history."""

    payload: Change[FileVersion]


class RunEvent(msgspec.Struct, frozen=True, tag="run"):
    """Durable. `created` when accepted, with the prompt; `updated`, without it, when started, at each
    step, folded, moved, asked to stop; `deleted` when refused after it was stored.
    """

    payload: Change[Run]


class RunComplete(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one end of a run. `text` and `message_id` are those of the last assistant message of its turn."""

    session_id: SessionId
    message_id: MessageId
    run_id: RunId
    outcome: Outcome
    text: str = ""
    error: str = ""
    cancelled: bool = False
    folded_into: RunId = RunId("")
    model_unreachable: bool = False


class RunCompleteEvent(msgspec.Struct, frozen=True, tag="run_complete"):
    """Durable. Exactly one per run, and the last event that carries its run id."""

    payload: Change[RunComplete]


class PermissionRequestEvent(msgspec.Struct, frozen=True, tag="permission_request"):
    """Durable. A tool waits for somebody to allow what it is about to do."""

    payload: Change[PermissionRequest]


class PermissionNotificationEvent(msgspec.Struct, frozen=True, tag="permission_notification"):
    """Durable. Once when an ask is opened, and once when it is answered or withdrawn: before the end of its run."""

    payload: Change[PermissionNotification]


class QuestionRequestEvent(msgspec.Struct, frozen=True, tag="question_batch_request"):
    """Durable. The model waits for somebody to answer its questions."""

    payload: Change[QuestionRequest]


class QuestionNotificationEvent(msgspec.Struct, frozen=True, tag="question_batch_notification"):
    """Durable. Once for each batch, when it is answered, cancelled or withdrawn: before the end of its run."""

    payload: Change[QuestionNotification]


class Removed(msgspec.Struct, frozen=True):
    """The session that was deleted."""

    session_id: SessionId


class RemovedEvent(msgspec.Struct, frozen=True, tag="removed"):
    """Durable. Replaces an event of a session that was deleted later; its number stays. Stock clients never get it."""

    payload: Removed


class AgentNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """`agent_finished`: a turn is over, look again. `error`: a run failed, or the storage does.
    `re_authenticate`: a provider refuses the key; `error` says which and what to do. `retrying`: a provider
    failed and is asked again; `error` says why and when. `fallback`: the model that was named cannot be had, and
    another one is asked; `error` says why, and which. Stock clients do not get these three.
    """

    type: Literal["agent_finished", "error", "re_authenticate", "retrying", "fallback"]
    error: str = ""
    run_id: RunId = RunId("")
    session_id: SessionId = SessionId("")
    session_title: str = ""


class AgentEvent(msgspec.Struct, frozen=True, tag="agent_event"):
    """Live. An `error` comes before the `run_complete` of its run, `agent_finished` after it."""

    payload: Change[AgentNotice]


class ConfigChanged(msgspec.Struct, frozen=True):
    """Where a setting was changed; not which, for a screen reads all of them."""

    workspace_id: WorkspaceId


class ConfigChangedEvent(msgspec.Struct, frozen=True, tag="config_changed"):
    """Live. Somebody changed a setting: read the workspace again."""

    payload: Change[ConfigChanged]


class Attached(msgspec.Struct, frozen=True):
    """How many clients look at a session now."""

    session_id: SessionId
    clients: int


class AttachedEvent(msgspec.Struct, frozen=True, tag="attached"):
    """Live. Somebody began to look at a session, or does not any more."""

    payload: Change[Attached]


class LspEvent(msgspec.Struct, frozen=True, tag="lsp_event"):
    """Live. A language server has come to another state, or finds something else wrong."""

    payload: Change[LspNotice]


class McpEvent(msgspec.Struct, frozen=True, tag="mcp_event"):
    """Live. A server of tools has come to another state, or offers something else."""

    payload: Change[McpNotice]


class SkillsEvent(msgspec.Struct, frozen=True, tag="skills_event"):
    """Live. Skills have come, gone or changed."""

    payload: Change[SkillStates]


class MessageDelta(msgspec.Struct, frozen=True):
    """Text to append to a part. `offset` counts the code points that stand before it."""

    session_id: SessionId
    message_id: MessageId
    part: int
    offset: int
    text: str


class MessageDeltaEvent(msgspec.Struct, frozen=True, tag="message_delta"):
    """Live. Only between a message's `created` and its final `updated`."""

    payload: MessageDelta


class MessagePart(msgspec.Struct, frozen=True):
    """A whole part, as it is now. It replaces what the reader has at that index."""

    session_id: SessionId
    message_id: MessageId
    part: int
    content: Part


class MessagePartEvent(msgspec.Struct, frozen=True, tag="message_part"):
    """Live. After a replay for each open part, and wherever a reader missed deltas."""

    payload: MessagePart


class ToolOutput(msgspec.Struct, frozen=True):
    """What a tool that still works has printed since the last of these. `offset` counts the code points before it."""

    session_id: SessionId
    message_id: MessageId
    tool_call_id: ToolCallId
    offset: int
    text: str


class ToolOutputEvent(msgspec.Struct, frozen=True, tag="tool_output"):
    """Live. Only between a call's start and its result, which is what counts in the end."""

    payload: ToolOutput


class Hello(msgspec.Struct, frozen=True):
    """Where the log stands. `cursor` is the newest number; what follows it comes live."""

    cursor: int
    oldest: int
    epoch: int


class HelloEvent(msgspec.Struct, frozen=True, tag="hello"):
    """Of a stream, not of the workspace: the first frame of every subscription."""

    payload: Hello


class Gap(msgspec.Struct, frozen=True):
    """The stream goes on after `cursor`; what came between the reader's number and that is not sent."""

    cursor: int
    oldest: int
    epoch: int


class GapEvent(msgspec.Struct, frozen=True, tag="gap"):
    """Of a stream. When the reader's number is older than what is held, or newer than what was given: take a
    snapshot.
    """

    payload: Gap


AskEvent: TypeAlias = (
    PermissionRequestEvent | PermissionNotificationEvent | QuestionRequestEvent | QuestionNotificationEvent
)
DurableEvent: TypeAlias = (
    MessageEvent | SessionEvent | FileEvent | RunEvent | RunCompleteEvent | RemovedEvent | AskEvent
)
LiveEvent: TypeAlias = (
    AgentEvent
    | AttachedEvent
    | ConfigChangedEvent
    | LspEvent
    | McpEvent
    | MessageDeltaEvent
    | MessagePartEvent
    | SkillsEvent
    | ToolOutputEvent
)
Event: TypeAlias = DurableEvent | LiveEvent
Spoken: TypeAlias = Event | HelloEvent | GapEvent

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_spoken_decoder: msgspec.json.Decoder[Spoken] = msgspec.json.Decoder(Spoken)


def encode_event(event: Event) -> bytes:
    """The bytes that are stored and sent. Called once per event, whoever reads it."""
    return _encoder.encode(event)


def decode_event(body: bytes) -> Event:
    return _decoder.decode(body)


def decode_spoken(body: bytes) -> Spoken:
    """What a reader of a stream gets: the events, and what the stream says of itself."""
    return _spoken_decoder.decode(body)
