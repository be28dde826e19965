"""Making, renaming and removing sessions."""

from holdfast.domain.errors import UnknownSession
from holdfast.domain.events import SessionEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import CreateSession, DeleteSession, PatchSession, PutMessage, Refusal
from holdfast.domain.messages import ShellCommand
from holdfast.domain.sessions import Session, SessionPatch
from holdfast.engine.drafts import Author
from holdfast.engine.engine import Engine
from holdfast.engine.inputs import Inputs

__all__ = ["Sessions"]


class Sessions:
    def __init__(self, engine: Engine, inputs: Inputs) -> None:
        self._engine = engine
        self._inputs = inputs

    async def create(
        self, title: str = "New session", parent: SessionId | None = None, id: SessionId | None = None
    ) -> Session:
        now = self._engine.outside.clock.now_ms() // 1000
        session = Session(
            id=id or SessionId(self._engine.outside.new_id()),
            parent_session_id=parent or SessionId(""),
            title=title,
            message_count=0,
            prompt_tokens=0,
            completion_tokens=0,
            summary_message_id=MessageId(""),
            cost=0.0,
            created_at=now,
            updated_at=now,
            is_busy=False,
            attached_clients=0,
        )
        await self._engine.recorder.put(CreateSession(session))
        return session

    async def note_shell(self, session: SessionId, command: ShellCommand) -> None:
        """Keep what a person ran; a turn that is under way sees it after its running step.

        Nothing happens if there is no such session.
        """
        outside = self._engine.outside
        author = Author(session, RunId(""), outside.clock.now_ms() // 1000, outside.new_id)
        message = author.shell(command)
        answer = await self._engine.recorder.put(PutMessage(message))
        turn = self._engine.turn_of(session)
        if turn is not None and not isinstance(answer, Refusal):
            turn.add_later(message)

    async def rename(self, session: SessionId, title: str) -> Session:
        patch = SessionPatch(session, self._engine.outside.clock.now_ms() // 1000, title=title)
        answer = await self._engine.recorder.put(PatchSession(patch))
        if isinstance(answer, Refusal):
            raise UnknownSession
        return next(entry.event.payload.payload for entry in answer.entries if isinstance(entry.event, SessionEvent))

    async def delete(self, session: SessionId) -> None:
        """A busy session is cancelled first; its end is told, and `session deleted` is the last of it."""
        while True:
            await self._inputs.cancel(session)
            await self._engine.until_quiet(session)
            answer = await self._engine.recorder.put(DeleteSession(session))
            if not isinstance(answer, Refusal):
                return
            if answer.reason == "unknown_session":
                raise UnknownSession
