"""Creates messages, one method for each kind. Pure: time and ids are passed in."""

from collections.abc import Callable

import msgspec

from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    Message,
    Part,
    Role,
    ShellCommand,
    ShellCommandPart,
    Text,
    TextPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.runs import Attachment

__all__ = ["MessageFactory"]

# User and tool messages are complete when they are stored; stock clients expect a finish part in them.
_COMPLETE = FinishPart(Finish("stop", 0))


class MessageFactory(msgspec.Struct, frozen=True):
    """Creates the messages of one run. `now` is in Unix seconds."""

    session_id: SessionId
    run_id: RunId
    now: int
    new_id: Callable[[], str]

    def user(self, prompt: str, attachments: tuple[Attachment, ...] = (), meant: str = "") -> Message:
        """Return the message of a prompt. `meant` is the text for the model if it differs from the shown one."""
        files = (BinaryPart(Binary(item.file_path, item.mime_type, item.content)) for item in attachments)
        return self._message("user", (TextPart(Text(prompt, meant)), *files, _COMPLETE))

    def shell(self, command: ShellCommand) -> Message:
        """Return the message of a command that the user ran."""
        return self._message("user", (ShellCommandPart(command), _COMPLETE))

    def assistant(self, info: ModelInfo | None = None, *, is_summary: bool = False) -> Message:
        """Return an empty response, which will be streamed."""
        return self._message("assistant", (), info, is_summary=is_summary)

    def tool(self, result: ToolResult) -> Message:
        """Return the message of a tool result."""
        return self._message("tool", (ToolResultPart(result), _COMPLETE))

    def final_message(self, finish: Finish) -> Message:
        """Return a response without content that has the finish reason of the turn."""
        return self._message("assistant", (FinishPart(finish),))

    def _message(
        self, role: Role, parts: tuple[Part, ...], info: ModelInfo | None = None, *, is_summary: bool = False
    ) -> Message:
        return Message(
            parts=parts,
            id=MessageId(self.new_id()),
            role=role,
            session_id=self.session_id,
            model=info.model if info else "",
            provider=info.provider if info else "",
            created_at=self.now,
            updated_at=self.now,
            is_summary_message=is_summary,
            run_id=self.run_id,
        )
