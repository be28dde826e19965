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
from holdfast.acp.initialize import initialize_result, supports_forms
from holdfast.acp.prompt_content import mcp_settings, parse_prompt, split_command
from holdfast.acp.slash_commands import BUILT_IN, SlashCommands
from holdfast.acp.tool_calls import Json
from holdfast.acp.workspace_bridge import WorkspaceBridge
from holdfast.client.errors import ServerProblem
from holdfast.client.server_launcher import ServerLocation
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
        id="yolo", name="Yolo", description="Tools act without asking; calls that a rule denies stay denied."
    ),
)
_INTERNAL_ERROR = -32603
_log = logging.getLogger("holdfast.acp")


def _with_rpc_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Convert exceptions to JSON-RPC errors with one sentence. Details of internal errors are logged and not sent."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except RequestError:
            raise
        except BadRequest as error:
            raise RequestError(-32602, str(error)) from None
        except ServerProblem as error:
            code = -32602 if error.status in (400, 404, 409, 413) else _INTERNAL_ERROR
            raise RequestError(code, error.message or str(error)) from None
        except HoldfastError as error:
            raise RequestError(_INTERNAL_ERROR, str(error)) from None
        except ConnectionError:
            raise RequestError(_INTERNAL_ERROR, "The editor has disconnected.") from None
        except Exception:
            _log.exception("a request failed")
            raise RequestError(_INTERNAL_ERROR, "Internal error of holdfast acp.") from None

    return wrapper


class HoldfastAgent:
    """Implements the protocol for one editor as a client of the server. Runs continue after the editor disconnects."""

    def __init__(self, location: ServerLocation, editor: EditorConnection) -> None:
        self._location = location
        self._editor = editor
        self._tasks = TaskOwner()
        self._bridges: dict[str, asyncio.Task[WorkspaceBridge]] = {}
        """The bridge of each directory, from the start of its opening."""
        self._sessions: dict[str, WorkspaceBridge] = {}
        self._prompts: dict[str, dict[RunId, bool]] = {}
        """Pending runs of each session, and whether their cancellation was requested."""
        self.supports_forms = False
        """True if the editor supports elicitation forms."""

    async def serve(self, pipes: StdioPipes) -> None:
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
        for opening in self._bridges.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        self._tasks.cancel_all()
        await self._tasks.drain()

    @_with_rpc_errors
    async def initialize(
        self, protocol_version: int, client_capabilities: schema.ClientCapabilities | None = None, **_: object
    ) -> schema.InitializeResponse:
        """Store the client capabilities and return ours."""
        if client_capabilities is not None:
            self.supports_forms = supports_forms(client_capabilities.model_dump(by_alias=True, exclude_none=True))
        return schema.InitializeResponse.model_validate(initialize_result(protocol_version))

    @_with_rpc_errors
    async def authenticate(self, method_id: str, **_: object) -> schema.AuthenticateResponse | None:
        """Reject the request: credentials are managed by `holdfast login`."""
        raise BadRequest(f"Signing in is not supported ({method_id}): keys are stored by holdfast login.")

    # Sessions

    @_with_rpc_errors
    async def new_session(
        self, cwd: str, mcp_servers: list[Any] | None = None, **_: object
    ) -> schema.NewSessionResponse:
        """Create a session and follow it."""
        bridge = await self._bridge_for(cwd)
        await self._add_mcp_servers(bridge, mcp_servers)
        created = await bridge.client.create_session(bridge.workspace)
        await bridge.attach(created.id, replays=False)
        self._sessions[created.id] = bridge
        for update in await self._initial_updates(bridge):
            self._editor.send_update_after_response(created.id, update)
        return schema.NewSessionResponse(session_id=created.id, modes=_mode_state(bridge, created.id))

    @_with_rpc_errors
    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: list[Any] | None = None, **_: object
    ) -> schema.LoadSessionResponse:
        """Open an existing session and replay its messages."""
        bridge = await self._open_session(cwd, session_id, replays=True)
        await self._add_mcp_servers(bridge, mcp_servers)
        return schema.LoadSessionResponse(modes=_mode_state(bridge, session_id))

    @_with_rpc_errors
    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: list[Any] | None = None, **_: object
    ) -> schema.ResumeSessionResponse:
        """Open an existing session without a replay."""
        bridge = await self._open_session(cwd, session_id, replays=False)
        await self._add_mcp_servers(bridge, mcp_servers)
        return schema.ResumeSessionResponse(modes=_mode_state(bridge, session_id))

    async def _add_mcp_servers(self, bridge: WorkspaceBridge, servers: list[Any] | None) -> None:
        await bridge.add_mcp_servers(
            mcp_settings(server.model_dump(by_alias=True, exclude_none=True) for server in servers or ())
        )

    async def _open_session(self, cwd: str, session_id: str, *, replays: bool) -> WorkspaceBridge:
        bridge = await self._bridge_for(cwd)
        if not await bridge.attach(SessionId(session_id), replays=replays):
            raise RequestError(-32002, "There is no such session in this directory: see the list of sessions.")
        self._sessions[session_id] = bridge
        for update in await self._initial_updates(bridge):
            self._editor.send_update(session_id, update)
        await self._editor.flush()
        return bridge

    @_with_rpc_errors
    async def close_session(self, session_id: str, **_: object) -> schema.CloseSessionResponse:
        """Stop following a session. The editor's own runs are cancelled, as the protocol requires."""
        bridge = self._sessions.pop(session_id, None)
        if bridge is not None:
            await self._cancel_own_runs(bridge, session_id)
            bridge.detach(SessionId(session_id))
        return schema.CloseSessionResponse()

    @_with_rpc_errors
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: object
    ) -> schema.ListSessionsResponse:
        """List the sessions of a directory, or of all open ones, the latest first. Sub-agent sessions are omitted."""
        bridges = (
            [await self._bridge_for(cwd)] if cwd else [await self._bridge_for(name) for name in tuple(self._bridges)]
        )
        found: list[schema.SessionInfo] = []
        for bridge in bridges:
            sessions = await bridge.client.list_sessions(bridge.workspace)
            found += [
                schema.SessionInfo(
                    session_id=item.id, cwd=bridge.directory, title=item.title, updated_at=_iso_time(item.updated_at)
                )
                for item in sorted(sessions, key=lambda item: -item.updated_at)
                if not item.parent_session_id
            ]
        return schema.ListSessionsResponse(sessions=found)

    @_with_rpc_errors
    async def set_session_mode(self, session_id: str, mode_id: str, **_: object) -> schema.SetSessionModeResponse:
        """Set the approval mode of a session. Switching to `yolo` also grants its open permission requests."""
        if mode_id not in {mode.id for mode in _MODES}:
            raise BadRequest("A mode is ask or yolo.")
        bridge = self._bridge_of_session(session_id)
        bridge.modes[SessionId(session_id)] = mode_id
        if mode_id == "yolo":
            bridge.approvals.allow_all(SessionId(session_id))
        return schema.SetSessionModeResponse()

    # Prompts

    @_with_rpc_errors
    async def prompt(self, session_id: str, prompt: list[Any], **_: object) -> schema.PromptResponse:
        """Send a prompt, or execute a built-in command, and wait for the end of the run."""
        # Register the run before the first await, so that an immediate cancel request finds it.
        run = RunId(os.urandom(16).hex())
        runs = self._prompts.setdefault(session_id, {})
        runs[run] = False
        try:
            bridge = self._bridge_of_session(session_id)
            blocks = [block.model_dump(by_alias=True, exclude_none=True) for block in prompt]
            text, files = parse_prompt(blocks, bridge.directory)
            name, arguments = split_command(text)
            if name in BUILT_IN and not files:
                text = await SlashCommands(bridge, SessionId(session_id)).execute(name, arguments)
                if not text:
                    await self._editor.flush()
                    return schema.PromptResponse(stop_reason="end_turn")
            return await self._run(bridge, session_id, run, text, files)
        finally:
            runs.pop(run, None)

    async def _run(
        self, bridge: WorkspaceBridge, session_id: str, run: RunId, text: str, files: tuple[Attachment, ...]
    ) -> schema.PromptResponse:
        session = SessionId(session_id)
        end_of_run = bridge.expect_end(session, run)
        try:
            message = AgentMessage(
                session,
                text,
                run,
                attachments=files or None,
                client_id=bridge.client.client_id,
                interactive=True,
                yolo=bridge.modes.get(session) == "yolo",
            )
            await bridge.send(message)
            if self._prompts[session_id][run]:
                await bridge.client.cancel_run(bridge.workspace, run)
            end = await end_of_run
        finally:
            bridge.forget_run(run)
        await self._editor.flush()
        return schema.PromptResponse(stop_reason=await _stop_reason(bridge, end))

    @_with_rpc_errors
    async def cancel(self, session_id: str, **_: object) -> None:
        """Cancel the editor's own runs in a session, or else the session's current run."""
        bridge = self._sessions.get(session_id)
        if bridge is not None and not await self._cancel_own_runs(bridge, session_id):
            # The editor has no run of its own, so the request refers to the run of another client.
            await bridge.client.cancel_session(bridge.workspace, SessionId(session_id))

    async def _cancel_own_runs(self, bridge: WorkspaceBridge, session_id: str) -> bool:
        """Cancel the editor's own runs. Returns whether there were any."""
        runs = self._prompts.get(session_id, {})
        for run in tuple(runs):
            runs[run] = True
            try:
                await bridge.client.cancel_run(bridge.workspace, run)
            except ServerProblem as problem:
                if problem.status != 404:
                    raise
                # The prompt has not reached the server yet; `_run` checks the flag after sending it.
        return bool(runs)

    # Bridges

    async def _bridge_for(self, cwd: str) -> WorkspaceBridge:
        if not os.path.isabs(cwd) or "\0" in cwd:
            raise BadRequest("cwd must be an absolute path.")
        directory = await asyncio.to_thread(os.path.realpath, cwd)
        opening = self._bridges.get(directory)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._tasks.start(self._open_bridge(directory), name="open", done=asyncio.Task.exception)
            self._bridges[directory] = opening
        return await asyncio.shield(opening)

    async def _open_bridge(self, directory: str) -> WorkspaceBridge:
        environment = tuple(f"{name}={value}" for name, value in os.environ.items())
        bridge = WorkspaceBridge(self._location, directory, environment, self._editor)
        bridge.approvals.supports_forms = self.supports_forms
        try:
            await bridge.open()
        except BaseException:
            await bridge.close()
            raise
        return bridge

    def _bridge_of_session(self, session_id: str) -> WorkspaceBridge:
        bridge = self._sessions.get(session_id)
        if bridge is None:
            raise RequestError(-32002, "That session is not open here: load it first.")
        return bridge

    async def _initial_updates(self, bridge: WorkspaceBridge) -> list[Json]:
        return [await SlashCommands(bridge, SessionId("")).available_update(), *await bridge.settings_notes()]


async def _stop_reason(bridge: WorkspaceBridge, end: RunComplete) -> schema.StopReason:
    """Return the stop reason of a run. Raises `RequestError` with the reason for a failed run."""
    if end.outcome == "cancelled":
        return "cancelled"
    if end.outcome == "interrupted":
        raise RequestError(
            _INTERNAL_ERROR,
            "The server was stopped during this run. Its results so far are kept: send a prompt to continue.",
        )
    if end.outcome == "failed":
        if end.error.startswith("limit:"):
            return "max_turn_requests"
        raise RequestError(_INTERNAL_ERROR, end.error or "The run failed.")
    message = await bridge.last_message(end)
    finish = message.finish if message is not None else None
    if finish is not None and finish.reason == "max_tokens":
        return "max_tokens"
    return "refusal" if finish is not None and finish.reason == "content_filter" else "end_turn"


def _mode_state(bridge: WorkspaceBridge, session_id: str) -> schema.SessionModeState:
    current = bridge.modes.get(SessionId(session_id), "ask")
    return schema.SessionModeState(current_mode_id=current, available_modes=list(_MODES))


def _iso_time(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
