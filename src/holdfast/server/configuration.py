"""The configuration in force, and its changes over the wire."""

import re
from typing import Any

from holdfast.config.store import merged
from holdfast.domain.errors import BadRequest, ProviderError
from holdfast.domain.events import Change, ConfigChanged, ConfigChangedEvent
from holdfast.domain.models import ModelInfo
from holdfast.protocol.bodies import InitPrompt, ModelChoice, ModelFacts, NeedsInit
from holdfast.server.calls import Call
from holdfast.server.hub import Desk

__all__ = [
    "config_compact",
    "config_import_copilot",
    "config_model",
    "config_of",
    "config_provider_key",
    "config_refresh_oauth",
    "config_remove",
    "config_set",
    "default_small_model",
    "facts_of",
    "init_project",
    "init_prompt",
    "needs_init",
]

_INIT_PROMPT = (
    "Look at this project and write AGENTS.md for whoever works on it next: how to build, run and test it, how the "
    "code is laid out, and the habits it keeps. Short and exact; improve the file if it is there already."
)


_OBJECTS = frozenset({"models", "providers", "options"})
_INSIDE = {"options": frozenset({"tui"})}
_SECRET = re.compile(r"(?i)(^|_|-)(api_?key|token|secret|password|authorization)$")


async def config_of(desk: Desk) -> dict[str, Any]:
    """What screens read. `providers`, `options` and `options.tui` are always there: stock clients insist."""
    models = desk.workspace.engine.kit.models
    try:
        infos = {"large": (await models.large()).info, "small": (await models.small()).info}
    except ProviderError:
        # Without a usable model a workspace can still be opened, looked at, and set up.
        infos = {}
    base = {
        "models": {size: _choice(info) for size, info in infos.items()},
        "providers": {info.provider: _provider(info) for info in reversed(infos.values())},
        "options": {
            "context_paths": ["AGENTS.md"],
            "tui": {},
            "data_directory": str(desk.data_dir),
            "initialize_as": "AGENTS.md",
            "disable_metrics": True,
        },
    }
    return merged(base, _fitting(_without_secrets(desk.config.read())))


def _fitting(config: dict[str, Any]) -> dict[str, Any]:
    """Without what is not an object where every reader expects one."""
    fitting = {name: value for name, value in config.items() if name not in _OBJECTS or isinstance(value, dict)}
    for name in _OBJECTS & fitting.keys():
        inside = fitting[name]
        fitting[name] = {
            key: value
            for key, value in inside.items()
            if key not in _INSIDE.get(name, inside) or isinstance(value, dict)
        }
    return fitting


def facts_of(info: ModelInfo) -> ModelFacts:
    price = info.price
    return ModelFacts(
        id=info.model,
        name=info.model,
        cost_per_1m_in=price.input,
        cost_per_1m_out=price.output,
        cost_per_1m_in_cached=price.cache_write,
        cost_per_1m_out_cached=price.cache_read,
        context_window=info.context_window,
        default_max_tokens=info.max_output_tokens,
        can_reason=False,
        supports_attachments=info.supports_images,
    )


async def config_set(call: Call) -> None:
    _set(call.desk, call.body.scope, call.body.key, call.body.value)


async def config_remove(call: Call) -> None:
    call.desk.config.remove(call.body.scope, call.body.key)
    _tell(call.desk)


async def config_model(call: Call) -> None:
    choice = {"model": call.body.model.model, "provider": call.body.model.provider}
    _set(call.desk, call.body.scope, f"models.{call.body.model_type}", choice)


async def config_compact(call: Call) -> None:
    enabled = call.body.get("enabled")
    if not isinstance(enabled, bool):
        raise BadRequest("enabled must be true or false")
    _set(call.desk, _scope(call), "options.tui.compact_mode", enabled)


async def config_provider_key(call: Call) -> None:
    provider, key = call.body.get("provider_id"), call.body.get("api_key")
    if not isinstance(provider, str) or not provider or "." in provider or not isinstance(key, str):
        raise BadRequest("provider_id and api_key are required, as text")
    _set(call.desk, _scope(call), f"providers.{provider}.api_key", key)


async def config_refresh_oauth(call: Call) -> None:
    raise BadRequest("No provider that is set up has a token to refresh.")


async def config_import_copilot(_: Call) -> dict[str, Any]:
    return {"success": False}


async def default_small_model(call: Call) -> ModelChoice:
    info = (await call.desk.workspace.engine.kit.models.small()).info
    return ModelChoice(info.model, info.provider, info.max_output_tokens)


async def needs_init(_: Call) -> NeedsInit:
    return NeedsInit(needs_init=False)


async def init_project(_: Call) -> None:
    """Nothing needs to be remembered: no question is asked before the first prompt."""


async def init_prompt(_: Call) -> InitPrompt:
    return InitPrompt(_INIT_PROMPT)


def _set(desk: Desk, scope: int, key: str, value: object) -> None:
    desk.config.set(scope, key, value)
    _tell(desk)


def _tell(desk: Desk) -> None:
    """Other screens read the workspace again."""
    changed = ConfigChangedEvent(Change("updated", ConfigChanged(desk.id)))
    desk.workspace.engine.outside.outlet.publish_live(changed)


def _scope(call: Call) -> int:
    scope = call.body.get("scope", 0)
    return scope if isinstance(scope, int) else -1


def _choice(info: ModelInfo) -> dict[str, Any]:
    return {"model": info.model, "provider": info.provider, "max_tokens": info.max_output_tokens}


def _provider(info: ModelInfo) -> dict[str, Any]:
    facts = facts_of(info)
    model = {name: getattr(facts, name) for name in facts.__struct_fields__}
    return {"id": info.provider, "name": info.provider, "type": "openai-compat", "models": [model]}


def _without_secrets(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Keys and tokens go out as `set`, over every transport, wherever they stand."""
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: "set" if _SECRET.search(name) and item else _without_secrets(item) for name, item in value.items()}
