"""Client methods for sessions, prompts, runs and approvals."""

from typing import Any

from holdfast.client.request import RouteMethods
from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run, RunState
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import (
    AgentInfo,
    AgentInitRequest,
    AgentMessage,
    AnswerResult,
    CancelledRuns,
    FileReadRequest,
    NewSession,
    PromptAccepted,
    RunChange,
    SessionChange,
    SkipPermissions,
)

__all__ = ["SessionMethods"]


class SessionMethods(RouteMethods):
    """Routes for sessions, prompts, runs and approvals; `protocol/routes.py` documents each."""

    async def list_sessions(self, workspace: WorkspaceId) -> tuple[Session, ...]:
        """List the sessions of a workspace."""
        return await self._call(tuple[Session, ...], "list_sessions", id=workspace)

    async def create_session(self, workspace: WorkspaceId, title: str = "New session") -> Session:
        """Create a session."""
        return await self._call(Session, "create_session", body=NewSession(title), id=workspace)

    async def get_session(self, workspace: WorkspaceId, session: SessionId) -> Session:
        """Return a session."""
        return await self._call(Session, "get_session", id=workspace, sid=session)

    async def put_session(self, workspace: WorkspaceId, session: SessionId, title: str) -> Session:
        """Rename a session."""
        return await self._call(Session, "put_session", body=SessionChange(title), id=workspace, sid=session)

    async def delete_session(self, workspace: WorkspaceId, session: SessionId) -> None:
        """Delete a session."""
        await self._send("delete_session", id=workspace, sid=session)

    async def list_messages(self, workspace: WorkspaceId, session: SessionId) -> tuple[Message, ...]:
        """List the messages of a session."""
        return await self._call(tuple[Message, ...], "list_messages", id=workspace, sid=session)

    async def list_user_messages(self, workspace: WorkspaceId, session: SessionId) -> tuple[Message, ...]:
        """List the user messages of a session."""
        return await self._call(tuple[Message, ...], "list_user_messages", id=workspace, sid=session)

    async def list_all_user_messages(self, workspace: WorkspaceId) -> tuple[Message, ...]:
        """List the user messages of all sessions."""
        return await self._call(tuple[Message, ...], "list_all_user_messages", id=workspace)

    async def list_history(self, workspace: WorkspaceId, session: SessionId) -> tuple[FileVersion, ...]:
        """List the stored file versions of a session."""
        return await self._call(tuple[FileVersion, ...], "list_history", id=workspace, sid=session)

    async def list_read_files(self, workspace: WorkspaceId, session: SessionId) -> tuple[str, ...]:
        """List the files that were read in a session."""
        return await self._call(tuple[str, ...], "list_read_files", id=workspace, sid=session)

    async def mark_read(self, workspace: WorkspaceId, session: SessionId, path: str) -> None:
        """Record that a file was read."""
        await self._send("mark_read", body=FileReadRequest(session, path), id=workspace)

    async def last_read(self, workspace: WorkspaceId, session: SessionId, path: str) -> str:
        """Return the time at which a session last read a file."""
        query = [("session_id", session), ("path", path)]
        return await self._call(str, "last_read", query=query, id=workspace)

    # The agent

    async def agent_info(self, workspace: WorkspaceId) -> AgentInfo:
        """Return the model of the agent, and whether it is busy."""
        return await self._call(AgentInfo, "agent_info", id=workspace)

    async def send_prompt(self, workspace: WorkspaceId, prompt: AgentMessage) -> PromptAccepted:
        """Send a prompt, which is accepted when this returns (C-28: 200 counts as 202). A prompt with a run id is
        repeated after a broken connection, because the server accepts each run id once. Without one, the error is
        raised.
        """
        raw = await self._exchange("send_prompt", {"id": workspace}, body=prompt, can_repeat=bool(prompt.run_id))
        if raw.strip():
            return self._decode(PromptAccepted, "send_prompt", raw)
        # A server may return an empty body; the request then determines the result.
        return PromptAccepted(prompt.run_id, prompt.session_id, prompt.to_prompt().effective_delivery, 0)

    async def init_agent(self, workspace: WorkspaceId, *, interactive: bool = False) -> None:
        """Check that a model can be used. Changes nothing."""
        await self._send("init_agent", body=AgentInitRequest(interactive), id=workspace)

    async def update_agent(self, workspace: WorkspaceId) -> None:
        """Reload models and tools."""
        await self._send("update_agent", id=workspace)

    async def agent_session(self, workspace: WorkspaceId, session: SessionId) -> Session:
        """Return a session through the agent route."""
        return await self._call(Session, "agent_session", id=workspace, sid=session)

    @property
    def _client_query(self) -> list[tuple[str, str | int | None]]:
        """Query parameter that identifies this client as the originator."""
        return [("client_id", self.client_id)]

    async def cancel_session(self, workspace: WorkspaceId, session: SessionId) -> CancelledRuns:
        """Cancel all runs of a session, active and queued."""
        return await self._call(CancelledRuns, "cancel_session", query=self._client_query, id=workspace, sid=session)

    async def count_queued(self, workspace: WorkspaceId, session: SessionId) -> int:
        """Return the number of queued prompts."""
        return await self._call(int, "count_queued", id=workspace, sid=session)

    async def list_queued(self, workspace: WorkspaceId, session: SessionId) -> tuple[str, ...]:
        """List the queued prompts."""
        return await self._call(tuple[str, ...], "list_queued", id=workspace, sid=session)

    async def clear_queue(self, workspace: WorkspaceId, session: SessionId) -> CancelledRuns:
        """Cancel the queued runs."""
        return await self._call(CancelledRuns, "clear_queue", query=self._client_query, id=workspace, sid=session)

    async def summarize(self, workspace: WorkspaceId, session: SessionId) -> None:
        """Summarize a session. Returns when the summary is complete, without a time limit."""
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
        """List runs, filtered by session and state."""
        query = [("session_id", session), ("state", state), ("limit", limit), ("before", before)]
        return await self._call(tuple[Run, ...], "list_runs", query=query, id=workspace)

    async def get_run(self, workspace: WorkspaceId, run: RunId) -> Run:
        """Return a run."""
        return await self._call(Run, "get_run", id=workspace, run_id=run)

    async def patch_run(self, workspace: WorkspaceId, run: RunId, patch: RunChange) -> Run:
        """Move a queued run, or change its delivery."""
        return await self._call(Run, "patch_run", body=patch, id=workspace, run_id=run)

    async def cancel_run(self, workspace: WorkspaceId, run: RunId) -> Run:
        """Cancel a run."""
        return await self._call(Run, "cancel_run", query=self._client_query, id=workspace, run_id=run)

    # Approvals and questions

    async def get_skip(self, workspace: WorkspaceId) -> SkipPermissions:
        """Return whether permission requests are skipped."""
        return await self._call(SkipPermissions, "get_skip", id=workspace)

    async def set_skip(self, workspace: WorkspaceId, *, skip: bool) -> None:
        """Set whether permission requests are skipped."""
        await self._send("set_skip", body=SkipPermissions(skip), id=workspace)

    async def grant(self, workspace: WorkspaceId, answer: dict[str, Any]) -> AnswerResult:
        """Answer a permission request: the request as received, and the action. The result is False if it was resolved
        before.
        """
        query = [("client_id", self.client_id), ("via", self.via or None)]
        return await self._call(AnswerResult, "grant", query=query, body=answer, id=workspace)

    async def pending_permissions(self, workspace: WorkspaceId) -> tuple[PermissionRequest, ...]:
        """List the open permission requests."""
        return await self._call(tuple[PermissionRequest, ...], "pending_permissions", id=workspace)

    async def answer_question(self, workspace: WorkspaceId, answer: dict[str, Any]) -> AnswerResult:
        """Answer a batch of questions."""
        query = [("client_id", self.client_id), ("via", self.via or None)]
        return await self._call(AnswerResult, "answer_question", query=query, body=answer, id=workspace)

    async def cancel_question(self, workspace: WorkspaceId, batch: str | None = None) -> AnswerResult:
        """Dismiss a batch of questions; without an id, the one that is shown."""
        query = [("batch_id", batch), ("client_id", self.client_id), ("via", self.via or None)]
        return await self._call(AnswerResult, "cancel_question", query=query, id=workspace)

    async def pending_questions(self, workspace: WorkspaceId) -> tuple[QuestionRequest, ...]:
        """List the open batches of questions."""
        return await self._call(tuple[QuestionRequest, ...], "pending_questions", id=workspace)
