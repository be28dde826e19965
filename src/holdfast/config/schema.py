"""The JSON schema of the settings, made from their types: editors complete and check with it."""

from typing import Any

import msgspec

from holdfast.domain.settings import PROVIDER_TYPES, Settings

__all__ = ["DESCRIPTIONS", "settings_schema", "with_defaults"]


# One sentence for every key: the schema, editors and the guide show them. Pure.

DESCRIPTIONS: dict[str, str] = {
    "Settings.models": "The models a workspace uses: the large one works, the small one writes titles.",
    "Settings.recent_models": "What was chosen before, newest first. Kept by the program.",
    "Settings.providers": "Who runs models, by a name of your choice or a name of the catalogue.",
    "Settings.mcp": "Servers that offer tools, by a name of your choice.",
    "Settings.lsp": "Language servers, by a name of your choice.",
    "Settings.options": "Everything that belongs to no other table.",
    "Settings.permissions": "What may be done without asking, only after asking, and not at all.",
    "Settings.tools": "Limits of single tools.",
    "Settings.sandbox": "What sandboxed commands see of the home directory. Never taken from a project's files.",
    "Settings.hooks": "Commands that are run at certain moments, by the name of the moment.",
    "Settings.env": "Variables for commands, servers and the expansion of values. Values are expanded.",
    "Models.large": "The model that does the work.",
    "Models.small": "The model for small jobs, such as titles.",
    "RecentModels.large": "Large models, newest first.",
    "RecentModels.small": "Small models, newest first.",
    "Selection.model": "The model's id, as its provider calls it.",
    "Selection.provider": "The name of a provider.",
    "Selection.reasoning_effort": "How much the model thinks: one of the levels it knows, such as low or high.",
    "Selection.think": "Whether a model that can think does, where that is all there is to choose.",
    "Selection.max_tokens": "The longest answer, in tokens; 0 leaves it to the model.",
    "Selection.temperature": "How freely the model chooses its words.",
    "Selection.top_p": "The share of likely words the model chooses from.",
    "Selection.top_k": "The number of likely words the model chooses from.",
    "Selection.frequency_penalty": "How much words that came often are avoided.",
    "Selection.presence_penalty": "How much words that came at all are avoided.",
    "Selection.provider_options": "Sent to the provider as it is written.",
    "ModelSettings.id": "The model's id, as its provider calls it.",
    "ModelSettings.name": "How it is shown.",
    "ModelSettings.cost_per_1m_in": "Dollars for a million tokens that are read.",
    "ModelSettings.cost_per_1m_out": "Dollars for a million tokens that are written.",
    "ModelSettings.cost_per_1m_in_cached": "Dollars for a million tokens that are put into the cache.",
    "ModelSettings.cost_per_1m_out_cached": "Dollars for a million tokens that come from the cache.",
    "ModelSettings.context_window": "How many tokens fit into a conversation.",
    "ModelSettings.default_max_tokens": "The longest answer unless something else is chosen.",
    "ModelSettings.can_reason": "Whether it thinks before it answers.",
    "ModelSettings.reasoning_levels": "The efforts it knows.",
    "ModelSettings.default_reasoning_effort": "The effort unless something else is chosen.",
    "ModelSettings.supports_attachments": "Whether it sees images.",
    "ModelSettings.options": "Settings for this model alone.",
    "ProviderSettings.id": "Its id, if it is not its name here.",
    "ProviderSettings.name": "How it is shown.",
    "ProviderSettings.type": "The wire it speaks, such as openai, openai-compat, anthropic, google or bedrock.",
    "ProviderSettings.base_url": "Where it answers. Expanded.",
    "ProviderSettings.api_key": "The key, best as a template such as $OPENAI_API_KEY. Expanded.",
    "ProviderSettings.oauth": "A token, kept by the program.",
    "ProviderSettings.disable": "Whether it is left alone.",
    "ProviderSettings.system_prompt_prefix": "Put before the system prompt.",
    "ProviderSettings.extra_headers": "Sent with every request; those that come out empty are not. Expanded.",
    "ProviderSettings.extra_body": "Added to the body of every request. Expanded.",
    "ProviderSettings.provider_options": "Sent to the provider as it is written.",
    "ProviderSettings.aws_auth_refresh": "A command that renews the credentials for Bedrock.",
    "ProviderSettings.flat_rate": "Whether requests cost nothing extra.",
    "ProviderSettings.discover_models": "Whether the server is asked which models it has.",
    "ProviderSettings.timeout": "Seconds of silence that end a request; 0: 300 before an answer, 120 within one.",
    "ProviderSettings.models": "Models, by id; what is said here stands above the catalogue.",
    "McpSettings.type": "How it is reached.",
    "McpSettings.command": "The program of a stdio server. Expanded.",
    "McpSettings.args": "Its arguments. Expanded.",
    "McpSettings.env": "Its variables. Expanded.",
    "McpSettings.url": "Where an http or sse server answers. Expanded.",
    "McpSettings.headers": "Sent with every request. Expanded.",
    "McpSettings.disabled": "Whether it is left alone.",
    "McpSettings.disabled_tools": "Tools of it that are not offered.",
    "McpSettings.enabled_tools": "If given, the only tools of it that are offered.",
    "McpSettings.timeout": "How many seconds it has to start, and to list what it offers.",
    "McpSettings.call_timeout": "How many seconds a call may be silent; what it tells of its progress counts. 0: any.",
    "McpSettings.oauth": "Whether one signs in; left out, the server decides.",
    "McpSettings.oauth_client_id": "For signing in. Expanded.",
    "McpSettings.oauth_client_secret": "For signing in. Expanded.",
    "McpSettings.oauth_callback_port": "The port that is listened on while one signs in; 0 for any.",
    "McpSettings.oauth_token": "A token, kept by the program.",
    "LspSettings.disabled": "Whether it is left alone.",
    "LspSettings.command": "The program. Expanded.",
    "LspSettings.args": "Its arguments. Expanded.",
    "LspSettings.env": "Its variables. Expanded.",
    "LspSettings.filetypes": "The endings of the files it is for.",
    "LspSettings.root_markers": "Files that mark the root of its project.",
    "LspSettings.init_options": "Sent when it starts.",
    "LspSettings.options": "Its settings.",
    "LspSettings.timeout": "How many seconds it has to start.",
    "Attribution.trailer_style": "What is written below a commit message.",
    "Attribution.generated_with": "Whether the program is named there.",
    "Attribution.co_authored_by": "An old form of trailer_style.",
    "Options.context_paths": "Files and directories whose text the model is given, besides AGENTS.md and its like.",
    "Options.global_context_paths": "The same for every project.",
    "Options.skills_paths": "Directories with skills.",
    "Options.tui": "How screens look.",
    "Options.debug": "Whether more is logged.",
    "Options.debug_lsp": "Whether more is logged about language servers.",
    "Options.disable_auto_summarize": "Whether long conversations are left as they are.",
    "Options.data_directory": "Read from other tools' files; Holdfast's own is chosen with --data-dir.",
    "Options.disabled_tools": "Tools that are not offered to models.",
    "Options.disabled_skills": "Skills that are not offered to models.",
    "Options.disable_default_providers": "Whether only the providers of these files are known.",
    "Options.disable_provider_auto_update": "Accepted and without effect: the catalogue changes only when asked to.",
    "Options.disable_metrics": "Accepted and without effect: nothing is sent anywhere.",
    "Options.attribution": "What is written below commit messages.",
    "Options.initialize_as": "The file that is written when a project is described for the first time.",
    "Options.auto_lsp": "Whether known language servers are started by themselves.",
    "Options.progress": "Whether progress is shown in the terminal's title bar.",
    "Options.notifications": "How one is told that a run waits or has ended.",
    "Options.sandbox": '"workspace" keeps commands from writing outside the workspace.',
    "Options.sandbox_network": "Whether commands in the sandbox reach the network.",
    "Options.ask_timeout": "Seconds that an approval or a question waits while no client is attached; then it is denied.",
    "Options.job_linger": "Seconds that background jobs keep a workspace open while no client is attached.",
    "Options.max_steps": "The most steps of a run; 0 for no limit.",
    "Options.max_minutes": "The most minutes of a run; 0 for no limit.",
    "Options.max_cost": "The most dollars of a run; 0 for no limit.",
    "Options.max_retries": "How often a model request that failed for a passing reason is repeated; 0 for never.",
    "Options.model_load_timeout": "How many seconds to wait for a local server that is still loading its model.",
    "Options.metrics": "Whether /metrics answers Prometheus. Yours alone to set; read when the server starts.",
    "Options.telemetry": "Where spans are sent, over OTLP and HTTP; empty: nowhere. Yours alone to set; read at start.",
    "Options.max_agents": "How many agents of one run may work at once.",
    "Options.max_agent_depth": "How many agents may stand below each other; 0 for none at all.",
    "PermissionSettings.allowed_tools": "Tools that need not ask: tool or tool:action.",
    "PermissionSettings.allow": "Rules for what needs no asking, such as bash(git status *).",
    "PermissionSettings.ask": "Rules for what is always asked.",
    "PermissionSettings.deny": "Rules for what is never done.",
    "SandboxSettings.home": "Paths of the home directory that sandboxed commands can write, such as .cache/pip.",
    "SandboxSettings.home_readonly": "Paths of the home directory that sandboxed commands can read, such as .bun.",
    "ToolSettings.ls": "max_depth and max_items of a listing.",
    "ToolSettings.grep": "timeout of a search, in nanoseconds.",
    "ToolSettings.glob": "timeout of a search for names, in nanoseconds.",
    "HookSettings.command": "What is run, by bash. See docs/extending.md.",
    "HookSettings.name": "How it is shown.",
    "HookSettings.matcher": "For which tools, as a regular expression; empty for all.",
    "HookSettings.timeout": "How many seconds it may take; 0 for the usual.",
}


# The JSON schema of the settings, made from their types: editors complete and check with it.


def settings_schema() -> dict[str, Any]:
    """Keys that are not known are marked, as `config check` does."""
    schema = msgspec.json.schema(Settings)
    for name, definition in schema["$defs"].items():
        definition["additionalProperties"] = False
        for key, field in definition.get("properties", {}).items():
            definition["properties"][key] = _described(field, DESCRIPTIONS.get(f"{name}.{key}", ""))
    schema["$defs"]["Settings"]["properties"]["$schema"] = {"type": "string", "description": "Where this schema is."}
    provider = schema["$defs"]["ProviderSettings"]["properties"]["type"]
    provider["examples"] = list(PROVIDER_TYPES)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Holdfast's settings", **schema}


def _described(field: dict[str, Any], text: str) -> dict[str, Any]:
    return {**field, "description": text} if text else field


# The settings with every default written out, as they are shown. Pure.


def with_defaults(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Structs become objects with all their fields; what is unset is left out."""
    if isinstance(value, msgspec.Struct):
        pairs = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: with_defaults(item) for name, item in pairs if item is not None}
    if isinstance(value, dict):
        return {name: with_defaults(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_defaults(item) for item in value]
    return value
