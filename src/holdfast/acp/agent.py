"""The agent side of the Agent Client Protocol, one method for each request."""

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar, cast

from acp import Agent, RequestError, schema
from acp.agent.router import build_agent_router
from acp.connection import Connection

from holdfast.acp.editor_connection import EditorConnection, StdioPipes
from holdfast.acp.initialize import greeting, has_forms
from holdfast.acp.prompt_content import command_in, servers_in, taken_in
from holdfast.acp.slash_commands import BUILT_IN, SlashCommands
from holdfast.acp.tool_calls import Json
from holdfast.acp.workspace_bridge import WorkspaceBridge
from holdfast.client.errors import ServerProblem
from holdfast.client.locate import ServerLocation
from holdfast.domain.errors import BadRequest, HoldfastError
from holdfast.domain.events import RunComplete
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Attachment
from holdfast.protocol.bodies import AgentMessage
from holdfast.tasks import TaskOwner

__all__ = ["HoldfastAgent"]

P = ParamSpec("P")
T = TypeVar("T")

_MODES = (
    schema.SessionMode(id="ask", name="Ask", description="Tools ask before they change something."),
    schema.SessionMode(
        id="yolo", name="Yolo", description="Tools act without asking; what a rule denies stays denied."
    ),
)
_INTERNAL = -32603
_log = logging.getLogger("holdfast.acp")


def _spoken(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Convert exceptions to JSON-RPC errors with one sentence. Details of internal errors are logged and not sent."""

    @functools.wraps(method)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except RequestError:
            raise
        except BadRequest as error:
            raise RequestError(-32602, str(error)) from None
        except ServerProblem as error:
            code = -32602 if error.status in (400, 404, 409, 413) else _INTERNAL
            raise RequestError(code, error.message or str(error)) from None
        except HoldfastError as error:
            raise RequestError(_INTERNAL, str(error)) from None
        except ConnectionError:
            raise RequestError(_INTERNAL, "The editor has left.") from None
        except Exception:
            _log.exception("a request failed")
            raise RequestError(_INTERNAL, "Something went wrong inside of holdfast acp.") from None

    return called


class HoldfastAgent:
    """Implements the protocol for one editor as a client of the server. Runs continue after the editor disconnects."""

    def __init__(self, where: ServerLocation, editor: EditorConnection) -> None:
        self._where = where
        self._editor = editor
        self._tasks = TaskOwner()
        self._lines: dict[str, asyncio.Task[WorkspaceBridge]] = {}
        """The bridge of each directory, from the start of its opening."""
        self._sessions: dict[str, WorkspaceBridge] = {}
        self._prompts: dict[str, dict[RunId, bool]] = {}
        """Pending runs of each session, and whether their cancellation was requested."""
        self.has_forms = False
        """True if the editor supports elicitation forms."""

    async def converse(self, pipes: StdioPipes) -> None:
        """Serve the connection until the editor disconnects."""
        router = build_agent_router(cast(Agent, self), use_unstable_protocol=True)
        connection = Connection(router, pipes, listening=False)
        self._editor.start(connection.send_request, connection.send_notification)
        try:
            await connection.main_loop()
        finally:
            await self._close()
            await self._editor.close()
            await connection.close()

    async def _close(self) -> None:
        for opening in self._lines.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        self._tasks.cancel_all()
        await self._tasks.drain()

    @_spoken
    async def initialize(
        self, protocol_version: int, client_capabilities: schema.ClientCapabilities | None = None, **_: object
    ) -> schema.InitializeResponse:
        """Store the client capabilities and return ours."""
        if client_capabilities is not None:
            self.has_forms = has_forms(client_capabilities.model_dump(by_alias=True, exclude_none=True))
        return schema.InitializeResponse.model_validate(greeting(protocol_version))

    @_spoken
    async def authenticate(self, method_id: str, **_: object) -> schema.AuthenticateResponse | None:
        """Reject the request: credentials are managed by `holdfast login`."""
        raise BadRequest(f"There is nothing to sign in to here ({method_id}): keys are stored by holdfast login.")

    # Sessions

    @_spoken
    async def new_session(
        self, cwd: str, mcp_servers: list[Any] | None = None, **_: object
    ) -> schema.NewSessionResponse:
        """Create a session and follow it."""
        line = await self._line(cwd)
        await self._lend(line, mcp_servers)
        made = await line.client.create_session(line.workspace)
        await line.attach(made.id, tells=False)
        self._sessions[made.id] = line
        for update in await self._opening(line):
            self._editor.tell_after_answer(made.id, update)
        return schema.NewSessionResponse(session_id=made.id, modes=_mode_state(line, made.id))

    @_spoken
    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: list[Any] | None = None, **_: object
    ) -> schema.LoadSessionResponse:
        """Open an existing session and replay its messages."""
        line = await self._taken_up(cwd, session_id, tells=True)
        await self._lend(line, mcp_servers)
        return schema.LoadSessionResponse(modes=_mode_state(line, session_id))

    @_spoken
    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: list[Any] | None = None, **_: object
    ) -> schema.ResumeSessionResponse:
        """Open an existing session without a replay."""
        line = await self._taken_up(cwd, session_id, tells=False)
        await self._lend(line, mcp_servers)
        return schema.ResumeSessionResponse(modes=_mode_state(line, session_id))

    async def _lend(self, line: WorkspaceBridge, servers: list[Any] | None) -> None:
        await line.lend(servers_in(server.model_dump(by_alias=True, exclude_none=True) for server in servers or ()))

    async def _taken_up(self, cwd: str, session_id: str, *, tells: bool) -> WorkspaceBridge:
        line = await self._line(cwd)
        if not await line.attach(SessionId(session_id), tells=tells):
            raise RequestError(-32002, "There is no such session in this directory: list them.")
        self._sessions[session_id] = line
        for update in await self._opening(line):
            self._editor.tell(session_id, update)
        await self._editor.flushed()
        return line

    @_spoken
    async def close_session(self, session_id: str, **_: object) -> schema.CloseSessionResponse:
        """Stop following a session. The editor's own runs are cancelled, as the protocol requires."""
        line = self._sessions.pop(session_id, None)
        if line is not None:
            await self._stop(line, session_id)
            line.detach(SessionId(session_id))
        return schema.CloseSessionResponse()

    @_spoken
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: object
    ) -> schema.ListSessionsResponse:
        """List the sessions of a directory, or of all open ones, the latest first. Sub-agent sessions are omitted."""
        lines = [await self._line(cwd)] if cwd else [await self._line(name) for name in tuple(self._lines)]
        found: list[schema.SessionInfo] = []
        for line in lines:
            sessions = await line.client.list_sessions(line.workspace)
            found += [
                schema.SessionInfo(
                    session_id=item.id, cwd=line.directory, title=item.title, updated_at=_time(item.updated_at)
                )
                for item in sorted(sessions, key=lambda item: -item.updated_at)
                if not item.parent_session_id
            ]
        return schema.ListSessionsResponse(sessions=found)

    @_spoken
    async def set_session_mode(self, session_id: str, mode_id: str, **_: object) -> schema.SetSessionModeResponse:
        """Set the approval mode of a session. Switching to `yolo` also grants its open permission requests."""
        if mode_id not in {mode.id for mode in _MODES}:
            raise BadRequest("A mode is ask or yolo.")
        line = self._of(session_id)
        line.modes[SessionId(session_id)] = mode_id
        if mode_id == "yolo":
            line.asking.relax(SessionId(session_id))
        return schema.SetSessionModeResponse()

    # Prompts

    @_spoken
    async def prompt(self, session_id: str, prompt: list[Any], **_: object) -> schema.PromptResponse:
        """Send a prompt, or execute a built-in command, and wait for the end of the run."""
        # Register the run before the first await, so that an immediate cancel request finds it.
        run = RunId(os.urandom(16).hex())
        runs = self._prompts.setdefault(session_id, {})
        runs[run] = False
        try:
            line = self._of(session_id)
            blocks = [block.model_dump(by_alias=True, exclude_none=True) for block in prompt]
            text, files = taken_in(blocks, line.directory)
            name, arguments = command_in(text)
            if name in BUILT_IN and not files:
                text = await SlashCommands(line, SessionId(session_id)).do(name, arguments)
                if not text:
                    await self._editor.flushed()
                    return schema.PromptResponse(stop_reason="end_turn")
            return await self._run(line, session_id, run, text, files)
        finally:
            runs.pop(run, None)

    async def _run(
        self, line: WorkspaceBridge, session_id: str, run: RunId, text: str, files: tuple[Attachment, ...]
    ) -> schema.PromptResponse:
        session = SessionId(session_id)
        ended = line.expect(session, run)
        try:
            message = AgentMessage(
                session,
                text,
                run,
                attachments=files or None,
                client_id=line.client.client_id,
                interactive=True,
                yolo=line.modes.get(session) == "yolo",
            )
            await line.send(message)
            if self._prompts[session_id][run]:
                await line.client.cancel_run(line.workspace, run)
            end = await ended
        finally:
            line.forget(run)
        await self._editor.flushed()
        return schema.PromptResponse(stop_reason=await _stop_reason(line, end))

    @_spoken
    async def cancel(self, session_id: str, **_: object) -> None:
        """Cancel the editor's own runs in a session, or else the session's current run."""
        line = self._sessions.get(session_id)
        if line is not None and not await self._stop(line, session_id):
            # The editor has no run of its own, so the request refers to the run of another client.
            await line.client.cancel_session(line.workspace, SessionId(session_id))

    async def _stop(self, line: WorkspaceBridge, session_id: str) -> bool:
        """Cancel the editor's own runs. Returns whether there were any."""
        runs = self._prompts.get(session_id, {})
        for run in tuple(runs):
            runs[run] = True
            try:
                await line.client.cancel_run(line.workspace, run)
            except ServerProblem as problem:
                if problem.status != 404:
                    raise
                # The prompt has not reached the server yet; `_run` checks the flag after sending it.
        return bool(runs)

    # Bridges

    async def _line(self, cwd: str) -> WorkspaceBridge:
        if not os.path.isabs(cwd) or "\0" in cwd:
            raise BadRequest("cwd must be an absolute path.")
        directory = await asyncio.to_thread(os.path.realpath, cwd)
        opening = self._lines.get(directory)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._tasks.start(self._opened(directory), name="open", done=asyncio.Task.exception)
            self._lines[directory] = opening
        return await asyncio.shield(opening)

    async def _opened(self, directory: str) -> WorkspaceBridge:
        environment = tuple(f"{name}={value}" for name, value in os.environ.items())
        line = WorkspaceBridge(self._where, directory, environment, self._editor)
        line.asking.has_forms = self.has_forms
        try:
            await line.open()
        except BaseException:
            await line.close()
            raise
        return line

    def _of(self, session_id: str) -> WorkspaceBridge:
        line = self._sessions.get(session_id)
        if line is None:
            raise RequestError(-32002, "That session is not open here: load it first.")
        return line

    async def _opening(self, line: WorkspaceBridge) -> list[Json]:
        return [await SlashCommands(line, SessionId("")).available(), *await line.settings_notes()]


async def _stop_reason(line: WorkspaceBridge, end: RunComplete) -> schema.StopReason:
    """Return the stop reason of a run. Raises `RequestError` with the reason for a failed run."""
    if end.outcome == "cancelled":
        return "cancelled"
    if end.outcome == "interrupted":
        raise RequestError(
            _INTERNAL, "The server was stopped while it worked on this. What was done is kept: go on from there."
        )
    if end.outcome == "failed":
        if end.error.startswith("limit:"):
            return "max_turn_requests"
        raise RequestError(_INTERNAL, end.error or "The run failed.")
    message = await line.last_message(end)
    finish = message.finish if message is not None else None
    if finish is not None and finish.reason == "max_tokens":
        return "max_tokens"
    return "refusal" if finish is not None and finish.reason == "content_filter" else "end_turn"


def _mode_state(line: WorkspaceBridge, session_id: str) -> schema.SessionModeState:
    current = line.modes.get(SessionId(session_id), "ask")
    return schema.SessionModeState(current_mode_id=current, available_modes=list(_MODES))


def _time(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
