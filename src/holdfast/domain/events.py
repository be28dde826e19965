"""The events of a workspace, and the frames of an event stream.

Durable events are stored and numbered; a reader receives each of them exactly once. Live events have no
number; a slow reader may receive the whole part instead of its deltas. Every event encodes to the one
line of JSON that is stored and sent: `{"type": T, "payload": P}`.
"""

from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.extensions import LspNotice, McpNotice, SkillStates
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import Message, Part
from holdfast.domain.runs import Outcome, Run
from holdfast.domain.sessions import Session

__all__ = [
    "AgentEvent",
    "AgentNotice",
    "ApprovalEvent",
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
    "StreamedEvent",
    "ToolOutput",
    "ToolOutputEvent",
    "decode_event",
    "decode_streamed_event",
    "encode_event",
]

T = TypeVar("T")
ChangeKind = Literal["created", "updated", "deleted"]


_WIRE_NAMES = {"change": "payload", "object": "payload"}
"""Both levels of the envelope `{"type": T, "payload": {"type": C, "payload": O}}` are called `payload` on the wire, as
stock clients expect. Python code calls the outer one `change` and the inner one `object`.
"""


class Change(msgspec.Struct, Generic[T], frozen=True, rename=_WIRE_NAMES):
    """A change of an object, with the object in its current state."""

    type: ChangeKind
    object: T


class MessageEvent(msgspec.Struct, frozen=True, tag="message", rename=_WIRE_NAMES):
    """Durable. `created` precedes every other event about the message; `updated` when its structure
    changed or it ended, never for mere growth.
    """

    change: Change[Message]


class SessionEvent(msgspec.Struct, frozen=True, tag="session", rename=_WIRE_NAMES):
    """Durable. `deleted` is the last event of a session and contains only its id. An `updated` precedes the end of
    every turn.
    """

    change: Change[Session]


class FileEvent(msgspec.Struct, frozen=True, tag="file", rename=_WIRE_NAMES):
    """Durable. A new version of a file in a session's history."""

    change: Change[FileVersion]


class RunEvent(msgspec.Struct, frozen=True, tag="run", rename=_WIRE_NAMES):
    """Durable. `created` when accepted, with the prompt; `updated`, without it, when started, at each step, when
    folded, moved or marked for cancellation; `deleted` when refused after it was stored.
    """

    change: Change[Run]


class RunComplete(msgspec.Struct, frozen=True, omit_defaults=True):
    """The single end of a run. `text` and `message_id` are those of the last assistant message of its turn."""

    session_id: SessionId
    message_id: MessageId
    run_id: RunId
    outcome: Outcome
    text: str = ""
    error: str = ""
    cancelled: bool = False
    folded_into: RunId = RunId("")
    model_unreachable: bool = False


class RunCompleteEvent(msgspec.Struct, frozen=True, tag="run_complete", rename=_WIRE_NAMES):
    """Durable. Exactly one per run, and the last event that carries its run id."""

    change: Change[RunComplete]


class PermissionRequestEvent(msgspec.Struct, frozen=True, tag="permission_request", rename=_WIRE_NAMES):
    """Durable. A tool waits for permission."""

    change: Change[PermissionRequest]


class PermissionNotificationEvent(msgspec.Struct, frozen=True, tag="permission_notification", rename=_WIRE_NAMES):
    """Durable. Once when a permission request is opened, and once when it is answered or withdrawn, before its run
    ends.
    """

    change: Change[PermissionNotification]


class QuestionRequestEvent(msgspec.Struct, frozen=True, tag="question_batch_request", rename=_WIRE_NAMES):
    """Durable. The model waits for answers to its questions."""

    change: Change[QuestionRequest]


class QuestionNotificationEvent(msgspec.Struct, frozen=True, tag="question_batch_notification", rename=_WIRE_NAMES):
    """Durable. Once for each batch, when it is answered, cancelled or withdrawn, before its run ends."""

    change: Change[QuestionNotification]


class Removed(msgspec.Struct, frozen=True):
    """The session that was deleted."""

    session_id: SessionId


class RemovedEvent(msgspec.Struct, frozen=True, tag="removed"):
    """Durable. Replaces an event of a session that was deleted later; the number is kept. Stock clients never receive
    it.
    """

    payload: Removed


class AgentNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """`agent_finished`: a turn ended; reload the session. `error`: a run or the storage failed. `re_authenticate`: a
    provider refuses the key; `error` names the provider and the remedy. `retrying`: a request to a provider failed and
    is repeated; `error` has the reason and the delay. `fallback`: the selected model is not available and another one
    is used; `error` has the reason and the other model. Stock clients do not receive the last three.
    """

    type: Literal["agent_finished", "error", "re_authenticate", "retrying", "fallback"]
    error: str = ""
    run_id: RunId = RunId("")
    session_id: SessionId = SessionId("")
    session_title: str = ""


class AgentEvent(msgspec.Struct, frozen=True, tag="agent_event", rename=_WIRE_NAMES):
    """Live. An `error` precedes the `run_complete` of its run, `agent_finished` follows it."""

    change: Change[AgentNotice]


class ConfigChanged(msgspec.Struct, frozen=True):
    """The workspace whose settings changed. The settings are not listed, because clients reload all of them."""

    workspace_id: WorkspaceId


class ConfigChangedEvent(msgspec.Struct, frozen=True, tag="config_changed", rename=_WIRE_NAMES):
    """Live. A setting was changed: load the workspace again."""

    change: Change[ConfigChanged]


class Attached(msgspec.Struct, frozen=True):
    """The number of clients that currently show a session."""

    session_id: SessionId
    clients: int


class AttachedEvent(msgspec.Struct, frozen=True, tag="attached", rename=_WIRE_NAMES):
    """Live. A client opened a session or left it."""

    change: Change[Attached]


class LspEvent(msgspec.Struct, frozen=True, tag="lsp_event", rename=_WIRE_NAMES):
    """Live. The state or the diagnostics of a language server changed."""

    change: Change[LspNotice]


class McpEvent(msgspec.Struct, frozen=True, tag="mcp_event", rename=_WIRE_NAMES):
    """Live. The state or the offered lists of an MCP server changed."""

    change: Change[McpNotice]


class SkillsEvent(msgspec.Struct, frozen=True, tag="skills_event", rename=_WIRE_NAMES):
    """Live. Skills were added, removed or changed."""

    change: Change[SkillStates]


class MessageDelta(msgspec.Struct, frozen=True):
    """Text to append to a part. `offset` is the length of the preceding text in code points."""

    session_id: SessionId
    message_id: MessageId
    part: int
    offset: int
    text: str


class MessageDeltaEvent(msgspec.Struct, frozen=True, tag="message_delta"):
    """Live. Only between a message's `created` and its final `updated`."""

    payload: MessageDelta


class MessagePart(msgspec.Struct, frozen=True):
    """A whole part in its current state. It replaces the reader's part at that index."""

    session_id: SessionId
    message_id: MessageId
    part: int
    content: Part


class MessagePartEvent(msgspec.Struct, frozen=True, tag="message_part"):
    """Live. Sent after a replay for each open part, and whenever a reader missed deltas."""

    payload: MessagePart


class ToolOutput(msgspec.Struct, frozen=True):
    """Output that a running tool has printed since the previous event. `offset` is the length of the preceding output
    in code points.
    """

    session_id: SessionId
    message_id: MessageId
    tool_call_id: ToolCallId
    offset: int
    text: str


class ToolOutputEvent(msgspec.Struct, frozen=True, tag="tool_output"):
    """Live. Only between the start of a call and its result, which replaces the output."""

    payload: ToolOutput


class Hello(msgspec.Struct, frozen=True):
    """The state of the log. `cursor` is the newest number; later events follow live."""

    cursor: int
    oldest: int
    epoch: int


class HelloEvent(msgspec.Struct, frozen=True, tag="hello"):
    """A frame of the stream, not an event of the workspace: the first frame of every subscription."""

    payload: Hello


class Gap(msgspec.Struct, frozen=True):
    """The stream continues after `cursor`; the events between the reader's number and `cursor` are not sent."""

    cursor: int
    oldest: int
    epoch: int


class GapEvent(msgspec.Struct, frozen=True, tag="gap"):
    """A frame of the stream. Sent if the reader's number is older than the oldest stored event or newer than the newest
    one: the reader has to load a snapshot.
    """

    payload: Gap


ApprovalEvent: TypeAlias = (
    PermissionRequestEvent | PermissionNotificationEvent | QuestionRequestEvent | QuestionNotificationEvent
)
DurableEvent: TypeAlias = (
    MessageEvent | SessionEvent | FileEvent | RunEvent | RunCompleteEvent | RemovedEvent | ApprovalEvent
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
StreamedEvent: TypeAlias = Event | HelloEvent | GapEvent
"""Everything that a reader of a stream can receive."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_streamed_decoder: msgspec.json.Decoder[StreamedEvent] = msgspec.json.Decoder(StreamedEvent)


def encode_event(event: Event) -> bytes:
    """Return the bytes that are stored and sent. Called once per event, however many readers there are."""
    return _encoder.encode(event)


def decode_event(body: bytes) -> Event:
    """Decode a stored event."""
    return _decoder.decode(body)


def decode_streamed_event(body: bytes) -> StreamedEvent:
    """Decode a frame of a stream: an event of the workspace or a frame about the stream itself."""
    return _streamed_decoder.decode(body)
