"""The route table of `/v1`: the server dispatches by it, OpenAPI is generated from it, clients call it.

`{id}` is a workspace, `{sid}` a session. A route without a response type returns an empty body.
"""

from typing import Any

from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.doctor import Health
from holdfast.domain.extensions import AgentNote, CommandNote
from holdfast.domain.files import FileVersion, UndoAsk, UndoReport
from holdfast.domain.messages import Message
from holdfast.domain.processes import JobInfo, JobOutput, SandboxState, ShellResult
from holdfast.domain.runs import Attachment, Run
from holdfast.domain.sessions import Session
from holdfast.domain.usage import Stats
from holdfast.protocol import bodies, extension_routes
from holdfast.protocol.extension_routes import LSP_ROUTES, MCP_ROUTES
from holdfast.protocol.route import PREFIX, Query, Route, get, post
from holdfast.protocol.route import get as _get
from holdfast.protocol.route import post as _post

__all__ = ["CONFIG_ROUTES", "PREFIX", "ROUTES", "Query", "Route"]


# Routes of the settings and of project initialisation

_ANY = dict[str, Any]
_C = "/workspaces/{id}/config"
_P = "/workspaces/{id}/project"

CONFIG_ROUTES: tuple[Route, ...] = (
    get(
        "config_problems",
        _C + "/problems",
        "What is wrong with the files of settings.",
        tuple[bodies.ConfigProblem, ...],
        errors=(404,),
    ),
    post("config_set", _C + "/set", "Set a key.", bodies.ConfigChange, errors=(400, 404, 409, 503)),
    post("config_remove", _C + "/remove", "Remove a key.", bodies.ConfigChange, errors=(400, 404, 409, 503)),
    post("config_model", _C + "/model", "Choose a model.", bodies.ConfigModel, errors=(400, 404, 409, 503)),
    post("config_compact", _C + "/compact", "Compact display.", _ANY, errors=(400, 404, 409, 503)),
    post("config_provider_key", _C + "/provider-key", "Set a key of a provider.", _ANY, errors=(400, 404, 409, 503)),
    post("config_refresh_oauth", _C + "/refresh-oauth", "Refresh a token.", _ANY, errors=(400, 404, 409, 503)),
    post("config_import_copilot", _C + "/import-copilot", "Not built.", None, _ANY, errors=(404,)),
    get(
        "needs_init",
        _P + "/needs-init",
        "Whether to ask if the project should be described.",
        bodies.NeedsInit,
        errors=(404,),
    ),
    post("init_project", _P + "/init", "Whoever was to be asked about a start has been.", errors=(404, 503)),
    get("init_prompt", _P + "/init-prompt", "The prompt of a start.", bodies.InitPrompt, errors=(404,)),
)


# Routes of `/v1`

_CLIENT = Query("client_id", is_required=True)
_BY = Query("client_id")
_VIA = Query("via")
_SEEN = (Query("client_id"), Query("since", kind="integer"))
_PAGE = (Query("session_id"), Query("state"), Query("limit", kind="integer"), Query("before", kind="integer"))
_LOG = (Query("after", kind="integer"), Query("limit", kind="integer"))
_LIST = tuple[_ANY, ...]
_W = "/workspaces/{id}"
_S = _W + "/sessions/{sid}"
_A = _W + "/agent/sessions/{sid}"


_SYSTEM = (
    _get("health", "/health", "Whether the server is there, and can store what it accepts.", errors=(503,)),
    _get("version", "/version", "Who the server is.", bodies.VersionInfo),
    _get("server_config", "/config", "The settings that count in every workspace.", _ANY),
    _post("control", "/control", "Ask the server to stop.", bodies.Control, errors=(400, 409)),
    Route("retire_client", "DELETE", "/clients/{client_id}", "A client leaves for good.", errors=(400,)),
    _get(
        "metrics",
        "/metrics",
        "What the server does, for Prometheus; where the settings want it.",
        str,
        errors=(404,),
        media="text/plain; version=0.0.4; charset=utf-8",
        is_at_root=True,
    ),
    _get(
        "all_stats",
        "/stats",
        "The same of all workspaces that were ever opened.",
        Stats,
        query=(Query("zone"),),
        errors=(400,),
    ),
    _get("openapi", "/openapi.json", "This document.", _ANY),
    _get("docs", "/docs/", "This document, to be read.", str, is_page=True),
)

_PAGE_PORT = (
    _post(
        "open_web", "/web", "A link for a page; over the socket only.", bodies.WebAsk, bodies.WebLink, errors=(400, 409)
    ),
    Route(
        "close_web",
        "DELETE",
        "/web",
        "Let no page in, and forget those that were; over the socket only.",
        errors=(409,),
    ),
    _post(
        "enter_page", "/web/exchange", "A code becomes a token, once.", bodies.PageCode, bodies.PagePass, errors=(409,)
    ),
    _post("page_pass", "/web/page", "A new token for a page that has one.", None, bodies.PagePass, errors=(409,)),
    _post(
        "greet_page",
        "/web/hello",
        "A page says who it is, the server proves that it knows it.",
        bodies.PageHello,
        bodies.PageGreeting,
        errors=(409,),
    ),
    _post(
        "return_page", "/web/return", "And the page proves it, too.", bodies.PageReturn, bodies.PagePass, errors=(409,)
    ),
)

_WORKSPACES = (
    _get("list_workspaces", "/workspaces", "Those that are open.", tuple[bodies.WorkspaceBody, ...], errors=(400,)),
    _post(
        "create_workspace",
        "/workspaces",
        "Open the workspace of a directory, or join it.",
        bodies.NewWorkspace,
        bodies.WorkspaceBody,
        errors=(400, 409, 503),
    ),
    _get("get_workspace", _W, "A workspace.", bodies.WorkspaceBody, errors=(400, 404)),
    Route("leave_workspace", "DELETE", _W, "A client leaves a workspace.", query=(_CLIENT,), errors=(400,)),
    _post(
        "set_current_session",
        _W + "/current-session",
        "Say which session a client looks at.",
        bodies.CurrentSession,
        query=(_CLIENT,),
        errors=(400, 404, 409),
    ),
    _get("events", _W + "/events", "The stream of events.", query=_SEEN, errors=(400, 404, 409), streams=True),
    _get(
        "snapshot",
        _W + "/snapshot",
        "All that a screen needs, with its cursor.",
        bodies.SnapshotBody,
        query=(Query("session_id"),),
        errors=(404,),
    ),
    _get(
        "read_log",
        _W + "/log",
        "Stored events with their times, oldest first; of a session, or of a run from its acceptance to its end.",
        bodies.LogPage,
        query=(*_LOG, Query("session_id"), Query("run_id")),
        errors=(400, 404),
    ),
    _get("get_config", _W + "/config", "The configuration in force.", _ANY, errors=(400, 404)),
    _get("list_providers", _W + "/providers", "The providers that are known.", _LIST, errors=(400, 404)),
    _get(
        "doctor",
        _W + "/doctor",
        "A look at all that the workspace needs, and what to do about what was found.",
        Health,
        query=(Query("areas"),),
        errors=(404,),
    ),
    _get(
        "stats",
        _W + "/stats",
        "What was done here: sessions, runs, models, tools, tokens, cost.",
        Stats,
        query=(Query("zone"),),
        errors=(400, 404),
    ),
)

_SESSIONS = (
    _get("list_sessions", _W + "/sessions", "Sessions, latest first.", tuple[Session, ...], errors=(404,)),
    _post("create_session", _W + "/sessions", "A new session.", bodies.NewSession, Session, errors=(400, 404)),
    _get("get_session", _S, "A session.", Session, errors=(400, 404)),
    Route("put_session", "PUT", _S, "Rename a session.", bodies.SessionChange, Session, errors=(400, 404)),
    Route("delete_session", "DELETE", _S, "Remove a session and all that belongs to it.", errors=(400, 404)),
    _get("list_messages", _S + "/messages", "The conversation.", tuple[Message, ...], errors=(404,)),
    _get("list_user_messages", _S + "/messages/user", "Prompts, newest first.", tuple[Message, ...], errors=(404,)),
    _get(
        "list_all_user_messages", _W + "/messages/user", "Prompts of all sessions.", tuple[Message, ...], errors=(404,)
    ),
    _get("list_history", _S + "/history", "Versions of changed files.", tuple[FileVersion, ...], errors=(404,)),
    _get("list_read_files", _S + "/filetracker/files", "Files the session has read.", tuple[str, ...], errors=(404,)),
    _post("mark_read", _W + "/filetracker/read", "A file was read.", bodies.FileRead, errors=(400, 404)),
    _get(
        "last_read",
        _W + "/filetracker/lastread",
        "When a session last read a file.",
        str,
        query=(Query("session_id", is_required=True), Query("path", is_required=True)),
        errors=(400, 404),
    ),
)

_AGENT = (
    _get("agent_info", _W + "/agent", "Whether the agent is busy, and its model.", bodies.AgentInfo, errors=(404,)),
    _post(
        "send_prompt",
        _W + "/agent",
        "Send a prompt. It is on disk when this answers.",
        bodies.AgentMessage,
        bodies.Accepted,
        status=202,
        errors=(400, 404, 409, 413, 503),
    ),
    _post(
        "init_agent",
        _W + "/agent/init",
        "Check that a model can be used. Changes nothing.",
        bodies.AgentInit,
        errors=(400, 404),
        request_is_optional=True,
    ),
    _post("update_agent", _W + "/agent/update", "Look at models and tools again.", errors=(400, 404)),
    _get("agent_session", _A, "A session as the agent sees it.", Session, errors=(400, 404)),
    _post(
        "cancel_session",
        _A + "/cancel",
        "Stop all that is in the session now.",
        None,
        bodies.Cancelled,
        query=(_BY,),
        errors=(404, 503),
    ),
    _get("count_queued", _A + "/prompts/queued", "How many prompts wait.", int, errors=(404,)),
    _get("list_queued", _A + "/prompts/list", "The texts of the prompts that wait.", tuple[str, ...], errors=(404,)),
    _post(
        "clear_queue",
        _A + "/prompts/clear",
        "End all that waits.",
        None,
        bodies.Cancelled,
        query=(_BY,),
        errors=(404, 503),
    ),
    _post("summarize", _A + "/summarize", "Summarise; answers when it is done.", errors=(400, 404, 409, 503)),
    _get(
        "default_small_model",
        _W + "/agent/default-small-model",
        "The small model of a provider.",
        bodies.ModelChoice,
        query=(Query("provider_id"),),
        errors=(400, 404),
    ),
)

_RUNS = (
    _get("list_runs", _W + "/runs", "Runs, newest first.", tuple[Run, ...], query=_PAGE, errors=(400, 404)),
    _get("get_run", _W + "/runs/{run_id}", "A run.", Run, errors=(404,)),
    Route(
        "patch_run",
        "PATCH",
        _W + "/runs/{run_id}",
        "Move a waiting run, or deliver it otherwise.",
        bodies.RunPatch,
        Run,
        errors=(400, 404, 409, 503),
    ),
    _post(
        "cancel_run",
        _W + "/runs/{run_id}/cancel",
        "Stop one run.",
        None,
        Run,
        query=(_BY,),
        errors=(404, 409, 503),
    ),
)

_ASKS = (
    _get("get_skip", _W + "/permissions/skip", "Whether permissions are skipped.", bodies.Skip, errors=(404,)),
    _post("set_skip", _W + "/permissions/skip", "Skip permissions, or not.", bodies.Skip, errors=(400, 404)),
    _post(
        "grant",
        _W + "/permissions/grant",
        "Answer an ask; the first answer counts.",
        bodies.Grant,
        bodies.Resolved,
        query=(_BY, _VIA),
        errors=(400, 404, 503),
    ),
    _get(
        "pending_permissions",
        _W + "/permissions/pending",
        "Asks that are open.",
        tuple[PermissionRequest, ...],
        errors=(404,),
    ),
    _post(
        "answer_question",
        _W + "/questions/answer",
        "Answer a batch of questions.",
        bodies.Answers,
        bodies.Resolved,
        query=(_BY, _VIA),
        errors=(400, 404, 503),
    ),
    _post(
        "cancel_question",
        _W + "/questions/cancel",
        "Dismiss a batch of questions; without its id, the one that is shown.",
        None,
        bodies.Resolved,
        query=(Query("batch_id"), _BY, _VIA),
        errors=(404, 503),
    ),
    _get(
        "pending_questions",
        _W + "/questions/pending",
        "Questions that are open.",
        tuple[QuestionRequest, ...],
        errors=(404,),
    ),
)

_EXTENSIONS = (
    _get("list_skills", _W + "/skills", "Skills.", tuple[extension_routes.SkillInfo, ...], errors=(404,)),
    _post(
        "read_skill",
        _W + "/skills/read",
        "The text of a skill.",
        extension_routes.SkillAsk,
        extension_routes.SkillText,
        errors=(400, 404),
    ),
    _get("list_commands", _W + "/commands", "All that can be sent as /name.", tuple[CommandNote, ...], errors=(404,)),
    _post(
        "expand_command",
        _W + "/commands/expand",
        "What a command stands for.",
        extension_routes.CommandAsk,
        extension_routes.CommandText,
        errors=(400, 404),
    ),
    _get("list_agents", _W + "/agents", "All that can be named with an @.", tuple[AgentNote, ...], errors=(404,)),
    *LSP_ROUTES,
    *MCP_ROUTES,
)

_WORK = (
    _post(
        "run_shell",
        _W + "/agent/sessions/{sid}/shell",
        "Run a command that a person typed.",
        bodies.ShellAsk,
        ShellResult,
        errors=(400, 404, 503),
        ends_with_caller=True,
    ),
    _get(
        "list_jobs",
        _W + "/jobs",
        "Background jobs.",
        tuple[JobInfo, ...],
        query=(Query("session_id"),),
        errors=(404,),
    ),
    _get("job_output", _W + "/jobs/{job_id}", "A background job and what it said.", JobOutput, errors=(404,)),
    _post("kill_job", _W + "/jobs/{job_id}/kill", "Stop a background job.", None, JobOutput, errors=(404,)),
    _post(
        "undo_changes",
        _W + "/undo",
        "Take back what a session changed.",
        UndoAsk,
        UndoReport,
        errors=(400, 404, 409, 503),
    ),
    _get("list_files", _W + "/files", "The files that a prompt can name.", bodies.FileNames, errors=(404,)),
    _get(
        "read_file",
        _W + "/files/read",
        "A file, to be sent along with a prompt.",
        Attachment,
        query=(Query("path", is_required=True),),
        errors=(400, 404, 413),
    ),
    _get("get_sandbox", _W + "/sandbox", "What commands may do.", SandboxState, errors=(400, 404)),
    _get("get_trust", _W + "/trust", "Whether the project's settings count.", bodies.TrustBody, errors=(404,)),
    _post(
        "set_trust",
        _W + "/trust",
        "Trust the project's settings as they are, or no longer.",
        bodies.TrustBody,
        bodies.TrustBody,
        errors=(400, 404),
    ),
)

ROUTES: tuple[Route, ...] = (
    *_SYSTEM,
    *_PAGE_PORT,
    *_WORKSPACES,
    *_SESSIONS,
    *_AGENT,
    *_RUNS,
    *_ASKS,
    *CONFIG_ROUTES,
    *_WORK,
    *_EXTENSIONS,
)
