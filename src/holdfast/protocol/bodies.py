"""The bodies of requests and responses that are not domain types."""

from typing import Annotated, Any, Literal

import msgspec

from holdfast.domain.approvals import GrantAction, QuestionAnswer
from holdfast.domain.ids import NodeId, RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, Delivery, Prompt, Run
from holdfast.domain.sessions import Session

__all__ = [
    "AgentInfo",
    "AgentInitRequest",
    "AgentMessage",
    "AnswerResult",
    "AnsweredPermission",
    "CancelledRuns",
    "ConfigChange",
    "ConfigModelRequest",
    "ConfigProblem",
    "CurrentSession",
    "EventLogPage",
    "FileList",
    "FileReadRequest",
    "InitPrompt",
    "LoggedEvent",
    "ModelDescription",
    "NewSession",
    "NewWorkspace",
    "NodeBody",
    "NodeList",
    "PageChallenge",
    "PageChallengeRequest",
    "PageCredentials",
    "PageLoginRequest",
    "PageProof",
    "PermissionGrant",
    "ProjectInitStatus",
    "PromptAccepted",
    "QuestionAnswers",
    "RunChange",
    "SelectedModel",
    "ServerControl",
    "SessionChange",
    "ShellRequest",
    "SkipPermissions",
    "SnapshotBody",
    "TrustBody",
    "VersionInfo",
    "WebLink",
    "WebLinkRequest",
    "WithheldKey",
    "WorkspaceBody",
]


class VersionInfo(msgspec.Struct, frozen=True):
    """`protocol` is the protocol version: it grows with every incompatible change, and client and server
    compare it. `data_id` is the device and inode of the data directory, by which a client recognises its
    server.
    """

    version: str
    commit: str
    build_id: str
    go_version: str
    platform: str
    protocol: int
    pid: int
    data_id: str = ""


class ServerControl(msgspec.Struct, frozen=True):
    """A command for the server process."""

    command: str
    force: bool = False


class NodeBody(msgspec.Struct, frozen=True):
    """A server of a cluster. `uptime` is in seconds; `runs` are active ones. A silent node has lost its connection to
    the database, or died: it comes back, or the others evict it within seconds. `is_self`: it sent this response.
    """

    id: NodeId
    state: Literal["ready", "draining", "silent"]
    uptime: float
    places: tuple[str, ...]
    version: str
    address: str
    workspaces: int
    runs: int
    clients: int
    is_self: bool = False


class NodeList(msgspec.Struct, frozen=True):
    """The servers of a cluster, oldest first. A server on SQLite is no node: `is_cluster` is false."""

    is_cluster: bool
    nodes: tuple[NodeBody, ...] = ()


class WorkspaceBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workspace, in requests and responses. `config` has the settings that clients need; `env` is sent over
    the socket only.
    """

    id: WorkspaceId
    path: str
    yolo: bool = False
    debug: bool = False
    data_dir: str = ""
    version: str = ""
    client_id: str = ""
    config: dict[str, Any] | None = None
    env: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    skills: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    """Errors in the settings, each with its file and line, for display."""


class NewWorkspace(WorkspaceBody, frozen=True, omit_defaults=True):
    """A request for a workspace: `path` and `client_id` are required, the other fields are optional."""

    id: WorkspaceId = WorkspaceId("")
    path: str = ""


class CurrentSession(msgspec.Struct, frozen=True):
    """The session that a client shows."""

    session_id: SessionId = SessionId("")


class NewSession(msgspec.Struct, frozen=True):
    """A request for a session. Only its title can be set."""

    title: str = "New session"
    id: SessionId = SessionId("")


class SessionChange(msgspec.Struct, frozen=True):
    """A session as a client has it. Only its title is used; without one nothing is changed."""

    title: str | None = None


class FileList(msgspec.Struct, frozen=True):
    """Paths below the workspace's directory, the shortest first. `is_cut`: there are more."""

    files: tuple[str, ...]
    is_cut: bool = False


class FileReadRequest(msgspec.Struct, frozen=True):
    """A file that a session has read."""

    session_id: SessionId
    path: str


class AgentInitRequest(msgspec.Struct, frozen=True):
    """A request to initialise the agent."""

    interactive: bool = False


class AgentMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt, as sent by a client."""

    session_id: SessionId = SessionId("")
    prompt: str = ""
    run_id: RunId = RunId("")
    attachments: tuple[Attachment, ...] | None = None
    delivery: Delivery | None = None
    client_id: str = ""
    interactive: bool | None = None
    yolo: bool = False
    require_model: bool = False
    """Refuse the prompt if only the built-in scripted model could answer it, and no setting selects that one."""

    def to_prompt(self) -> Prompt:
        """Return the prompt as a domain type."""
        return Prompt(
            self.session_id,
            self.prompt,
            self.attachments or (),
            run_id=self.run_id,
            delivery=self.delivery,
            client_id=self.client_id,
            interactive=self.interactive,
            yolo=self.yolo,
            require_model=self.require_model,
        )


class PromptAccepted(msgspec.Struct, frozen=True):
    """The prompt is on disk. `position`: the number of runs ahead of it."""

    run_id: RunId
    session_id: SessionId
    delivery: Delivery
    position: int


class CancelledRuns(msgspec.Struct, frozen=True):
    """Every run that the cancel covers; the same ids are returned again while the runs are still ending."""

    cancelled: tuple[RunId, ...]


class RunChange(msgspec.Struct, frozen=True):
    """A change of a waiting run."""

    position: int | None = None
    delivery: Literal["steer", "queue"] | None = None


class ModelDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a model, in the form of stock clients."""

    id: str
    name: str
    cost_per_1m_in: float
    cost_per_1m_out: float
    cost_per_1m_in_cached: float
    cost_per_1m_out_cached: float
    context_window: int
    default_max_tokens: int
    can_reason: bool
    supports_attachments: bool
    reasoning_levels: tuple[str, ...] = ()
    default_reasoning_effort: str = ""


class SelectedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model selection, in the form of stock clients."""

    model: str
    provider: str
    max_tokens: int = 0
    reasoning_effort: str = ""
    think: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    provider_options: dict[str, Any] = {}


class AgentInfo(msgspec.Struct, frozen=True):
    """The state of the agent and its model."""

    is_busy: bool
    is_ready: bool
    model: ModelDescription
    model_cfg: SelectedModel


class SkipPermissions(msgspec.Struct, frozen=True):
    """The setting that skips permission requests."""

    skip: bool


class AnsweredPermission(msgspec.Struct, frozen=True):
    """The permission request that is answered. Only its id is used; a request without parameters was not shown
    to a person.
    """

    params: Any
    id: str = ""


class PermissionGrant(msgspec.Struct, frozen=True):
    """The answer to a permission request. `reason` accompanies a denial: the model receives it, and the turn
    continues.
    """

    permission: AnsweredPermission
    action: GrantAction
    reason: str = ""


class QuestionAnswers(msgspec.Struct, frozen=True):
    """The answers to a batch of questions. Without a batch id, the ids of the questions identify it."""

    responses: tuple[QuestionAnswer, ...] = ()
    batch_request_id: str = ""


class AnswerResult(msgspec.Struct, frozen=True):
    """The result of an answer."""

    resolved: bool


class ConfigChange(msgspec.Struct, frozen=True):
    """Scope 0 is the user's, 1 the workspace's. `value` is any JSON; absent when a key is removed."""

    key: str
    scope: int = 0
    value: Any = None


class ConfigModelRequest(msgspec.Struct, frozen=True):
    """A request to change the selected model."""

    model_type: Literal["large", "small"]
    model: SelectedModel
    scope: int = 0


class ConfigProblem(msgspec.Struct, frozen=True):
    """One mistake in a settings file: its place, and the expected value."""

    severity: Literal["error", "warning"]
    file: str
    line: int
    key: str
    text: str


class ProjectInitStatus(msgspec.Struct, frozen=True):
    """The result of the check for a project description."""

    needs_init: bool


class InitPrompt(msgspec.Struct, frozen=True):
    """The prompt that creates a project description."""

    prompt: str


class SnapshotBody(msgspec.Struct, frozen=True):
    """The complete state for a client at `cursor`; later events follow on the stream with `since=cursor`."""

    cursor: int
    epoch: int
    workspace: WorkspaceBody
    sessions: tuple[Session, ...]
    messages: tuple[Message, ...]
    runs: tuple[Run, ...]
    permissions: tuple[dict[str, Any], ...] = ()
    questions: tuple[dict[str, Any], ...] = ()
    jobs: tuple[dict[str, Any], ...] = ()


class ShellRequest(msgspec.Struct, frozen=True):
    """A shell command that a user typed. `term_width`: the width at which its output is shown."""

    command: str
    session_id: SessionId = SessionId("")
    term_width: int = 0


class WithheldKey(msgspec.Struct, frozen=True):
    """A setting of a project that has no effect until the project is trusted, with its place."""

    key: str
    file: str
    line: int


class TrustBody(msgspec.Struct, frozen=True):
    """The trust state of a project. `digest` identifies the current content of its files."""

    trusted: bool
    files: tuple[str, ...] = ()
    digest: str = ""
    withheld: tuple[WithheldKey, ...] = ()


class LoggedEvent(msgspec.Struct, frozen=True):
    """A stored event with its number and the time at which it was stored, in Unix milliseconds."""

    number: int
    at: int
    type: str
    payload: Any


class EventLogPage(msgspec.Struct, frozen=True):
    """Events, oldest first. While there are `more`, request those after `next`."""

    events: tuple[LoggedEvent, ...]
    next: int
    more: bool


class WebLinkRequest(msgspec.Struct, frozen=True):
    """A request for a link to the web page. `env` is the environment in which the page's workspace is opened;
    port 0 is any.
    """

    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    env: tuple[str, ...] = ()


class WebLink(msgspec.Struct, frozen=True):
    """The address of the page and its login code. The code belongs into the fragment, which is not sent to servers."""

    url: str
    code: str
    seconds: int


class PageLoginRequest(msgspec.Struct, frozen=True):
    """The login code of a page."""

    code: str


class PageCredentials(msgspec.Struct, frozen=True):
    """`token` authorises requests; with `page` and `key` the page can return to the server's successor."""

    token: str
    page: str
    key: str


class PageChallengeRequest(msgspec.Struct, frozen=True):
    """The first message of a returning page."""

    page: str
    nonce: Annotated[str, msgspec.Meta(min_length=16, max_length=128)]


class PageChallenge(msgspec.Struct, frozen=True):
    """The server's nonce, and its proof that it knows the page."""

    nonce: str
    proof: str


class PageProof(msgspec.Struct, frozen=True):
    """The proof of a returning page."""

    page: str
    proof: str
