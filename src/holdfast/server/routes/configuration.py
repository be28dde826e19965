"""Handlers for the configuration: effective settings, changes to them, trust in the files of a project, and its
initialization.
"""

import asyncio
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config.configuration import ConfigSnapshot, Configuration
from holdfast.config.locations import locate_settings
from holdfast.config.problems import FileProblem, format_key, parse_key
from holdfast.config.redaction import redact
from holdfast.config.validate import key_type, value_problems
from holdfast.domain.documents import Documents
from holdfast.domain.errors import BadRequest, HoldfastError, ProviderError
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import Attribution, Options, Selection
from holdfast.extensions.trust import (
    TrustableFile,
    combined_digest,
    find_trustable_files,
    grant_trust,
    revoke_trust,
    untrusted_files,
)
from holdfast.protocol.bodies import (
    ConfigProblem,
    InitPrompt,
    ModelDescription,
    ProjectInitStatus,
    SelectedModel,
    TrustBody,
    WithheldKey,
)
from holdfast.providers.model_registry import ProviderView
from holdfast.providers.shared_http_clients import post_form
from holdfast.runtime.engine_settings import own_files
from holdfast.runtime.model_selection import Size
from holdfast.runtime.workspace_permissions import outdated_rules
from holdfast.server.http.request import Request
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.workspace.project_context import CONTEXT_NAMES, find_context_sources

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
    "get_trust",
    "init_project",
    "init_prompt",
    "needs_init",
    "problems_of",
    "server_config",
    "set_trust",
]


_RECENT = 5
_PROMPT = (
    "Analyse this project and write {} for its next contributors: how to build, run and test it, the structure of the "
    "code, and its conventions. Be brief and exact; improve the file if it exists already."
)


async def config_of(handle: WorkspaceHandle) -> dict[str, Any]:
    """Return the effective configuration for clients. Crush clients require `providers`, `options` and
    `options.tui`.
    """
    models = handle.services.models
    infos: dict[Size, ModelInfo] = {}
    # Without a usable model a workspace can still be opened, viewed and configured.
    with suppress(ProviderError):
        infos = {"large": (await models.large()).info, "small": (await models.small()).info}
    reading = handle.services.configuration.snapshot()
    in_force = _redacted_settings(reading, str(handle.data_dir))
    in_force["providers"] = await _providers(handle, infos.values(), in_force["providers"])
    # The selected model may be unusable; show the one that is used in its place.
    chosen = {size: msgspec.to_builtins(choice_of(handle, size, info)) for size, info in infos.items()}
    in_force["models"] = {**in_force.get("models", {}), **chosen}
    return in_force


async def server_config(request: Request) -> dict[str, Any]:
    """Return the settings that apply to every workspace: those of the user, without any project."""
    services = request.manager.services
    return await asyncio.to_thread(
        _server_settings, str(services.data_dir), services.documents, is_shared=services.shared is not None
    )


def _server_settings(data_dir: str, documents: Documents, *, is_shared: bool) -> dict[str, Any]:
    places = locate_settings("/", os.environ, data_dir=data_dir, is_shared=is_shared)
    sources = tuple(source for source in places.sources if source.kind != "project")
    configuration = Configuration(msgspec.structs.replace(places, sources=sources), os.environ, documents=documents)
    return _redacted_settings(configuration.snapshot(), data_dir)


def _redacted_settings(reading: ConfigSnapshot, data_dir: str) -> dict[str, Any]:
    """Return the settings without secrets, with the defaults of options that are not set."""
    tree = redact(reading.tree)
    options = {**_with_defaults(Options()), **tree.get("options", {})}
    options["attribution"] = _with_defaults(reading.settings.options.attribution)
    options["context_paths"] = list(dict.fromkeys((*CONTEXT_NAMES, *options["context_paths"])))
    options["global_context_paths"] = [str(path) for path in own_files(reading.settings.options, os.environ)]
    # Files of other tools set this for those tools.
    options["data_directory"] = data_dir
    shown = {"providers": {}, **tree, "options": options}
    if "mcp" in shown:
        shown["mcp"] = {name: {"type": reading.settings.mcp[name].type, **mcp} for name, mcp in shown["mcp"].items()}
    return shown


def _with_defaults(settings: Options | Attribution) -> dict[str, Any]:
    """Return the fields including defaults, without those that are None."""
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value is not None}


def choice_of(handle: WorkspaceHandle, size: Size, info: ModelInfo) -> SelectedModel:
    """Return the model in use with its settings. Clients poll this."""
    settings = handle.services.configuration.settings
    wanted: Selection = getattr(settings.models, size)
    return SelectedModel(
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
        redact(wanted.provider_options, ("models", size, "provider_options")) if wanted.provider_options else {},
    )


async def _providers(handle: WorkspaceHandle, infos: Iterable[ModelInfo], written: dict[str, Any]) -> dict[str, Any]:
    """Return the usable providers by id, with their settings and complete model descriptions. Those in use are always
    included.
    """
    known: dict[str, dict[str, Any]] = {}
    for info in dict.fromkeys(infos):
        known.setdefault(info.provider, _provider(info))["models"].append(msgspec.to_builtins(facts_of(info)))
    if handle.services.selected_models is not None:
        known |= {view.id: _in_config(view) for view in await handle.services.selected_models.usable_view()}
    return {id: {**written.get(id, {}), **view} for id, view in known.items()}


def _in_config(view: ProviderView) -> dict[str, Any]:
    """Return a provider in the form of the configuration, without the catalogue's additions for pickers."""
    return {"id": view.id, "name": view.name, "type": view.type, "models": msgspec.to_builtins(view.models)}


def facts_of(info: ModelInfo) -> ModelDescription:
    """Describe a model for clients."""
    price = info.price
    return ModelDescription(
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


async def config_set(request: Request) -> None:
    """Set a value. One that does not fit its key is refused, because it would be ignored silently."""
    path = parse_key(request.body.key)
    if path[0] == "storage":
        # The store is opened before saved settings are read, so the value would be shown but not used.
        raise BadRequest("storage: set it in the settings file of the user that runs the server.")
    is_checked = key_type(path) is not None or path[0] in ("permissions", "hooks", "tools")
    if is_checked and (wrong := value_problems(path, request.body.value)):
        raise BadRequest(f"{request.body.key}: {' '.join(wrong)}")
    if path == ("permissions", "allow") and request.body.scope == 1:
        _refuse_outdated(request.handle, request.body.value)
    await _set(request.handle, request.body.scope, request.body.key, request.body.value)


def _refuse_outdated(handle: WorkspaceHandle, rules: list[str]) -> None:
    """Refuse new rules that would count as saved by an earlier version: a relative program without its directory in the
    workspace's own file.
    """
    from holdfast.permissions.always_allow_rules import is_outdated  # noqa: PLC0415 - only where rules are set

    known = handle.services.config_store.read_scope(1).get("permissions", {}).get("allow", [])
    if new := [rule for rule in rules if rule not in known and is_outdated(rule)]:
        raise BadRequest(
            f"The rule {new[0][:80]!r} names a relative program without its directory, and would not be used here: "
            "write the program's absolute path, or set the rule in your own settings (scope 0)."
        )


async def config_remove(request: Request) -> None:
    """Remove a key from a settings file."""
    await asyncio.to_thread(request.services.config_store.remove, request.body.scope, request.body.key)
    request.services.notify_settings_changed()


async def config_model(request: Request) -> None:
    """Select a model. An unusable one is refused and not stored, because the next run would fail."""
    chosen = msgspec.to_builtins(request.body.model)
    kind = request.body.model_type
    if wrong := value_problems(("models", kind), chosen):
        raise BadRequest(" ".join(wrong))
    if request.services.selected_models is not None:
        found = await request.services.selected_models.check(msgspec.convert(chosen, Selection))
        chosen |= {"model": found.model, "provider": found.provider}

    def with_chosen(recent: Any) -> object:  # noqa: ANN401 - any JSON
        return [chosen, *(item for item in recent or () if item != chosen)][:_RECENT]

    store = request.services.config_store
    # Store the choice first: if it is refused, it must not be listed as recent.
    await asyncio.to_thread(store.set, request.body.scope, f"models.{kind}", chosen)
    await asyncio.to_thread(store.change, 0, f"recent_models.{kind}", with_chosen)
    request.services.notify_settings_changed()


async def config_compact(request: Request) -> None:
    """Switch the compact mode of the terminal interface."""
    enabled = request.body.get("enabled")
    if not isinstance(enabled, bool):
        raise BadRequest("enabled must be true or false")
    await _set(request.handle, _scope(request), "options.tui.compact_mode", enabled)


async def config_provider_key(request: Request) -> None:
    """Store an API key, or the token of an OAuth login."""
    provider, key, kind = _provider_id(request), request.body.get("api_key"), request.body.get("kind", "string")
    if kind not in ("string", "oauth"):
        raise BadRequest("unsupported api key kind: it is string or oauth")
    if kind == "oauth":
        if not isinstance(key, dict) or not isinstance(key.get("access_token"), str):
            raise BadRequest("api_key must be a token: an object with access_token.")
        await _set(request.handle, _scope(request), format_key(("providers", provider, "oauth")), key)
        return
    if not isinstance(key, str):
        raise BadRequest("provider_id and api_key are required, as text")
    await _set(request.handle, _scope(request), format_key(("providers", provider, "api_key")), key)


async def config_refresh_oauth(request: Request) -> None:
    """Refresh an OAuth token. The next model request uses the new token; other processes read it from the store."""
    provider, services = _provider_id(request), request.services
    try:
        token = await asyncio.to_thread(services.credentials.token, provider)
    except HoldfastError as error:
        # The credentials file cannot be read; the message contains the remedy.
        raise BadRequest(str(error)) from None
    if problem := await asyncio.to_thread(services.credentials.problem):
        raise BadRequest(problem)
    if token is None:
        if (known := services.settings.providers.get(provider)) is not None and known.oauth:
            raise BadRequest(f"The token of {provider} cannot be refreshed: sign in again.")
        raise BadRequest(f"Not signed in at {provider}: there is no token to refresh.")
    await services.token_refresher.refresh(provider, post_form)
    request.services.notify_settings_changed()


async def config_problems(request: Request) -> tuple[ConfigProblem, ...]:
    """Return the problems of the settings files. The last valid contents of a broken file stay in effect."""
    return tuple(
        ConfigProblem(item.severity, item.file, item.line, item.key, item.text) for item in problems_of(request.handle)
    )


def problems_of(handle: WorkspaceHandle) -> tuple[FileProblem, ...]:
    """Return the problems of the settings, of hooks in other programs' files, and of saved rules that are out
    of date.
    """
    reading = handle.services.configuration.snapshot()
    outdated = outdated_rules(reading, handle.services.configuration.locations.saved_settings[1])
    extensions = handle.services.extensions
    return (*reading.problems, *extensions.hooks.problems(), *outdated)


async def config_import_copilot(_: Request) -> dict[str, Any]:
    """Report that importing Copilot credentials is not supported."""
    return {"token": None, "success": False}


async def default_small_model(request: Request) -> SelectedModel:
    """Return the default small model of a provider, or the one in use."""
    choice = request.services.selected_models
    if choice is not None and (provider := request.query.get("provider_id")):
        selection = await choice.default_small(provider)
        return SelectedModel(selection.model, selection.provider, selection.max_tokens)
    return choice_of(request.handle, "small", (await request.models.small()).info)


async def _set(handle: WorkspaceHandle, scope: int, key: str, value: object) -> None:
    # In a thread: in a cluster it waits for the store.
    await asyncio.to_thread(handle.services.config_store.set, scope, key, value)
    handle.services.notify_settings_changed()


def _provider_id(request: Request) -> str:
    provider = request.body.get("provider_id")
    if not isinstance(provider, str) or not provider:
        raise BadRequest("provider_id is required, as text")
    return provider


def _scope(request: Request) -> int:
    scope = request.body.get("scope", 0)
    return scope if isinstance(scope, int) else -1


def _provider(info: ModelInfo) -> dict[str, Any]:
    return {"id": info.provider, "name": info.provider, "type": "openai-compat", "models": []}


async def needs_init(request: Request) -> ProjectInitStatus:
    """Return whether to offer initialization: at most once, and only for a project with files but without a
    description.
    """
    handle = request.handle
    if handle.services.configuration.documents.signature(_flag(handle)) is not None:
        return ProjectInitStatus(False)
    return ProjectInitStatus(await asyncio.to_thread(_wants_start, Path(handle.path), handle.services.settings.options))


async def init_project(request: Request) -> None:
    """Record that initialization was offered, whatever the answer, so that it is not offered again."""
    documents = request.services.configuration.documents
    await asyncio.to_thread(documents.update, _flag(request.handle), lambda _: b"")
    request.services.notify_settings_changed()


async def init_prompt(request: Request) -> InitPrompt:
    """Return the prompt that writes the description."""
    return InitPrompt(_PROMPT.format(_instruction_file(request.services.settings.options)))


def _flag(handle: WorkspaceHandle) -> str:
    """Return the marker document. It is beside the saved settings, because it does not belong in the project and
    outlives the server.
    """
    return handle.services.configuration.locations.saved_settings[1].removesuffix("config.json") + "start-asked"


def _instruction_file(options: Options) -> str:
    return options.initialize_as or Options().initialize_as


def _wants_start(directory: Path, options: Options) -> bool:
    if os.path.exists(directory / _instruction_file(options)):
        return False
    return _has_files(directory) and not find_context_sources(directory, (), options.context_paths)


def _has_files(directory: Path) -> bool:
    """Return True if the directory has visible files. Hidden files do not count, because a new repository has them."""
    try:
        with os.scandir(directory) as found:
            return any(not item.name.startswith(".") for item in found)
    except OSError:
        return False


async def get_trust(request: Request) -> TrustBody:
    """Return whether the project's files are trusted, and which settings are withheld."""
    configuration = request.services.configuration
    reading = configuration.snapshot()
    files = await _files_that_need_trust(request)
    waiting = untrusted_files(files, configuration.trust)
    project = reading.project
    withheld = [WithheldKey(format_key(item.path), item.file, item.line) for item in reading.withheld]
    withheld += [WithheldKey(key, file.path, line) for file in waiting for key, line, _ in file.entries]
    is_trusted = (project.is_trusted or not project.files) and not waiting
    paths = (*project.files, *(file.path for file in files))
    return TrustBody(is_trusted, paths, combined_digest(project.digest, files), tuple(withheld))


async def set_trust(request: Request) -> TrustBody:
    """Set the trust. The digest must match the files as they are, so that only files that were shown are trusted."""
    configuration = request.services.configuration
    project = configuration.snapshot().project
    files = await _files_that_need_trust(request)
    if request.body.trusted:
        if request.body.digest != combined_digest(project.digest, files):
            raise BadRequest("The project's files have changed since they were shown: review them again.")
        await asyncio.to_thread(grant_trust, configuration.trust, project, files, at=time.time())
    else:
        await asyncio.to_thread(revoke_trust, configuration.trust, project, files)
    request.services.notify_settings_changed()
    return await get_trust(request)


async def _files_that_need_trust(request: Request) -> tuple[TrustableFile, ...]:
    return await asyncio.to_thread(find_trustable_files, request.services.configuration.locations, os.environ)
