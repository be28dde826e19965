"""Effective providers: catalogue entries overridden by settings, field by field, and their resolved endpoints.

Three steps: `effective_providers` merges catalogue, settings and local servers without I/O; `describe` combines the
facts about one model; `resolve_endpoint` expands templates and finds the key of a provider that is about to be used.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import ModelSettings, ProviderSettings, Selection, Settings
from holdfast.domain.usage import Price
from holdfast.providers.catalog import Catalog, CatalogModel, CatalogProvider, info_of
from holdfast.providers.model_discovery import DiscoveredModel

__all__ = [
    "WIRES",
    "Endpoint",
    "EndpointSources",
    "Expand",
    "ModelSpec",
    "Origin",
    "Provider",
    "Unavailable",
    "adapt_selection",
    "describe",
    "effective_providers",
    "key_variables",
    "models_of",
    "resolve_endpoint",
    "wire_of",
]


WIRES = (
    "openai-compat",
    "openai",
    "openai-responses",
    "openai-chat",
    "anthropic",
    "gemini",
    "vertexai",
    "bedrock",
    "azure",
    "mistral",
)
"""Valid values of a provider's `type`. `openai` is the responses API at OpenAI itself, the chat API elsewhere."""

_ALIASES = {
    "google": "gemini",
    "google-vertex": "vertexai",
    "vertex": "vertexai",
    "amazon-bedrock": "bedrock",
    **dict.fromkeys(
        ("openrouter", "openai-compatible", "vercel", "ollama", "lmstudio", "llamacpp", "vllm", "litellm", "omlx"),
        "openai-compat",
    ),
}

_MEDIA_IN_RESULTS = frozenset({"anthropic", "bedrock"})
"""Wires on which a tool result may contain an image."""

Origin = Literal["catalog", "settings", "local"]
"""Source of a provider's definition."""
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_AWS_VARIABLES = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "bedrock": {
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "profile": ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
        "access_key_id": ("AWS_ACCESS_KEY_ID",),
        "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
    },
    "vertexai": {
        "project": ("VERTEXAI_PROJECT", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"),
        "location": ("VERTEXAI_LOCATION", "GOOGLE_CLOUD_LOCATION"),
    },
    "azure": {"api_version": ("AZURE_OPENAI_API_VERSION", "OPENAI_API_VERSION")},
}
_KEY_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})
_AZURE_ENDPOINTS = ("AZURE_OPENAI_API_ENDPOINT", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_BASE_URL")
_ERRORS = (HoldfastError, ValueError, OSError)


def wire_of(name: str) -> str:
    """Return the wire for a `type` or one of its aliases; unknown names are returned unchanged."""
    name = name.strip().lower()
    return _ALIASES.get(name, name)


class Provider(msgspec.Struct, frozen=True):
    """One effective provider. Its templates are not expanded yet."""

    id: str
    name: str
    type: str
    origin: Origin
    base_url: str = ""
    default_large: str = ""
    default_small: str = ""
    settings: ProviderSettings = ProviderSettings()
    catalog: CatalogProvider | None = None
    path: tuple[str, ...] = ()
    """Its path in the settings; empty if they do not mention it."""

    @property
    def is_named(self) -> bool:
        """True if the settings mention the provider."""
        return bool(self.path)


class ModelSpec(msgspec.Struct, frozen=True):
    """A model of a provider: its facts, and its wire if it differs from the provider's."""

    info: ModelInfo
    type: str
    base_url: str
    thinking: str = ""
    options: dict[str, Any] = {}
    knows_levels: bool = False
    """True if an empty list of reasoning levels means that there are none."""


def effective_providers(catalog: Catalog, settings: Settings, local: Iterable[Provider] = ()) -> Iterator[Provider]:
    """Yield all providers, each id once: those of the settings, then the catalogue, then local servers."""
    seen: set[str] = set()
    local_by_id = {provider.id: provider for provider in local}
    for name, given in settings.providers.items():
        provider = _with_settings(name, given, catalog, local_by_id.get(name))
        if provider.id not in seen:
            seen.add(provider.id)
            yield provider
    if settings.options.disable_default_providers:
        return
    for known in catalog.providers:
        if known.id not in seen:
            yield _from_catalog(known)
    for provider in local_by_id.values():
        if provider.id not in seen:
            yield provider


def _from_catalog(known: CatalogProvider) -> Provider:
    return Provider(
        known.id,
        known.name,
        known.type,
        "catalog",
        known.base_url,
        known.default_large,
        known.default_small,
        catalog=known,
    )


def _with_settings(name: str, given: ProviderSettings, catalog: Catalog, local: Provider | None) -> Provider:
    """Apply settings to a provider. `id` derives another name from a catalogue provider, e.g. for a second account."""
    base = local or Provider(name, name, "openai-compat", "settings")
    if (known := catalog.provider(name)) is not None:
        base = _from_catalog(known)
    elif given.id and (known := catalog.provider(given.id)) is not None:
        base = msgspec.structs.replace(_from_catalog(known), id=name, name=f"{known.name} ({name})")
    return msgspec.structs.replace(
        base,
        name=given.name or base.name,
        type=wire_of(given.type) or base.type,
        base_url=given.base_url or base.base_url,
        settings=given,
        path=("providers", name),
    )


def describe(provider: Provider, id: str, found: DiscoveredModel | None = None) -> ModelSpec | None:
    """Combine the facts about a model, in order of precedence: settings, catalogue, server. None if it is unknown."""
    listed = provider.catalog.model(id) if provider.catalog else None
    given = next((model for model in provider.settings.models if model.id == id), None)
    if listed is None and given is None and found is None:
        return None
    wire = (listed.type if listed and not provider.settings.type else "") or provider.type
    base_url = (listed.base_url if listed and not provider.settings.base_url else "") or provider.base_url
    info = info_of(provider.id, listed or CatalogModel(id))
    if found is not None:
        info = _merge_discovered(info, found)
    if given is not None:
        info = _merge_settings(info, given)
    if provider.settings.flat_rate:
        info = msgspec.structs.replace(info, price=Price())
    info = msgspec.structs.replace(info, takes_media_in_results=info.supports_images and wire in _MEDIA_IN_RESULTS)
    knows_levels = listed is not None or (given is not None and given.reasoning_levels is not None)
    thinking = listed.thinking if listed else ""
    return ModelSpec(info, wire, base_url, thinking, given.options if given else {}, knows_levels)


def models_of(provider: Provider, found: Iterable[DiscoveredModel] = ()) -> list[ModelSpec]:
    """Return all models of a provider, each id once; those listed in the settings come first."""
    by_id = {model.id: model for model in found}
    names = dict.fromkeys(model.id for model in provider.settings.models)
    names |= dict.fromkeys(model.id for model in (provider.catalog.models if provider.catalog else ()))
    names |= dict.fromkeys(by_id)
    described = (describe(provider, name, by_id.get(name)) for name in names)
    return [model for model in described if model is not None]


def _merge_discovered(info: ModelInfo, found: DiscoveredModel) -> ModelInfo:
    return msgspec.structs.replace(
        info,
        name=info.name if info.name != info.model else found.name or info.name,
        context_window=info.context_window or found.context_window,
        max_output_tokens=info.max_output_tokens or found.max_tokens,
        supports_images=info.supports_images or bool(found.images),
        can_reason=info.can_reason or bool(found.can_reason),
    )


def _merge_settings(info: ModelInfo, given: ModelSettings) -> ModelInfo:
    price = info.price
    return msgspec.structs.replace(
        info,
        name=given.name or info.name,
        context_window=_first_set(given.context_window, info.context_window),
        max_output_tokens=_first_set(given.default_max_tokens, info.max_output_tokens),
        price=Price(
            _first_set(given.cost_per_1m_in, price.input),
            _first_set(given.cost_per_1m_out, price.output),
            # The names follow the wire: cache writes count as input, cache reads as output.
            _first_set(given.cost_per_1m_out_cached, price.cache_read),
            _first_set(given.cost_per_1m_in_cached, price.cache_write),
        ),
        supports_images=_first_set(given.supports_attachments, info.supports_images),
        can_reason=_first_set(given.can_reason, info.can_reason or bool(given.reasoning_levels)),
        reasoning_levels=_first_set(given.reasoning_levels, info.reasoning_levels),
        default_reasoning_effort=given.default_reasoning_effort or info.default_reasoning_effort,
    )


def _first_set(given: Any, known: Any) -> Any:  # noqa: ANN401 - any fact
    return known if given is None else given


def adapt_selection(selection: Selection, model: ModelSpec) -> tuple[ModelInfo, Selection]:
    """Adapt a selection to a model: reasoning effort only if the model can reason, and only a level that
    it supports.
    """
    info = model.info
    is_requested = bool(selection.reasoning_effort or selection.think)
    if is_requested and not info.can_reason and not model.knows_levels:
        # Support for reasoning is unknown; the user's selection decides.
        info = msgspec.structs.replace(info, can_reason=True)
    if not info.can_reason:
        return info, msgspec.structs.replace(selection, reasoning_effort="", think=False)
    effort = selection.reasoning_effort
    if not effort or effort in info.reasoning_levels or not (model.knows_levels or info.reasoning_levels):
        return info, selection
    if not info.reasoning_levels:
        return info, msgspec.structs.replace(selection, reasoning_effort="", think=effort != "none")
    return info, msgspec.structs.replace(selection, reasoning_effort=info.default_reasoning_effort)


Expand: TypeAlias = Callable[[str, tuple[str | int, ...]], str]
"""Expands a template found at this path of the settings. The file it came from decides what the template may do."""


class EndpointSources(msgspec.Struct, frozen=True):
    """Sources of values: template expansion, stored keys by provider, environment."""

    expand: Expand
    key_of: Callable[[str], str | None]
    environment: Mapping[str, str]


class Endpoint(msgspec.Struct, frozen=True):
    """Resolved connection data of a provider. Contains the key, so its repr shows the address only."""

    base_url: str = ""
    api_key: str = ""
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    extras: dict[str, str] = {}
    is_ambient: bool = False
    """True if the credentials were found only in the machine's environment, e.g. AWS. They are used if the provider
    is selected explicitly, but do not qualify it for automatic selection.
    """

    def __repr__(self) -> str:
        return f"Endpoint(base_url={self.base_url!r})"


class Unavailable(msgspec.Struct, frozen=True):
    """Reason why a provider cannot be used. `variable` is the environment variable to set, if that is sufficient."""

    sentence: str
    variable: str = ""
    is_key: bool = False
    """True if a key or its equivalent is missing."""


def resolve_endpoint(provider: Provider, sources: EndpointSources) -> Endpoint | Unavailable:
    """Resolve a provider. Expanding templates may run commands, so this can be slow and belongs in a thread."""
    given = provider.settings
    if given.disable:
        return Unavailable(f"{provider.name} is disabled: providers.{provider.id}.disable is true.")
    if provider.type not in WIRES:
        known = ", ".join(WIRES)
        return Unavailable(
            f"Unknown provider type {provider.type!r} in providers.{provider.id}.type; supported types: {known}."
        )
    try:
        base_url = _expand(given.base_url, (*provider.path, "base_url"), sources)
        headers = _expand(given.extra_headers, (*provider.path, "extra_headers"), sources)
        body = _expand(given.extra_body, (*provider.path, "extra_body"), sources)
        key = _key(provider, sources)
    except _ERRORS as error:
        return Unavailable(f"{provider.name} cannot be used: {error}")
    headers = {**(provider.catalog.headers if provider.catalog else {}), **headers}
    if not base_url and (missing := _unset_variable(provider.base_url, sources.environment)):
        return Unavailable(f"{provider.name} needs {missing}: set it.", missing)
    found = Endpoint(
        (base_url or _fill(provider.base_url, sources.environment)).strip(),
        key,
        {name: value for name, value in headers.items() if value},
        body,
        _extras(provider, sources.environment),
    )
    return _CHECKS.get(provider.type, _check_key)(provider, found, sources.environment)


def _expand(value: Any, path: tuple[str | int, ...], sources: EndpointSources) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {name: _expand(item, (*path, name), sources) for name, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, (*path, index), sources) for index, item in enumerate(value)]
    return sources.expand(value, path) if isinstance(value, str) and "$" in value else value


def _key(provider: Provider, sources: EndpointSources) -> str:
    """Return the key: from the settings, else the one stored by `holdfast login`, else from the environment."""
    given = provider.settings
    failure: Exception | None = None
    try:
        if key := str(_expand(given.api_key, (*provider.path, "api_key"), sources)).strip():
            return key
    except _ERRORS as error:
        failure = error
    token = given.oauth.get("access_token")
    if isinstance(token, str) and token:
        return token
    try:
        for name in dict.fromkeys(
            (provider.id, *provider.path[1:], *(provider.catalog.aliases if provider.catalog else ()))
        ):
            if key := (sources.key_of(name) or "").strip():
                return key
    except _ERRORS as error:
        failure = error
    key = _first(sources.environment, provider.catalog.api_key if provider.catalog else ())
    # A template that merely names an unset variable means "no key"; other failures are reported.
    if not key and failure is not None and not _is_unset(given.api_key, sources.environment):
        raise failure
    return key


def _is_unset(template: str, environment: Mapping[str, str]) -> bool:
    """Return whether the only failure of a template is an unset variable."""
    return "$(" not in template and bool(_unset_variable(template, environment))


def _check_key(provider: Provider, found: Endpoint, _: Mapping[str, str]) -> Endpoint | Unavailable:
    if provider.type == "openai-compat" and not found.base_url:
        return Unavailable(f"{provider.name} has no address: set providers.{provider.id}.base_url.")
    if found.base_url and not found.base_url.startswith(("http://", "https://")):
        return Unavailable(f"providers.{provider.id}.base_url must begin with http:// or https://.")
    template = provider.settings.api_key
    needs_key = bool(template) or (provider.catalog is not None and bool(provider.catalog.api_key))
    has_key = bool(found.api_key or provider.settings.oauth) or any(
        name.lower() in _KEY_HEADERS for name in found.headers
    )
    if needs_key and not has_key:
        return _missing_key(provider)
    if not provider.catalog and not found.base_url and not has_key:
        return _missing_key(provider)
    return found


def key_variables(provider: Provider) -> list[str]:
    """Return the environment variables of the key: those of the settings, then those of the catalogue."""
    return [*_VARIABLE.findall(provider.settings.api_key), *(provider.catalog.api_key if provider.catalog else ())]


def _missing_key(provider: Provider) -> Unavailable:
    named = key_variables(provider)
    variable = named[0] if named else ""
    advice = (
        f"set {variable}, or run `holdfast login {provider.id}`" if variable else f"run `holdfast login {provider.id}`"
    )
    return Unavailable(f"{provider.name} needs a key: {advice}.", variable, is_key=True)


def _check_bedrock(provider: Provider, found: Endpoint, environment: Mapping[str, str]) -> Endpoint | Unavailable:
    if found.api_key:
        return found
    has_pair = bool(environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"))
    if has_pair or _first(environment, _AWS_VARIABLES) or provider.settings.aws_auth_refresh:
        return msgspec.structs.replace(found, is_ambient=True)
    sentence = f"{provider.name} needs AWS credentials: set AWS_PROFILE or AWS_BEARER_TOKEN_BEDROCK."
    return Unavailable(sentence, "AWS_BEARER_TOKEN_BEDROCK", is_key=True)


def _check_vertex(provider: Provider, found: Endpoint, environment: Mapping[str, str]) -> Endpoint | Unavailable:
    if found.api_key:
        return found
    if found.extras.get("project") and found.extras.get("location"):
        is_explicit = bool(environment.get("VERTEXAI_PROJECT"))
        return msgspec.structs.replace(found, is_ambient=not is_explicit)
    sentence = f"{provider.name} needs a project and a location: set VERTEXAI_PROJECT and VERTEXAI_LOCATION."
    return Unavailable(sentence, "VERTEXAI_PROJECT")


def _check_azure(provider: Provider, found: Endpoint, environment: Mapping[str, str]) -> Endpoint | Unavailable:
    found = msgspec.structs.replace(found, base_url=found.base_url or _first(environment, _AZURE_ENDPOINTS))
    if not found.base_url:
        sentence = f"{provider.name} needs its endpoint: set AZURE_OPENAI_ENDPOINT or providers.{provider.id}.base_url."
        return Unavailable(sentence, "AZURE_OPENAI_ENDPOINT")
    return _check_key(provider, found, environment)


_CHECKS = {"bedrock": _check_bedrock, "vertexai": _check_vertex, "azure": _check_azure}


def _extras(provider: Provider, environment: Mapping[str, str]) -> dict[str, str]:
    """Return wire-specific values from the provider's options, else from the environment."""
    options: dict[str, Any] = provider.settings.provider_options
    names = _EXTRAS.get(provider.type, {})
    values = {name: str(options.get(name) or _first(environment, variables)) for name, variables in names.items()}
    return {name: value for name, value in values.items() if value}


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _unset_variable(template: str, environment: Mapping[str, str]) -> str:
    return next((name for name in _VARIABLE.findall(template) if not environment.get(name)), "")


def _fill(template: str, environment: Mapping[str, str]) -> str:
    """Expand a template of the catalogue, which contains only variables."""
    return re.sub(r"\$\{(\w+)\}", lambda found: environment.get(found[1], ""), template)
