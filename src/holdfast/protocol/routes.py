"""The route table of `/v1`: the server dispatches by it, OpenAPI is generated from it, clients call it.

`{id}` is a workspace, `{sid}` a session. A route without a response type returns an empty body.
"""

from typing import Any

from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.doctor import Health
from holdfast.domain.extensions import CommandInfo, SubagentInfo
from holdfast.domain.files import FileVersion, UndoReport, UndoRequest
from holdfast.domain.messages import Message
from holdfast.domain.processes import JobInfo, JobOutput, SandboxState, ShellResult
from holdfast.domain.runs import Attachment, Run
from holdfast.domain.sessions import Session
from holdfast.domain.usage import Stats
from holdfast.protocol import bodies, extension_routes
from holdfast.protocol.extension_routes import LSP_ROUTES, MCP_ROUTES
from holdfast.protocol.route import PREFIX, Query, Route, get, post

__all__ = ["CONFIG_ROUTES", "PREFIX", "ROUTES", "Query", "Route"]


_ANY = dict[str, Any]
_C = "/workspaces/{id}/config"
_P = "/workspaces/{id}/project"

CONFIG_ROUTES: tuple[Route, ...] = (
    get(
        "config_problems",
        _C + "/problems",
        "Mistakes in the settings files.",
        tuple[bodies.ConfigProblem, ...],
        errors=(404,),
    ),
    post("config_set", _C + "/set", "Set a key.", bodies.ConfigChange, errors=(400, 404, 409, 503)),
    post("config_remove", _C + "/remove", "Remove a key.", bodies.ConfigChange, errors=(400, 404, 409, 503)),
    post("config_model", _C + "/model", "Select a model.", bodies.ConfigModelRequest, errors=(400, 404, 409, 503)),
    post("config_compact", _C + "/compact", "Set the compact display.", _ANY, errors=(400, 404, 409, 503)),
    post("config_provider_key", _C + "/provider-key", "Set a key of a provider.", _ANY, errors=(400, 404, 409, 503)),
    post("config_refresh_oauth", _C + "/refresh-oauth", "Refresh a token.", _ANY, errors=(400, 404, 409, 503)),
    post("config_import_copilot", _C + "/import-copilot", "Not built.", None, _ANY, errors=(404,)),
    get(
        "needs_init",
        _P + "/needs-init",
        "Whether to offer to create a project description.",
        bodies.ProjectInitStatus,
        errors=(404,),
    ),
    post(
        "init_project",
        _P + "/init",
        "Record that the offer to create a project description was made.",
        errors=(404, 503),
    ),
    get(
        "init_prompt",
        _P + "/init-prompt",
        "The prompt that creates a project description.",
        bodies.InitPrompt,
        errors=(404,),
    ),
)


_CLIENT = Query("client_id", is_required=True)
_BY = Query("client_id")
_VIA = Query("via")
_STREAM = (Query("client_id"), Query("since", kind="integer"))
_PAGE = (Query("session_id"), Query("state"), Query("limit", kind="integer"), Query("before", kind="integer"))
_LOG = (Query("after", kind="integer"), Query("limit", kind="integer"))
_LIST = tuple[_ANY, ...]
_W = "/workspaces/{id}"
_S = _W + "/sessions/{sid}"
_A = _W + "/agent/sessions/{sid}"


_SYSTEM = (
    get("health", "/health", "Liveness, and the ability to store prompts.", errors=(503,)),
    get("version", "/version", "Version and identity of the server.", bodies.VersionInfo),
    get("server_config", "/config", "The settings that apply to every workspace.", _ANY),
    post("control", "/control", "Stop the server.", bodies.ServerControl, errors=(400, 409)),
    get("list_nodes", "/nodes", "The servers of the cluster.", bodies.NodeList, errors=(503,)),
    post(
        "drain_node",
        "/nodes/{node}/drain",
        "Let a server of the cluster finish its active runs, release its workspaces, and exit.",
        errors=(404, 409, 503),
    ),
    post(
        "evict_node",
        "/nodes/{node}/evict",
        "Declare a server of the cluster dead: its workspaces are taken over, and it kills its tools.",
        errors=(404, 409, 503),
    ),
    Route("retire_client", "DELETE", "/clients/{client_id}", "Detach a client from all workspaces.", errors=(400,)),
    get(
        "metrics",
        "/metrics",
        "Metrics for Prometheus, if enabled in the settings.",
        str,
        errors=(404,),
        media="text/plain; version=0.0.4; charset=utf-8",
        is_at_root=True,
    ),
    get(
        "all_stats",
        "/stats",
        "Statistics of all workspaces that were ever opened.",
        Stats,
        query=(Query("zone"),),
        errors=(400,),
    ),
    get("openapi", "/openapi.json", "This document.", _ANY),
    get("docs", "/docs/", "This document as an HTML page.", str, is_page=True),
)

_WEB_PAGE = (
    post(
        "open_web",
        "/web",
        "Create a login link for the web page; over the socket only.",
        bodies.WebLinkRequest,
        bodies.WebLink,
        errors=(400, 409),
    ),
    Route(
        "close_web",
        "DELETE",
        "/web",
        "Close the web page's port and revoke all logins; over the socket only.",
        errors=(409,),
    ),
    post(
        "enter_page",
        "/web/exchange",
        "Exchange a login code for a token; a code is valid once.",
        bodies.PageLoginRequest,
        bodies.PageCredentials,
        errors=(409,),
    ),
    post(
        "page_pass",
        "/web/page",
        "Issue a new token to a page that is logged in.",
        None,
        bodies.PageCredentials,
        errors=(409,),
    ),
    post(
        "greet_page",
        "/web/hello",
        "First half of a page's return: the server proves that it knows the page.",
        bodies.PageChallengeRequest,
        bodies.PageChallenge,
        errors=(409,),
    ),
    post(
        "return_page",
        "/web/return",
        "Second half of a page's return: the page proves its identity and receives a token.",
        bodies.PageProof,
        bodies.PageCredentials,
        errors=(409,),
    ),
)

_WORKSPACES = (
    get("list_workspaces", "/workspaces", "Open workspaces.", tuple[bodies.WorkspaceBody, ...], errors=(400,)),
    post(
        "create_workspace",
        "/workspaces",
        "Open the workspace of a directory, or join it.",
        bodies.NewWorkspace,
        bodies.WorkspaceBody,
        errors=(400, 409, 503),
    ),
    get("get_workspace", _W, "A workspace.", bodies.WorkspaceBody, errors=(400, 404)),
    Route("leave_workspace", "DELETE", _W, "Detach a client from a workspace.", query=(_CLIENT,), errors=(400,)),
    post(
        "set_current_session",
        _W + "/current-session",
        "Set the session that a client shows.",
        bodies.CurrentSession,
        query=(_CLIENT,),
        errors=(400, 404, 409),
    ),
    get("events", _W + "/events", "The stream of events.", query=_STREAM, errors=(400, 404, 409), streams=True),
    get(
        "snapshot",
        _W + "/snapshot",
        "The complete state for a client, with its cursor.",
        bodies.SnapshotBody,
        query=(Query("session_id"),),
        errors=(404,),
    ),
    get(
        "read_log",
        _W + "/log",
        "Stored events with their times, oldest first; of a session, or of a run from its acceptance to its end.",
        bodies.EventLogPage,
        query=(*_LOG, Query("session_id"), Query("run_id")),
        errors=(400, 404),
    ),
    get("get_config", _W + "/config", "The effective configuration.", _ANY, errors=(400, 404)),
    get("list_providers", _W + "/providers", "Known providers.", _LIST, errors=(400, 404)),
    get(
        "doctor",
        _W + "/doctor",
        "Check everything the workspace needs, with remedies for the problems found.",
        Health,
        query=(Query("areas"),),
        errors=(404,),
    ),
    get(
        "stats",
        _W + "/stats",
        "Statistics of the workspace: sessions, runs, models, tools, tokens, cost.",
        Stats,
        query=(Query("zone"),),
        errors=(400, 404),
    ),
)

_SESSIONS = (
    get("list_sessions", _W + "/sessions", "Sessions, latest first.", tuple[Session, ...], errors=(404,)),
    post("create_session", _W + "/sessions", "Create a session.", bodies.NewSession, Session, errors=(400, 404)),
    get("get_session", _S, "A session.", Session, errors=(400, 404)),
    Route("put_session", "PUT", _S, "Rename a session.", bodies.SessionChange, Session, errors=(400, 404)),
    Route("delete_session", "DELETE", _S, "Delete a session with all its data.", errors=(400, 404)),
    get("list_messages", _S + "/messages", "The conversation.", tuple[Message, ...], errors=(404,)),
    get("list_user_messages", _S + "/messages/user", "Prompts, newest first.", tuple[Message, ...], errors=(404,)),
    get(
        "list_all_user_messages", _W + "/messages/user", "Prompts of all sessions.", tuple[Message, ...], errors=(404,)
    ),
    get("list_history", _S + "/history", "Versions of changed files.", tuple[FileVersion, ...], errors=(404,)),
    get(
        "list_read_files", _S + "/filetracker/files", "Files that the session has read.", tuple[str, ...], errors=(404,)
    ),
    post(
        "mark_read",
        _W + "/filetracker/read",
        "Record that a session has read a file.",
        bodies.FileReadRequest,
        errors=(400, 404),
    ),
    get(
        "last_read",
        _W + "/filetracker/lastread",
        "When a session last read a file.",
        str,
        query=(Query("session_id", is_required=True), Query("path", is_required=True)),
        errors=(400, 404),
    ),
)

_AGENT = (
    get("agent_info", _W + "/agent", "Whether the agent is busy, and its model.", bodies.AgentInfo, errors=(404,)),
    post(
        "send_prompt",
        _W + "/agent",
        "Send a prompt. It is on disk before the response is sent.",
        bodies.AgentMessage,
        bodies.PromptAccepted,
        status=202,
        errors=(400, 404, 409, 413, 503),
    ),
    post(
        "init_agent",
        _W + "/agent/init",
        "Check that a model can be used. Changes nothing.",
        bodies.AgentInitRequest,
        errors=(400, 404),
        request_is_optional=True,
    ),
    post("update_agent", _W + "/agent/update", "Reload models and tools.", errors=(400, 404)),
    get("agent_session", _A, "A session as the agent sees it.", Session, errors=(400, 404)),
    post(
        "cancel_session",
        _A + "/cancel",
        "Cancel all current runs of a session.",
        None,
        bodies.CancelledRuns,
        query=(_BY,),
        errors=(404, 503),
    ),
    get("count_queued", _A + "/prompts/queued", "The number of waiting prompts.", int, errors=(404,)),
    get("list_queued", _A + "/prompts/list", "The texts of the waiting prompts.", tuple[str, ...], errors=(404,)),
    post(
        "clear_queue",
        _A + "/prompts/clear",
        "Remove all waiting prompts.",
        None,
        bodies.CancelledRuns,
        query=(_BY,),
        errors=(404, 503),
    ),
    post(
        "summarize",
        _A + "/summarize",
        "Summarise a session. The response follows the end of the summary.",
        errors=(400, 404, 409, 503),
    ),
    get(
        "default_small_model",
        _W + "/agent/default-small-model",
        "The small model of a provider.",
        bodies.SelectedModel,
        query=(Query("provider_id"),),
        errors=(400, 404),
    ),
)

_RUNS = (
    get("list_runs", _W + "/runs", "Runs, newest first.", tuple[Run, ...], query=_PAGE, errors=(400, 404)),
    get("get_run", _W + "/runs/{run_id}", "A run.", Run, errors=(404,)),
    Route(
        "patch_run",
        "PATCH",
        _W + "/runs/{run_id}",
        "Move a waiting run, or change its delivery.",
        bodies.RunChange,
        Run,
        errors=(400, 404, 409, 503),
    ),
    post(
        "cancel_run",
        _W + "/runs/{run_id}/cancel",
        "Cancel one run.",
        None,
        Run,
        query=(_BY,),
        errors=(404, 409, 503),
    ),
)

_APPROVALS = (
    get(
        "get_skip",
        _W + "/permissions/skip",
        "Whether permission requests are skipped.",
        bodies.SkipPermissions,
        errors=(404,),
    ),
    post(
        "set_skip",
        _W + "/permissions/skip",
        "Switch the skipping of permission requests on or off.",
        bodies.SkipPermissions,
        errors=(400, 404),
    ),
    post(
        "grant",
        _W + "/permissions/grant",
        "Answer a permission request; the first answer decides.",
        bodies.PermissionGrant,
        bodies.AnswerResult,
        query=(_BY, _VIA),
        errors=(400, 404, 503),
    ),
    get(
        "pending_permissions",
        _W + "/permissions/pending",
        "Open permission requests.",
        tuple[PermissionRequest, ...],
        errors=(404,),
    ),
    post(
        "answer_question",
        _W + "/questions/answer",
        "Answer a batch of questions.",
        bodies.QuestionAnswers,
        bodies.AnswerResult,
        query=(_BY, _VIA),
        errors=(400, 404, 503),
    ),
    post(
        "cancel_question",
        _W + "/questions/cancel",
        "Dismiss a batch of questions; without its id, the one that is shown.",
        None,
        bodies.AnswerResult,
        query=(Query("batch_id"), _BY, _VIA),
        errors=(404, 503),
    ),
    get(
        "pending_questions",
        _W + "/questions/pending",
        "Open questions.",
        tuple[QuestionRequest, ...],
        errors=(404,),
    ),
)

_EXTENSIONS = (
    get("list_skills", _W + "/skills", "Skills.", tuple[extension_routes.SkillInfo, ...], errors=(404,)),
    post(
        "read_skill",
        _W + "/skills/read",
        "The text of a skill.",
        extension_routes.SkillRequest,
        extension_routes.SkillText,
        errors=(400, 404),
    ),
    get("list_commands", _W + "/commands", "Slash commands.", tuple[CommandInfo, ...], errors=(404,)),
    post(
        "expand_command",
        _W + "/commands/expand",
        "The expansion of a command.",
        extension_routes.CommandRequest,
        extension_routes.CommandExpansion,
        errors=(400, 404),
    ),
    get(
        "list_agents",
        _W + "/agents",
        "Agents that a prompt can mention with @.",
        tuple[SubagentInfo, ...],
        errors=(404,),
    ),
    *LSP_ROUTES,
    *MCP_ROUTES,
)

_FILES_AND_PROCESSES = (
    post(
        "run_shell",
        _W + "/agent/sessions/{sid}/shell",
        "Run a shell command that a user typed.",
        bodies.ShellRequest,
        ShellResult,
        errors=(400, 404, 503),
        ends_with_caller=True,
    ),
    get(
        "list_jobs",
        _W + "/jobs",
        "Background jobs.",
        tuple[JobInfo, ...],
        query=(Query("session_id"),),
        errors=(404,),
    ),
    get("job_output", _W + "/jobs/{job_id}", "A background job with its output.", JobOutput, errors=(404,)),
    post("kill_job", _W + "/jobs/{job_id}/kill", "Stop a background job.", None, JobOutput, errors=(404,)),
    post(
        "undo_changes",
        _W + "/undo",
        "Undo a session's changes of files.",
        UndoRequest,
        UndoReport,
        errors=(400, 404, 409, 503),
    ),
    get("list_files", _W + "/files", "Files that a prompt can mention.", bodies.FileList, errors=(404,)),
    get(
        "read_file",
        _W + "/files/read",
        "A file, as an attachment for a prompt.",
        Attachment,
        query=(Query("path", is_required=True),),
        errors=(400, 404, 413),
    ),
    get("get_sandbox", _W + "/sandbox", "Restrictions of shell commands.", SandboxState, errors=(400, 404)),
    get("get_trust", _W + "/trust", "The trust state of the project.", bodies.TrustBody, errors=(404,)),
    post(
        "set_trust",
        _W + "/trust",
        "Trust the project's current settings, or withdraw the trust.",
        bodies.TrustBody,
        bodies.TrustBody,
        errors=(400, 404),
    ),
)

ROUTES: tuple[Route, ...] = (
    *_SYSTEM,
    *_WEB_PAGE,
    *_WORKSPACES,
    *_SESSIONS,
    *_AGENT,
    *_RUNS,
    *_APPROVALS,
    *CONFIG_ROUTES,
    *_FILES_AND_PROCESSES,
    *_EXTENSIONS,
)
