"""Handlers for the configuration: effective settings, and changes to them."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.choosing import Size
from holdfast.config.configuration import Configuration, Reading
from holdfast.config.fit import key_type, objections
from holdfast.config.locations import places_for
from holdfast.config.problems import Problem, dotted, key_path
from holdfast.config.secrets import redacted
from holdfast.domain.errors import BadRequest, HoldfastError, ProviderError
from holdfast.domain.models import ModelInfo
from holdfast.domain.settings import Attribution, Options, Selection
from holdfast.manners import own_files
from holdfast.permission_check import outdated_rules
from holdfast.protocol.bodies import ConfigProblem, ModelChoice, ModelFacts
from holdfast.providers.client import post_form
from holdfast.providers.view import ProviderView
from holdfast.server.calls import Call
from holdfast.server.desk import Desk
from holdfast.workspace.surroundings import CONTEXT_NAMES

__all__ = [
    "choice_of",
    "config_compact",
    "config_import_copilot",
    "config_model",
    "config_of",
    "config_problems",
    "config_provider_key",
    "config_refresh_oauth",
    "config_remove",
    "config_set",
    "default_small_model",
    "facts_of",
    "problems_of",
    "server_config",
]

_RECENT = 5


async def config_of(desk: Desk) -> dict[str, Any]:
    """Return the effective configuration for clients. Crush clients require `providers`, `options` and
    `options.tui`.
    """
    models = desk.workspace.engine.kit.models
    infos: dict[Size, ModelInfo] = {}
    # Without a usable model a workspace can still be opened, viewed and configured.
    with suppress(ProviderError):
        infos = {"large": (await models.large()).info, "small": (await models.small()).info}
    reading = desk.outfit.configuration.reading()
    in_force = _shown(reading, str(desk.data_dir))
    in_force["providers"] = await _providers(desk, infos.values(), in_force["providers"])
    # The selected model may be unusable; show the one that is used in its place.
    chosen = {size: msgspec.to_builtins(choice_of(desk, size, info)) for size, info in infos.items()}
    in_force["models"] = {**in_force.get("models", {}), **chosen}
    return in_force


async def server_config(call: Call) -> dict[str, Any]:
    """Return the settings that apply to every workspace: those of the user, without any project."""
    return await asyncio.to_thread(_everywhere, str(call.hub.data_dir))


def _everywhere(data_dir: str) -> dict[str, Any]:
    places = places_for("/", os.environ, data_dir=data_dir)
    sources = tuple(source for source in places.sources if source.kind != "project")
    configuration = Configuration(msgspec.structs.replace(places, sources=sources), os.environ)
    return _shown(configuration.reading(), data_dir)


def _shown(reading: Reading, data_dir: str) -> dict[str, Any]:
    """Return the settings without secrets, with the defaults of options that are not set."""
    tree = redacted(reading.tree)
    options = {**_whole(Options()), **tree.get("options", {})}
    options["attribution"] = _whole(reading.settings.options.attribution)
    options["context_paths"] = list(dict.fromkeys((*CONTEXT_NAMES, *options["context_paths"])))
    options["global_context_paths"] = [str(path) for path in own_files(reading.settings.options, os.environ)]
    # Files of other tools set this for those tools.
    options["data_directory"] = data_dir
    shown = {"providers": {}, **tree, "options": options}
    if "mcp" in shown:
        shown["mcp"] = {name: {"type": reading.settings.mcp[name].type, **mcp} for name, mcp in shown["mcp"].items()}
    return shown


def _whole(settings: Options | Attribution) -> dict[str, Any]:
    """Return the fields including defaults, without those that are None."""
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value is not None}


def choice_of(desk: Desk, size: Size, info: ModelInfo) -> ModelChoice:
    """Return the model in use with its settings. Clients poll this."""
    wanted: Selection = getattr(desk.outfit.configuration.settings.models, size)
    return ModelChoice(
        info.model,
        info.provider,
        wanted.max_tokens or info.max_output_tokens,
        wanted.reasoning_effort,
        wanted.think,
        wanted.temperature,
        wanted.top_p,
        wanted.top_k,
        wanted.frequency_penalty,
        wanted.presence_penalty,
        redacted(wanted.provider_options, ("models", size, "provider_options")) if wanted.provider_options else {},
    )


async def _providers(desk: Desk, infos: Iterable[ModelInfo], written: dict[str, Any]) -> dict[str, Any]:
    """Return the usable providers by id, with their settings and complete model descriptions. Those in use are always
    included.
    """
    known: dict[str, dict[str, Any]] = {}
    for info in dict.fromkeys(infos):
        known.setdefault(info.provider, _provider(info))["models"].append(msgspec.to_builtins(facts_of(info)))
    if desk.outfit.choice is not None:
        known |= {view.id: _in_config(view) for view in await desk.outfit.choice.usable_view()}
    return {id: {**written.get(id, {}), **view} for id, view in known.items()}


def _in_config(view: ProviderView) -> dict[str, Any]:
    """Return a provider in the form of the configuration, without the catalogue's additions for pickers."""
    return {"id": view.id, "name": view.name, "type": view.type, "models": msgspec.to_builtins(view.models)}


def facts_of(info: ModelInfo) -> ModelFacts:
    """Describe a model for clients."""
    price = info.price
    return ModelFacts(
        id=info.model,
        name=info.name or info.model,
        cost_per_1m_in=price.input,
        cost_per_1m_out=price.output,
        cost_per_1m_in_cached=price.cache_write,
        cost_per_1m_out_cached=price.cache_read,
        context_window=info.context_window,
        default_max_tokens=info.max_output_tokens,
        can_reason=info.can_reason,
        supports_attachments=info.supports_images,
        reasoning_levels=info.reasoning_levels,
        default_reasoning_effort=info.default_reasoning_effort,
    )


async def config_set(call: Call) -> None:
    """Set a value. One that does not fit its key is refused, because it would be ignored silently."""
    path = key_path(call.body.key)
    is_checked = key_type(path) is not None or path[0] in ("permissions", "hooks", "tools")
    if is_checked and (wrong := objections(path, call.body.value)):
        raise BadRequest(f"{call.body.key}: {' '.join(wrong)}")
    if path == ("permissions", "allow") and call.body.scope == 1:
        _refuse_outdated(call.desk, call.body.value)
    _set(call.desk, call.body.scope, call.body.key, call.body.value)


def _refuse_outdated(desk: Desk, rules: list[str]) -> None:
    """Refuse new rules that would count as saved by an earlier version: a relative program without its directory in the
    workspace's own file.
    """
    from holdfast.permissions.saving import is_outdated  # noqa: PLC0415 - only where rules are set

    known = desk.config.scope(1).get("permissions", {}).get("allow", [])
    if new := [rule for rule in rules if rule not in known and is_outdated(rule)]:
        raise BadRequest(
            f"The rule {new[0][:80]!r} names a relative program without its directory, and would not be used here: "
            "write the program's absolute path, or set the rule in your own settings (scope 0)."
        )


async def config_remove(call: Call) -> None:
    """Remove a key from a settings file."""
    call.desk.config.remove(call.body.scope, call.body.key)
    call.desk.tell_of_change()


async def config_model(call: Call) -> None:
    """Select a model. An unusable one is refused and not stored, because the next run would fail."""
    chosen = msgspec.to_builtins(call.body.model)
    kind = call.body.model_type
    if wrong := objections(("models", kind), chosen):
        raise BadRequest(" ".join(wrong))
    if call.desk.outfit.choice is not None:
        found = await call.desk.outfit.choice.check(msgspec.convert(chosen, Selection))
        chosen |= {"model": found.model, "provider": found.provider}
    recent = [item for item in call.desk.config.scope(0).get("recent_models", {}).get(kind, []) if item != chosen]
    # Store the choice first: if it is refused, it must not be listed as recent.
    call.desk.config.set(call.body.scope, f"models.{kind}", chosen)
    _set(call.desk, 0, f"recent_models.{kind}", [chosen, *recent][:_RECENT])


async def config_compact(call: Call) -> None:
    """Switch the compact mode of the terminal interface."""
    enabled = call.body.get("enabled")
    if not isinstance(enabled, bool):
        raise BadRequest("enabled must be true or false")
    _set(call.desk, _scope(call), "options.tui.compact_mode", enabled)


async def config_provider_key(call: Call) -> None:
    """Store an API key, or the token of an OAuth login."""
    provider, key, kind = _provider_id(call), call.body.get("api_key"), call.body.get("kind", "string")
    if kind not in ("string", "oauth"):
        raise BadRequest("unsupported api key kind: it is string or oauth")
    if kind == "oauth":
        if not isinstance(key, dict) or not isinstance(key.get("access_token"), str):
            raise BadRequest("api_key must be a token: an object with access_token.")
        _set(call.desk, _scope(call), dotted(("providers", provider, "oauth")), key)
        return
    if not isinstance(key, str):
        raise BadRequest("provider_id and api_key are required, as text")
    _set(call.desk, _scope(call), dotted(("providers", provider, "api_key")), key)


async def config_refresh_oauth(call: Call) -> None:
    """Refresh an OAuth token. The next model request uses the new token; other processes read it from the store."""
    provider, outfit = _provider_id(call), call.desk.outfit
    try:
        token = await asyncio.to_thread(outfit.credentials.token, provider)
    except HoldfastError as error:
        # The credentials file cannot be read; the message contains the remedy.
        raise BadRequest(str(error)) from None
    if token is None:
        if (known := outfit.settings.providers.get(provider)) is not None and known.oauth:
            raise BadRequest(f"The token of {provider} came without a way to refresh it: sign in again.")
        raise BadRequest(f"Nobody has signed in at {provider}: there is no token to refresh.")
    await outfit.refresher.refresh(provider, post_form)
    call.desk.tell_of_change()


async def config_problems(call: Call) -> tuple[ConfigProblem, ...]:
    """Return the problems of the settings files. The last valid contents of a broken file stay in effect."""
    return tuple(
        ConfigProblem(item.severity, item.file, item.line, item.key, item.text) for item in problems_of(call.desk)
    )


def problems_of(desk: Desk) -> tuple[Problem, ...]:
    """Return the problems of the settings, of hooks in other programs' files, and of saved rules that are out
    of date.
    """
    reading = desk.outfit.configuration.reading()
    outdated = outdated_rules(reading, str(desk.data_dir / "config.json"))
    return (*reading.problems, *desk.outfit.extensions.hooks.problems(), *outdated)


async def config_import_copilot(_: Call) -> dict[str, Any]:
    """Report that importing Copilot credentials is not supported."""
    return {"token": None, "success": False}


async def default_small_model(call: Call) -> ModelChoice:
    """Return the default small model of a provider, or the one in use."""
    choice = call.desk.outfit.choice
    if choice is not None and (provider := call.query.get("provider_id")):
        selection = await choice.default_small(provider)
        return ModelChoice(selection.model, selection.provider, selection.max_tokens)
    return choice_of(call.desk, "small", (await call.desk.workspace.engine.kit.models.small()).info)


def _set(desk: Desk, scope: int, key: str, value: object) -> None:
    desk.config.set(scope, key, value)
    desk.tell_of_change()


def _provider_id(call: Call) -> str:
    provider = call.body.get("provider_id")
    if not isinstance(provider, str) or not provider:
        raise BadRequest("provider_id is required, as text")
    return provider


def _scope(call: Call) -> int:
    scope = call.body.get("scope", 0)
    return scope if isinstance(scope, int) else -1


def _provider(info: ModelInfo) -> dict[str, Any]:
    return {"id": info.provider, "name": info.provider, "type": "openai-compat", "models": []}
