"""Prompts and the runs they become."""

from typing import Literal

import msgspec

from holdfast.domain.ids import MessageId, RunId, SessionId

__all__ = [
    "Attachment",
    "AttachmentInfo",
    "Delivery",
    "Kind",
    "Outcome",
    "Prompt",
    "PromptExpansion",
    "Run",
    "RunState",
]

Delivery = Literal["steer", "queue", "reject", "interrupt"]
"""How a prompt joins a session that is busy: see GLOSSARY.md."""

Outcome = Literal["completed", "failed", "cancelled", "interrupted"]
"""How a run ended: it answered, it failed, a client cancelled it, or the server stopped."""

RunState = Literal["waiting", "accepted", "active", "cancelling", "folded", "ended"]

Kind = Literal["prompt", "summary"]


class Attachment(msgspec.Struct, frozen=True):
    """A file that was sent with a prompt."""

    content: bytes
    file_path: str
    file_name: str
    mime_type: str


class AttachmentInfo(msgspec.Struct, frozen=True):
    """The description of an attachment in a run, without its bytes."""

    file_name: str
    mime_type: str
    size: int


class PromptExpansion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The expansion of a prompt that means more than its text, such as a slash command. Made when the prompt is
    accepted
    and stored with its run.

    `text` is what the model reads instead. `model` is `large`, `small` or a name, empty if the prompt selects none.
    `allow` are rules for this run only; they do not override a rule that denies.
    """

    text: str
    command: str = ""
    model: str = ""
    allow: tuple[str, ...] = ()


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a run. Without a run id one is generated; without a delivery the run id determines it."""

    session_id: SessionId
    prompt: str
    attachments: tuple[Attachment, ...] = ()
    run_id: RunId = RunId("")
    delivery: Delivery | None = None
    client_id: str = ""
    interactive: bool | None = None
    kind: Kind = "prompt"
    parent_run_id: RunId = RunId("")
    yolo: bool = False
    require_model: bool = False
    brief: PromptExpansion | None = None

    @property
    def effective_delivery(self) -> Delivery:
        """The delivery, or its default: `queue` if the caller chose a run id and waits for it, otherwise `steer`."""
        if self.delivery is not None:
            return self.delivery
        return "queue" if self.run_id else "steer"


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One accepted prompt, from acceptance to its single end. Times are Unix milliseconds."""

    run_id: RunId
    session_id: SessionId
    state: RunState
    delivery: Delivery
    accepted_at: int
    prompt: str = ""
    position: int = 0
    """The number of runs ahead of it in its session when it was accepted."""
    number: int = 0
    """The event number at which it was accepted: a cancel covers runs with a smaller number."""
    kind: Kind = "prompt"
    attachments: tuple[AttachmentInfo, ...] = ()
    client_id: str = ""
    interactive: bool = False
    yolo: bool = False
    """The sender allowed all calls that would require permission; rules that deny still apply."""
    require_model: bool = False
    """Fail if no model is usable, instead of falling back to the scripted model."""
    parent_run_id: RunId = RunId("")
    started_at: int = 0
    step: int = 0
    cancel_requested: bool = False
    cancelled_by: str = ""
    must_cancel: bool = False
    """A node that does not own the workspace accepted a cancel and reported the run as covered: the store refuses to
    fold, complete or fail it.
    """
    folded_into: RunId = RunId("")
    ended_at: int = 0
    outcome: Outcome | None = None
    error: str = ""
    model_unreachable: bool = False
    """The run failed because its first request did not reach the model's server."""
    message_id: MessageId = MessageId("")
