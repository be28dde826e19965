"""The JSON schema of the settings, with a description of each key, and the settings with all defaults. Pure."""

from typing import Any

import msgspec

from holdfast.domain.settings import PROVIDER_TYPES, Settings

__all__ = ["DESCRIPTIONS", "settings_schema", "with_defaults"]


DESCRIPTIONS: dict[str, str] = {
    "Settings.models": "The models of a workspace: the large one does the work, the small one writes titles.",
    "Settings.recent_models": "Models that were selected before, newest first. Maintained by the program.",
    "Settings.providers": "Model providers, by a name of your choice or a name in the catalogue.",
    "Settings.mcp": "MCP servers, by a name of your choice.",
    "Settings.lsp": "Language servers, by a name of your choice.",
    "Settings.options": "Settings that belong to no other table.",
    "Settings.permissions": "Rules for tool calls: allow, ask or deny.",
    "Settings.tools": "Limits of individual tools.",
    "Settings.sandbox": "Paths of the home directory that sandboxed commands can access. Ignored in project files.",
    "Settings.storage": "The store of the server. Ignored in project files; read at server start.",
    "Settings.hooks": "Commands that run at certain events, by the name of the event.",
    "Settings.env": "Environment variables for commands, servers and the expansion of values. Expanded.",
    "Models.large": "The model that does the work.",
    "Models.small": "The model for small tasks, such as titles.",
    "RecentModels.large": "Large models, newest first.",
    "RecentModels.small": "Small models, newest first.",
    "Selection.model": "The id of the model at its provider.",
    "Selection.provider": "The name of a provider.",
    "Selection.reasoning_effort": "The reasoning effort: one of the levels of the model, such as low or high.",
    "Selection.think": "Whether the model reasons, for models without levels.",
    "Selection.max_tokens": "The maximum length of a response in tokens; 0 for the default of the model.",
    "Selection.temperature": "The sampling temperature.",
    "Selection.top_p": "The probability mass for nucleus sampling.",
    "Selection.top_k": "The number of most likely tokens to sample from.",
    "Selection.frequency_penalty": "The penalty for tokens by how often they have occurred.",
    "Selection.presence_penalty": "The penalty for tokens that have occurred.",
    "Selection.provider_options": "Sent to the provider unchanged.",
    "ModelSettings.id": "The id of the model at its provider.",
    "ModelSettings.name": "The display name.",
    "ModelSettings.cost_per_1m_in": "US dollars per million input tokens.",
    "ModelSettings.cost_per_1m_out": "US dollars per million output tokens.",
    "ModelSettings.cost_per_1m_in_cached": "US dollars per million input tokens that are written to the cache.",
    "ModelSettings.cost_per_1m_out_cached": "US dollars per million input tokens that are read from the cache.",
    "ModelSettings.context_window": "The size of the context window in tokens.",
    "ModelSettings.default_max_tokens": "The default maximum length of a response in tokens.",
    "ModelSettings.can_reason": "Whether the model can reason.",
    "ModelSettings.reasoning_levels": "The reasoning efforts that the model supports.",
    "ModelSettings.default_reasoning_effort": "The default reasoning effort.",
    "ModelSettings.supports_attachments": "Whether the model accepts images.",
    "ModelSettings.options": "Settings for this model only.",
    "ProviderSettings.id": "The id of the provider, if it differs from its name here.",
    "ProviderSettings.name": "The display name.",
    "ProviderSettings.type": "The API type, such as openai, openai-compat, anthropic, google or bedrock.",
    "ProviderSettings.base_url": "The base URL of the API. Expanded.",
    "ProviderSettings.api_key": "The API key, preferably as a template such as $OPENAI_API_KEY. Expanded.",
    "ProviderSettings.oauth": "A token, maintained by the program.",
    "ProviderSettings.disable": "Whether it is disabled.",
    "ProviderSettings.system_prompt_prefix": "Text to insert before the system prompt.",
    "ProviderSettings.extra_headers": "Headers of each request; a header with an empty value is not sent. Expanded.",
    "ProviderSettings.extra_body": "Fields to add to the body of each request. Expanded.",
    "ProviderSettings.provider_options": "Sent to the provider unchanged.",
    "ProviderSettings.aws_auth_refresh": "A command that renews the credentials for Bedrock.",
    "ProviderSettings.flat_rate": "Whether requests cost nothing, as with a subscription.",
    "ProviderSettings.discover_models": "Whether the models of the server are listed by a request.",
    "ProviderSettings.timeout": "Seconds without data that end a request; 0: 300 before a response, 120 within one.",
    "ProviderSettings.models": "Models by id; these values take precedence over the catalogue.",
    "McpSettings.type": "The transport.",
    "McpSettings.command": "The program of a stdio server. Expanded.",
    "McpSettings.args": "The arguments of the program. Expanded.",
    "McpSettings.env": "The environment variables of the program. Expanded.",
    "McpSettings.url": "The URL of an http or sse server. Expanded.",
    "McpSettings.headers": "Headers of each request. Expanded.",
    "McpSettings.disabled": "Whether it is disabled.",
    "McpSettings.disabled_tools": "Tools of the server that are not offered to models.",
    "McpSettings.enabled_tools": "If set, the only tools of the server that are offered to models.",
    "McpSettings.timeout": "Seconds for starting the server and listing its tools.",
    "McpSettings.call_timeout": "Seconds without a response or progress that end a call; 0 for no limit.",
    "McpSettings.oauth": "Whether to sign in with OAuth; if not set, the server decides.",
    "McpSettings.oauth_client_id": "For OAuth. Expanded.",
    "McpSettings.oauth_client_secret": "For OAuth. Expanded.",
    "McpSettings.oauth_callback_port": "The local port for the OAuth redirect; 0 for any.",
    "McpSettings.oauth_token": "A token, maintained by the program.",
    "LspSettings.disabled": "Whether it is disabled.",
    "LspSettings.command": "The program. Expanded.",
    "LspSettings.args": "The arguments of the program. Expanded.",
    "LspSettings.env": "The environment variables of the program. Expanded.",
    "LspSettings.filetypes": "The extensions of the files that the server handles.",
    "LspSettings.root_markers": "Files that mark the root of its project.",
    "LspSettings.init_options": "Initialization options of the server.",
    "LspSettings.options": "Settings of the server.",
    "LspSettings.timeout": "Seconds for starting the server.",
    "Attribution.trailer_style": "The trailer of commit messages.",
    "Attribution.generated_with": "Whether the trailer names the program.",
    "Attribution.co_authored_by": "An earlier form of trailer_style.",
    "Options.context_paths": "Files and directories to include in the system prompt, besides AGENTS.md and similar.",
    "Options.global_context_paths": "The same for all projects.",
    "Options.skills_paths": "Directories with skills.",
    "Options.tui": "Appearance of the terminal app.",
    "Options.debug": "Whether debug messages are logged.",
    "Options.debug_lsp": "Whether debug messages about language servers are logged.",
    "Options.disable_auto_summarize": "Whether automatic compaction is disabled.",
    "Options.data_directory": "Accepted from files of other tools, without effect: use --data-dir.",
    "Options.disabled_tools": "Tools that are not offered to models.",
    "Options.disabled_skills": "Skills that are not offered to models.",
    "Options.disable_default_providers": "Whether the providers of the catalogue are left out.",
    "Options.disable_provider_auto_update": "Accepted, without effect: the catalogue changes only on request.",
    "Options.disable_metrics": "Accepted, without effect: no metrics are sent.",
    "Options.attribution": "The trailer of commit messages.",
    "Options.initialize_as": "The file to write when a project is initialized.",
    "Options.auto_lsp": "Whether known language servers are started automatically.",
    "Options.progress": "Whether progress is shown in the terminal's title bar.",
    "Options.notifications": "The kind of notification when a run waits for an answer or has ended.",
    "Options.sandbox": '"workspace" prevents commands from writing outside the workspace.',
    "Options.sandbox_network": "Whether sandboxed commands can access the network.",
    "Options.ask_timeout": "Seconds that an approval or a question waits without a client; then it is denied.",
    "Options.job_linger": "Seconds for which background jobs keep a workspace open without a client.",
    "Options.max_steps": "The maximum number of steps of a run; 0 for no limit.",
    "Options.max_minutes": "The maximum duration of a run in minutes; 0 for no limit.",
    "Options.max_cost": "The maximum cost of a run in US dollars; 0 for no limit.",
    "Options.max_retries": "The maximum number of retries after a temporary failure of a model request; 0 for none.",
    "Options.model_load_timeout": "Seconds to wait for a local server that is loading its model.",
    "Options.metrics": "Whether /metrics serves Prometheus. Ignored in project files; read at server start.",
    "Options.telemetry": "The URL for traces (OTLP over HTTP). Ignored in project files; read at server start.",
    "Options.max_agents": "The maximum number of concurrent sub-agents of a run.",
    "Options.max_agent_depth": "The maximum nesting of sub-agents; 0 for no sub-agents.",
    "PermissionSettings.allowed_tools": "Tools that are allowed without a request: tool or tool:action.",
    "PermissionSettings.allow": "Rules for calls that are allowed without a request, such as bash(git status *).",
    "PermissionSettings.ask": "Rules for calls that always require a request.",
    "PermissionSettings.deny": "Rules for calls that are always denied.",
    "SandboxSettings.home": "Paths of the home directory that sandboxed commands can write, such as .cache/pip.",
    "SandboxSettings.home_readonly": "Paths of the home directory that sandboxed commands can read, such as .bun.",
    "StorageSettings.url": "The address of a PostgreSQL database; empty for SQLite in the data directory.",
    "StorageSettings.key_file": "A file with the key that encrypts tokens and sign-ins in the store; "
    "the same on all servers.",
    "StorageSettings.password_file": "A file that contains the password of the database.",
    "ToolSettings.ls": "max_depth and max_items of a listing.",
    "ToolSettings.grep": "timeout of a search, in nanoseconds.",
    "ToolSettings.glob": "timeout of a search for names, in nanoseconds.",
    "HookSettings.command": "The command, executed by bash. See docs/extending.md.",
    "HookSettings.name": "The display name.",
    "HookSettings.matcher": "A regular expression for the names of the tools; empty for all.",
    "HookSettings.timeout": "Seconds for the command; 0 for the default.",
}


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema for editors. It does not allow unknown keys, which `config check` reports too."""
    schema = msgspec.json.schema(Settings)
    for name, definition in schema["$defs"].items():
        definition["additionalProperties"] = False
        for key, field in definition.get("properties", {}).items():
            definition["properties"][key] = _with_description(field, DESCRIPTIONS.get(f"{name}.{key}", ""))
    schema["$defs"]["Settings"]["properties"]["$schema"] = {"type": "string", "description": "Location of this schema."}
    provider = schema["$defs"]["ProviderSettings"]["properties"]["type"]
    provider["examples"] = list(PROVIDER_TYPES)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Holdfast's settings", **schema}


def _with_description(field: dict[str, Any], text: str) -> dict[str, Any]:
    return {**field, "description": text} if text else field


def with_defaults(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Convert settings to plain objects with all defaults. Values of None are left out."""
    if isinstance(value, msgspec.Struct):
        pairs = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: with_defaults(item) for name, item in pairs if item is not None}
    if isinstance(value, dict):
        return {name: with_defaults(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_defaults(item) for item in value]
    return value
