"""The bodies of requests and answers that are not domain types themselves."""

from typing import Annotated, Any, Literal

import msgspec

from holdfast.domain.asks import GrantAction, QuestionAnswer
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, Delivery, Prompt, Run
from holdfast.domain.sessions import Session

__all__ = [
    "Accepted",
    "AgentInfo",
    "AgentInit",
    "AgentMessage",
    "Answers",
    "Cancelled",
    "ConfigChange",
    "ConfigModel",
    "ConfigProblem",
    "Control",
    "CurrentSession",
    "FileNames",
    "FileRead",
    "Grant",
    "Granted",
    "InitPrompt",
    "LogPage",
    "LoggedEvent",
    "ModelChoice",
    "ModelFacts",
    "NeedsInit",
    "NewSession",
    "NewWorkspace",
    "PageCode",
    "PageGreeting",
    "PageHello",
    "PagePass",
    "PageReturn",
    "Resolved",
    "RunPatch",
    "SessionChange",
    "ShellAsk",
    "Skip",
    "SnapshotBody",
    "TrustBody",
    "VersionInfo",
    "WebAsk",
    "WebLink",
    "WithheldKey",
    "WorkspaceBody",
]


class VersionInfo(msgspec.Struct, frozen=True):
    """`protocol` tells whether client and server understand each other; it grows with every change that breaks.
    `data_id` is the device and inode of the data directory, by which a client recognises its server.
    """

    version: str
    commit: str
    build_id: str
    go_version: str
    platform: str
    protocol: int
    pid: int
    data_id: str = ""


class Control(msgspec.Struct, frozen=True):
    command: str
    force: bool = False


class WorkspaceBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workspace as it is created and answered. `config` holds what screens need; `env` goes over the socket only."""

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
    """Errors in the settings, each with its file and line: clients show them."""


class NewWorkspace(WorkspaceBody, frozen=True, omit_defaults=True):
    """The same as it is asked for: `path` and `client_id`, and what else there is to say."""

    id: WorkspaceId = WorkspaceId("")
    path: str = ""


class CurrentSession(msgspec.Struct, frozen=True):
    session_id: SessionId = SessionId("")


class NewSession(msgspec.Struct, frozen=True):
    """Only the title of a session can be given."""

    title: str = "New session"
    id: SessionId = SessionId("")


class SessionChange(msgspec.Struct, frozen=True):
    """A session as a screen has it. Its title counts, nothing else; without one nothing is changed."""

    title: str | None = None


class FileNames(msgspec.Struct, frozen=True):
    """Paths below the workspace's directory, the shortest first. `is_cut`: there are more."""

    files: tuple[str, ...]
    is_cut: bool = False


class FileRead(msgspec.Struct, frozen=True):
    session_id: SessionId
    path: str


class AgentInit(msgspec.Struct, frozen=True):
    interactive: bool = False


class AgentMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt."""

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


class Accepted(msgspec.Struct, frozen=True):
    """The prompt is on disk. `position`: how many runs were ahead of it."""

    run_id: RunId
    session_id: SessionId
    delivery: Delivery
    position: int


class Cancelled(msgspec.Struct, frozen=True):
    """Every run the cancel covers; the same ids again while they are still ending."""

    cancelled: tuple[RunId, ...]


class RunPatch(msgspec.Struct, frozen=True):
    position: int | None = None
    delivery: Literal["steer", "queue"] | None = None


class ModelFacts(msgspec.Struct, frozen=True, omit_defaults=True):
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


class ModelChoice(msgspec.Struct, frozen=True, omit_defaults=True):
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
    is_busy: bool
    is_ready: bool
    model: ModelFacts
    model_cfg: ModelChoice


class Skip(msgspec.Struct, frozen=True):
    skip: bool


class Granted(msgspec.Struct, frozen=True):
    """The ask that is meant, as it came: only its id counts, but a client that lost the parameters has shown none."""

    params: Any
    id: str = ""


class Grant(msgspec.Struct, frozen=True):
    """The answer to an ask. `reason` goes with a no: the model is told, and goes on."""

    permission: Granted
    action: GrantAction
    reason: str = ""


class Answers(msgspec.Struct, frozen=True):
    """The answers to a batch of questions. Without its id the ids of the questions say which is meant."""

    responses: tuple[QuestionAnswer, ...] = ()
    batch_request_id: str = ""


class Resolved(msgspec.Struct, frozen=True):
    resolved: bool


class ConfigChange(msgspec.Struct, frozen=True):
    """Scope 0 is the user's, 1 the workspace's. `value` is any JSON; absent when a key is removed."""

    key: str
    scope: int = 0
    value: Any = None


class ConfigModel(msgspec.Struct, frozen=True):
    model_type: Literal["large", "small"]
    model: ModelChoice
    scope: int = 0


class ConfigProblem(msgspec.Struct, frozen=True):
    """One thing to mend in a file of settings: where it is, and what was expected there."""

    severity: Literal["error", "warning"]
    file: str
    line: int
    key: str
    text: str


class NeedsInit(msgspec.Struct, frozen=True):
    needs_init: bool


class InitPrompt(msgspec.Struct, frozen=True):
    prompt: str


class SnapshotBody(msgspec.Struct, frozen=True):
    """All that a screen needs, true at `cursor`; what follows comes on the stream with `since=cursor`."""

    cursor: int
    epoch: int
    workspace: WorkspaceBody
    sessions: tuple[Session, ...]
    messages: tuple[Message, ...]
    runs: tuple[Run, ...]
    permissions: tuple[dict[str, Any], ...] = ()
    questions: tuple[dict[str, Any], ...] = ()
    jobs: tuple[dict[str, Any], ...] = ()


class ShellAsk(msgspec.Struct, frozen=True):
    """A command that a person typed. `term_width`: how wide its output is shown."""

    command: str
    session_id: SessionId = SessionId("")
    term_width: int = 0


class WithheldKey(msgspec.Struct, frozen=True):
    """A setting of a project that has no effect until the project is trusted, and where it stands."""

    key: str
    file: str
    line: int


class TrustBody(msgspec.Struct, frozen=True):
    """Whether a project's own settings are in force. `digest` names the files as they are now."""

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


class LogPage(msgspec.Struct, frozen=True):
    """Events, oldest first. While there are `more`, ask again for those after `next`."""

    events: tuple[LoggedEvent, ...]
    next: int
    more: bool


class WebAsk(msgspec.Struct, frozen=True):
    """A link for a page is wanted. `env` is the environment the page's workspace is opened in; port 0 is any."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    env: tuple[str, ...] = ()


class WebLink(msgspec.Struct, frozen=True):
    """Where the page is, and the code that lets one in. It belongs into the fragment, which no server sees."""

    url: str
    code: str
    seconds: int


class PageCode(msgspec.Struct, frozen=True):
    code: str


class PagePass(msgspec.Struct, frozen=True):
    """`token` is for requests; `page` and `key` are for coming back to the server's successor."""

    token: str
    page: str
    key: str


class PageHello(msgspec.Struct, frozen=True):
    page: str
    nonce: Annotated[str, msgspec.Meta(min_length=16, max_length=128)]


class PageGreeting(msgspec.Struct, frozen=True):
    """The server's number, and its proof that it knows the page."""

    nonce: str
    proof: str


class PageReturn(msgspec.Struct, frozen=True):
    page: str
    proof: str
