"""Creates, renames and deletes sessions."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from holdfast.domain.errors import UnknownSession
from holdfast.domain.events import SessionEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.sessions import Session, SessionPatch
from holdfast.domain.store_operations import CreateSession, DeleteSession, PatchSession, PutMessage, Refusal
from holdfast.engine.engine import Engine
from holdfast.engine.inputs import Inputs
from holdfast.engine.message_factory import MessageFactory

__all__ = ["CleanUp", "Sessions", "new_session"]

CleanUp: TypeAlias = Callable[[Sequence[SessionId]], Awaitable[None]]


def new_session(session: SessionId, title: str, parent: SessionId | None, now: int) -> Session:
    """Return an empty session. `now` is in Unix seconds."""
    return Session(
        id=session,
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


class Sessions:
    """Sessions of one workspace."""

    def __init__(self, engine: Engine, inputs: Inputs) -> None:
        self._engine = engine
        self._inputs = inputs

    async def create(
        self, title: str = "New session", parent: SessionId | None = None, id: SessionId | None = None
    ) -> Session:
        """Create a session, with a new id unless one is given."""
        now = self._engine.clock.now_ms() // 1000
        session = new_session(id or SessionId(self._engine.new_id()), title, parent, now)
        await self._engine.recorder.put(CreateSession(session))
        return session

    async def note_shell(self, session: SessionId, command: ShellCommand) -> None:
        """Store a command that the user ran. An active turn sees it after its current step.

        No effect if the session does not exist.
        """
        factory = MessageFactory(session, RunId(""), self._engine.clock.now_ms() // 1000, self._engine.new_id)
        message = factory.shell(command)
        answer = await self._engine.recorder.put(PutMessage(message))
        turn = self._engine.turn_of(session)
        if turn is not None and not isinstance(answer, Refusal):
            turn.queue_message(message)

    async def rename(self, session: SessionId, title: str) -> Session:
        """Change the title. Raises `UnknownSession`."""
        patch = SessionPatch(session, self._engine.clock.now_ms() // 1000, title=title)
        answer = await self._engine.recorder.put(PatchSession(patch))
        if isinstance(answer, Refusal):
            raise UnknownSession
        return next(entry.event.change.object for entry in answer.entries if isinstance(entry.event, SessionEvent))

    async def delete(self, session: SessionId, clean_up: CleanUp | None = None) -> None:
        """Delete a session with its children. A busy one is cancelled first; its end is published, and `session
        deleted` is its last event. It accepts no prompts from the start of the deletion.

        `clean_up` removes data outside of the store and is called with the ids of all deleted sessions: before the
        deletion, so that a crash leaves no data without a session, and after it.
        """
        with self._inputs.refuse_prompts(session):
            while True:
                await self._inputs.cancel(session)
                await self._engine.wait_until_idle(session)
                family = await self._family(session)
                if clean_up is not None:
                    await clean_up(family)
                answer = await self._engine.recorder.put(DeleteSession(session))
                if not isinstance(answer, Refusal):
                    break
                if answer.reason == "unknown_session":
                    raise UnknownSession
        if clean_up is not None:
            await clean_up(family)

    async def _family(self, session: SessionId) -> list[SessionId]:
        """Return the session and its descendants."""
        parents = {
            item.id: item.parent_session_id
            for item in (await self._engine.run_context.ledger.snapshot(self._engine.record.id, None)).sessions
        }
        family = [session]
        for member in family:
            family += (child for child, parent in parents.items() if parent == member and child not in family)
        return family
