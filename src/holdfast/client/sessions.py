"""Methods for sessions, prompts, runs and asks."""

from typing import Any

from holdfast.client.calls import Calls
from holdfast.domain.asks import PermissionRequest, QuestionRequest
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run, RunState
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import (
    Accepted,
    AgentInfo,
    AgentInit,
    AgentMessage,
    Cancelled,
    FileRead,
    NewSession,
    Resolved,
    RunPatch,
    SessionChange,
    Skip,
)

__all__ = ["SessionCalls"]


class SessionCalls(Calls):
    """One method for each route; `protocol/routes.py` says what each does."""

    async def list_sessions(self, workspace: WorkspaceId) -> tuple[Session, ...]:
        return await self._ask(tuple[Session, ...], "list_sessions", id=workspace)

    async def create_session(self, workspace: WorkspaceId, title: str = "New session") -> Session:
        return await self._ask(Session, "create_session", body=NewSession(title), id=workspace)

    async def get_session(self, workspace: WorkspaceId, session: SessionId) -> Session:
        return await self._ask(Session, "get_session", id=workspace, sid=session)

    async def put_session(self, workspace: WorkspaceId, session: SessionId, title: str) -> Session:
        return await self._ask(Session, "put_session", body=SessionChange(title), id=workspace, sid=session)

    async def delete_session(self, workspace: WorkspaceId, session: SessionId) -> None:
        await self._send("delete_session", id=workspace, sid=session)

    async def list_messages(self, workspace: WorkspaceId, session: SessionId) -> tuple[Message, ...]:
        return await self._ask(tuple[Message, ...], "list_messages", id=workspace, sid=session)

    async def list_user_messages(self, workspace: WorkspaceId, session: SessionId) -> tuple[Message, ...]:
        return await self._ask(tuple[Message, ...], "list_user_messages", id=workspace, sid=session)

    async def list_all_user_messages(self, workspace: WorkspaceId) -> tuple[Message, ...]:
        return await self._ask(tuple[Message, ...], "list_all_user_messages", id=workspace)

    async def list_history(self, workspace: WorkspaceId, session: SessionId) -> tuple[FileVersion, ...]:
        return await self._ask(tuple[FileVersion, ...], "list_history", id=workspace, sid=session)

    async def list_read_files(self, workspace: WorkspaceId, session: SessionId) -> tuple[str, ...]:
        return await self._ask(tuple[str, ...], "list_read_files", id=workspace, sid=session)

    async def mark_read(self, workspace: WorkspaceId, session: SessionId, path: str) -> None:
        await self._send("mark_read", body=FileRead(session, path), id=workspace)

    async def last_read(self, workspace: WorkspaceId, session: SessionId, path: str) -> str:
        query = [("session_id", session), ("path", path)]
        return await self._ask(str, "last_read", query=query, id=workspace)

    # The agent

    async def agent_info(self, workspace: WorkspaceId) -> AgentInfo:
        return await self._ask(AgentInfo, "agent_info", id=workspace)

    async def send_prompt(self, workspace: WorkspaceId, prompt: AgentMessage) -> Accepted:
        """The prompt is accepted when this returns (C-28: 200 counts as 202). One with a run id may be sent twice:
        the server answers the same. Without one, a broken connection is told, never mended by sending again.
        """
        raw = await self._exchange("send_prompt", {"id": workspace}, body=prompt, can_repeat=bool(prompt.run_id))
        if raw.strip():
            return self._decode(Accepted, "send_prompt", raw)
        # A server may accept without a word; then what was asked is all there is to say.
        return Accepted(prompt.run_id, prompt.session_id, prompt.to_prompt().effective_delivery, 0)

    async def init_agent(self, workspace: WorkspaceId, *, interactive: bool = False) -> None:
        await self._send("init_agent", body=AgentInit(interactive), id=workspace)

    async def update_agent(self, workspace: WorkspaceId) -> None:
        await self._send("update_agent", id=workspace)

    async def agent_session(self, workspace: WorkspaceId, session: SessionId) -> Session:
        return await self._ask(Session, "agent_session", id=workspace, sid=session)

    @property
    def _mine(self) -> list[tuple[str, str | int | None]]:
        """Whose doing it is: everybody is told."""
        return [("client_id", self.client_id)]

    async def cancel_session(self, workspace: WorkspaceId, session: SessionId) -> Cancelled:
        return await self._ask(Cancelled, "cancel_session", query=self._mine, id=workspace, sid=session)

    async def count_queued(self, workspace: WorkspaceId, session: SessionId) -> int:
        return await self._ask(int, "count_queued", id=workspace, sid=session)

    async def list_queued(self, workspace: WorkspaceId, session: SessionId) -> tuple[str, ...]:
        return await self._ask(tuple[str, ...], "list_queued", id=workspace, sid=session)

    async def clear_queue(self, workspace: WorkspaceId, session: SessionId) -> Cancelled:
        return await self._ask(Cancelled, "clear_queue", query=self._mine, id=workspace, sid=session)

    async def summarize(self, workspace: WorkspaceId, session: SessionId) -> None:
        """Returns when the summary is done, however long it takes."""
        await self._exchange("summarize", {"id": workspace, "sid": session}, is_patient=True)

    # Runs

    async def list_runs(
        self,
        workspace: WorkspaceId,
        *,
        session: SessionId | None = None,
        state: RunState | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> tuple[Run, ...]:
        query = [("session_id", session), ("state", state), ("limit", limit), ("before", before)]
        return await self._ask(tuple[Run, ...], "list_runs", query=query, id=workspace)

    async def get_run(self, workspace: WorkspaceId, run: RunId) -> Run:
        return await self._ask(Run, "get_run", id=workspace, run_id=run)

    async def patch_run(self, workspace: WorkspaceId, run: RunId, patch: RunPatch) -> Run:
        return await self._ask(Run, "patch_run", body=patch, id=workspace, run_id=run)

    async def cancel_run(self, workspace: WorkspaceId, run: RunId) -> Run:
        return await self._ask(Run, "cancel_run", query=self._mine, id=workspace, run_id=run)

    # Asks

    async def get_skip(self, workspace: WorkspaceId) -> Skip:
        return await self._ask(Skip, "get_skip", id=workspace)

    async def set_skip(self, workspace: WorkspaceId, *, skip: bool) -> None:
        await self._send("set_skip", body=Skip(skip), id=workspace)

    async def grant(self, workspace: WorkspaceId, answer: dict[str, Any]) -> Resolved:
        """Answer an ask: the ask as it came, and what is to be done. False if somebody was quicker."""
        query = [("client_id", self.client_id), ("via", self.via or None)]
        return await self._ask(Resolved, "grant", query=query, body=answer, id=workspace)

    async def pending_permissions(self, workspace: WorkspaceId) -> tuple[PermissionRequest, ...]:
        return await self._ask(tuple[PermissionRequest, ...], "pending_permissions", id=workspace)

    async def answer_question(self, workspace: WorkspaceId, answer: dict[str, Any]) -> Resolved:
        query = [("client_id", self.client_id), ("via", self.via or None)]
        return await self._ask(Resolved, "answer_question", query=query, body=answer, id=workspace)

    async def cancel_question(self, workspace: WorkspaceId, batch: str | None = None) -> Resolved:
        """Dismiss a batch of questions; without its id the one that is shown."""
        query = [("batch_id", batch), ("client_id", self.client_id), ("via", self.via or None)]
        return await self._ask(Resolved, "cancel_question", query=query, id=workspace)

    async def pending_questions(self, workspace: WorkspaceId) -> tuple[QuestionRequest, ...]:
        return await self._ask(tuple[QuestionRequest, ...], "pending_questions", id=workspace)
