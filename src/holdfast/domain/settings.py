"""The settings: one structure for the configuration, whichever file a value is from.

The names are those of the files (`models.large.provider`). Strings such as keys and addresses are stored as
written; the code that uses one expands it. Unknown keys are not part of this structure; `config check` reports them.
Fields that may contain a key or a token are never part of a `repr`, because those end up in logs.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

__all__ = [
    "PROVIDER_TYPES",
    "Attribution",
    "HookSettings",
    "LspSettings",
    "McpSettings",
    "ModelSettings",
    "Models",
    "Options",
    "PermissionSettings",
    "ProviderSettings",
    "RecentModels",
    "SandboxSettings",
    "Selection",
    "Settings",
    "StorageSettings",
    "ToolSettings",
]

PROVIDER_TYPES = (
    "openai",
    "openai-chat",
    "openai-responses",
    "openai-compat",
    "openai-compatible",
    "anthropic",
    "gemini",
    "google",
    "vertexai",
    "google-vertex",
    "vertex",
    "azure",
    "bedrock",
    "amazon-bedrock",
    "mistral",
    "openrouter",
    "vercel",
    "ollama",
    "lmstudio",
    "llamacpp",
    "vllm",
    "litellm",
    "omlx",
)
"""The values of a provider's `type`, in all spellings."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class _Guarded(msgspec.Struct, frozen=True):
    """Base class whose `repr` shows the fields of `_shown` and no others."""

    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__name__}({fields}{', ' if fields else ''}…)"


class Selection(_Guarded, frozen=True, omit_defaults=True):
    """A model and its request parameters. Unset parameters are left to the provider."""

    _shown = ("model", "provider", "reasoning_effort")

    model: str = ""
    provider: str = ""
    reasoning_effort: str = ""
    think: bool = False
    max_tokens: Count = 0
    temperature: Amount | None = None
    top_p: Amount | None = None
    top_k: Count | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    provider_options: dict[str, Any] = {}


class Models(msgspec.Struct, frozen=True, omit_defaults=True):
    """The two models of a workspace."""

    large: Selection = Selection()
    small: Selection = Selection()


class RecentModels(msgspec.Struct, frozen=True, omit_defaults=True):
    """Models that were used before, newest first, for the model picker."""

    large: tuple[Selection, ...] = ()
    small: tuple[Selection, ...] = ()


class ModelSettings(_Guarded, frozen=True, omit_defaults=True):
    """A model of a provider, as a user describes it. Unset facts come from the catalogue or the server."""

    _shown = ("id", "name")

    id: str
    name: str = ""
    cost_per_1m_in: Amount | None = None
    cost_per_1m_out: Amount | None = None
    cost_per_1m_in_cached: Amount | None = None
    cost_per_1m_out_cached: Amount | None = None
    context_window: Count | None = None
    default_max_tokens: Count | None = None
    can_reason: bool | None = None
    reasoning_levels: tuple[str, ...] | None = None
    default_reasoning_effort: str = ""
    supports_attachments: bool | None = None
    options: dict[str, Any] = {}


class ProviderSettings(_Guarded, frozen=True, omit_defaults=True):
    """One provider. `type` selects the wire protocol; the default is the catalogue's type, else `openai-compat`."""

    _shown = ("id", "name", "type", "disable")

    id: str = ""
    name: str = ""
    type: str = ""
    base_url: str = ""
    api_key: str = ""
    oauth: dict[str, Any] = {}
    disable: bool = False
    system_prompt_prefix: str = ""
    extra_headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    provider_options: dict[str, Any] = {}
    aws_auth_refresh: str = ""
    flat_rate: bool = False
    discover_models: bool = True
    timeout: Count = 0
    models: tuple[ModelSettings, ...] = ()


class McpSettings(_Guarded, frozen=True, omit_defaults=True):
    """An MCP server, which offers tools, prompts and resources, and how to connect to it."""

    _shown = ("type", "disabled")

    type: Literal["stdio", "sse", "http"] = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    disabled: bool = False
    disabled_tools: tuple[str, ...] = ()
    enabled_tools: tuple[str, ...] = ()
    timeout: Count = 10
    call_timeout: Count = 300
    oauth: bool | None = None
    oauth_client_id: str = ""
    oauth_client_secret: str = ""
    oauth_callback_port: Port = 0
    oauth_token: dict[str, Any] = {}


class LspSettings(_Guarded, frozen=True, omit_defaults=True):
    """A language server and the files it is for."""

    _shown = ("disabled", "filetypes")

    disabled: bool = False
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    filetypes: tuple[str, ...] = ()
    root_markers: tuple[str, ...] = ()
    init_options: dict[str, Any] = {}
    options: dict[str, Any] = {}
    timeout: Count = 30


class Attribution(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lines appended to a commit message."""

    trailer_style: Literal["none", "co-authored-by", "assisted-by"] = "assisted-by"
    generated_with: bool = True
    co_authored_by: bool | None = None
    """An older setting for the trailer; prefer `trailer_style`."""


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that belongs to no other table."""

    context_paths: tuple[str, ...] = ()
    global_context_paths: tuple[str, ...] = ()
    skills_paths: tuple[str, ...] = ()
    tui: dict[str, Any] = {}
    debug: bool = False
    debug_lsp: bool = False
    disable_auto_summarize: bool = False
    data_directory: str = ""
    disabled_tools: tuple[str, ...] = ()
    disabled_skills: tuple[str, ...] = ()
    disable_default_providers: bool = False
    attribution: Attribution = Attribution()
    disable_provider_auto_update: bool = False
    disable_metrics: bool = True
    initialize_as: str = "AGENTS.md"
    auto_lsp: bool = True
    progress: bool = True
    notifications: Literal["auto", "native", "osc", "bell", "disabled"] = "auto"
    sandbox: Literal["", "workspace"] = ""
    sandbox_network: bool = True
    ask_timeout: Count = 86_400
    """Seconds that a permission request waits while no client is attached; then it is denied."""
    job_linger: Count = 28_800
    """Seconds that background jobs may keep a workspace open without an attached client."""
    max_steps: Count = 500
    max_minutes: Amount = 480.0
    max_cost: Amount = 0.0
    max_retries: Count = 5
    """Maximum number of retries of a failed model request."""
    model_load_timeout: Count = 300
    """Seconds to wait for a local server that is still loading its model."""
    metrics: bool = False
    telemetry: str = ""
    max_agents: Count = 16
    """Maximum number of concurrent sub-agents of a run."""
    max_agent_depth: Count = 2
    """Maximum nesting depth of sub-agents."""


class PermissionSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """`allowed_tools`: `tool` or `tool:action`. The three lists hold rules such as `bash(git status *)`,
    `write(src/**)`, `fetch`; the strictest that fits wins.
    """

    allowed_tools: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class ToolSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of the tools. Times are nanoseconds, as the wire has them."""

    ls: dict[str, Count] = {}
    grep: dict[str, Count] = {}
    glob: dict[str, Count] = {}


class SandboxSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paths of the home directory that sandboxed commands see. Only the user's own files may set them."""

    home: tuple[str, ...] = ()
    home_readonly: tuple[str, ...] = ()


class StorageSettings(_Guarded, frozen=True, omit_defaults=True):
    """The store of the server. Only the user's own files may set it."""

    _shown = ("key_file", "password_file")

    url: str = ""
    password_file: str = ""
    key_file: str = ""


class HookSettings(_Guarded, frozen=True, omit_defaults=True):
    """A command that runs on an event; `matcher` selects the tools."""

    _shown = ("name", "matcher")

    command: str
    name: str = ""
    matcher: str = ""
    timeout: Count = 0


class Settings(_Guarded, frozen=True, omit_defaults=True):
    """All settings. Every field has a default."""

    _shown = ("models",)

    models: Models = Models()
    recent_models: RecentModels = RecentModels()
    providers: dict[str, ProviderSettings] = {}
    mcp: dict[str, McpSettings] = {}
    lsp: dict[str, LspSettings] = {}
    options: Options = Options()
    permissions: PermissionSettings = PermissionSettings()
    tools: ToolSettings = ToolSettings()
    sandbox: SandboxSettings = SandboxSettings()
    storage: StorageSettings = StorageSettings()
    hooks: dict[str, tuple[HookSettings, ...]] = {}
    env: dict[str, str] = {}
