"""Relations within one session: calls and results, runs and prompts, sub-agents and the calls that started
them.

It records which messages have to be drawn again when a related one changes.
"""

from collections.abc import Iterable

from holdfast.client.view import View
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, helper_session
from holdfast.domain.messages import Message, ToolResult
from holdfast.tui.blocks import Scene

__all__ = ["Index"]


class Index:
    """Indexes the messages of a session and of its sub-agents."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._results: dict[ToolCallId, ToolResult] = {}
        self._calls: dict[ToolCallId, MessageId] = {}
        self._asked: dict[RunId, int] = {}
        self._helpers: dict[SessionId, dict[MessageId, Message]] = {}
        self.latest: MessageId | None = None
        """The newest answer."""
        self.dirty: dict[MessageId, None] = {}
        """Messages of the session that changed since they were drawn."""
        self.scene = Scene(self._results, view.outputs, self._helped, self._asked_at)

    def load(self, messages: Iterable[Message]) -> None:
        """Replace the contents."""
        for known in (self._results, self._calls, self._asked, self._helpers, self.dirty):
            known.clear()
        self.latest = None
        for message in messages:
            self.put(message)
        self.dirty.clear()

    def put(self, message: Message) -> None:
        """Add or replace a message."""
        self.dirty[message.id] = None
        if message.role == "assistant":
            self.latest = message.id
        elif message.role == "user":
            self._asked.setdefault(message.run_id, message.created_at)
        for call in message.tool_calls:
            self._calls[call.id] = message.id
        for result in message.tool_results:
            self._results[result.tool_call_id] = result
            if (owner := self._calls.get(result.tool_call_id)) is not None:
                self.dirty[owner] = None

    def touch(self, message: MessageId) -> None:
        """Mark a message as changed."""
        self.dirty[message] = None

    # Sub-agents.

    def sender(self, session: SessionId) -> MessageId | None:
        """Return the message of this session whose call started the sub-agent with that session."""
        message, sign, call = session.partition("$$")
        return MessageId(message) if sign and self._calls.get(ToolCallId(call)) == message else None

    def put_helper(self, session: SessionId, messages: Iterable[Message]) -> None:
        """Add the earlier messages of a sub-agent."""
        if (owner := self.sender(session)) is not None:
            self._helpers[session] = {message.id: message for message in messages}
            self.dirty[owner] = None

    def unread_helpers(self, limit: int = 20) -> list[SessionId]:
        """Return sessions of sub-agents whose messages have not been fetched, the newest first."""
        named = (helper_session(message, call) for call, message in reversed(self._calls.items()))
        return [name for name in named if name in self._view.sessions and name not in self._helpers][:limit]

    def _helped(self, message: MessageId, call: ToolCallId) -> tuple[Message, ...]:
        name = helper_session(message, call)
        if name not in self._view.sessions:
            return ()
        known = dict(self._helpers.get(name, {}))
        known.update((item.id, item) for item in self._view.messages(name))
        return tuple(known.values())

    def _asked_at(self, run: RunId) -> int:
        return self._asked.get(run, 0)
