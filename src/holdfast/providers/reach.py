"""Resolution of offers: expands templates and finds the key, or returns the reason why that is impossible."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.providers.offers import WIRES, Offer

__all__ = ["Expand", "Lack", "Reach", "Sources", "key_variables", "reach"]

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_AWS_SIGNS = (
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


Expand: TypeAlias = Callable[[str, tuple[str | int, ...]], str]
"""Expands a template found at this path of the settings. The file it came from decides what the template may do."""


class Sources(msgspec.Struct, frozen=True):
    """Sources of values: template expansion, stored keys by provider, environment."""

    expand: Expand
    key_of: Callable[[str], str | None]
    environment: Mapping[str, str]


class Reach(msgspec.Struct, frozen=True):
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
        return f"Reach(base_url={self.base_url!r})"


class Lack(msgspec.Struct, frozen=True):
    """Reason why a provider cannot be used. `variable` is the environment variable to set, if that is sufficient."""

    sentence: str
    variable: str = ""
    is_key: bool = False
    """True if a key or its equivalent is missing."""


def reach(offer: Offer, sources: Sources) -> Reach | Lack:
    """Resolve an offer. Expanding templates may run commands, so this can be slow and belongs in a thread."""
    given = offer.settings
    if given.disable:
        return Lack(f"{offer.name} is switched off: providers.{offer.id}.disable is true.")
    if offer.type not in WIRES:
        known = ", ".join(WIRES)
        return Lack(f"Unknown provider type {offer.type!r} in providers.{offer.id}.type; supported types: {known}.")
    try:
        base_url = _expanded(given.base_url, (*offer.path, "base_url"), sources)
        headers = _expanded(given.extra_headers, (*offer.path, "extra_headers"), sources)
        body = _expanded(given.extra_body, (*offer.path, "extra_body"), sources)
        key = _key(offer, sources)
    except _ERRORS as error:
        return Lack(f"{offer.name} cannot be used: {error}")
    headers = {**(offer.catalog.headers if offer.catalog else {}), **headers}
    if not base_url and (lacking := _missing(offer.base_url, sources.environment)):
        return Lack(f"{offer.name} needs {lacking}: set it.", lacking)
    found = Reach(
        (base_url or _filled(offer.base_url, sources.environment)).strip(),
        key,
        {name: value for name, value in headers.items() if value},
        body,
        _extras(offer, sources.environment),
    )
    return _CHECKS.get(offer.type, _check_key)(offer, found, sources.environment)


_ERRORS = (HoldfastError, ValueError, OSError)


def _expanded(value: Any, path: tuple[str | int, ...], sources: Sources) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {name: _expanded(item, (*path, name), sources) for name, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, (*path, place), sources) for place, item in enumerate(value)]
    return sources.expand(value, path) if isinstance(value, str) and "$" in value else value


def _key(offer: Offer, sources: Sources) -> str:
    """Return the key: from the settings, else the one stored by `holdfast login`, else from the environment."""
    given = offer.settings
    failure: Exception | None = None
    try:
        if key := str(_expanded(given.api_key, (*offer.path, "api_key"), sources)).strip():
            return key
    except _ERRORS as error:
        failure = error
    token = given.oauth.get("access_token")
    if isinstance(token, str) and token:
        return token
    try:
        for name in dict.fromkeys((offer.id, *offer.path[1:], *(offer.catalog.aliases if offer.catalog else ()))):
            if key := (sources.key_of(name) or "").strip():
                return key
    except _ERRORS as error:
        failure = error
    key = _first(sources.environment, offer.catalog.api_key if offer.catalog else ())
    # A template that merely names an unset variable means "no key"; other failures are reported.
    if not key and failure is not None and not _is_unset(given.api_key, sources.environment):
        raise failure
    return key


def _is_unset(template: str, environment: Mapping[str, str]) -> bool:
    """Return whether the only failure of a template is an unset variable."""
    return "$(" not in template and bool(_missing(template, environment))


def _check_key(offer: Offer, found: Reach, _: Mapping[str, str]) -> Reach | Lack:
    if offer.type == "openai-compat" and not found.base_url:
        return Lack(f"{offer.name} has no address: set providers.{offer.id}.base_url.")
    if found.base_url and not found.base_url.startswith(("http://", "https://")):
        return Lack(f"providers.{offer.id}.base_url must begin with http:// or https://.")
    template = offer.settings.api_key
    needs_key = bool(template) or (offer.catalog is not None and bool(offer.catalog.api_key))
    has_key = bool(found.api_key or offer.settings.oauth) or any(name.lower() in _KEY_HEADERS for name in found.headers)
    if needs_key and not has_key:
        return _no_key(offer)
    if not offer.catalog and not found.base_url and not has_key:
        return _no_key(offer)
    return found


def key_variables(offer: Offer) -> list[str]:
    """Return the environment variables of the key: those of the settings, then those of the catalogue."""
    return [*_VARIABLE.findall(offer.settings.api_key), *(offer.catalog.api_key if offer.catalog else ())]


def _no_key(offer: Offer) -> Lack:
    named = key_variables(offer)
    variable = named[0] if named else ""
    advice = f"set {variable}, or run `holdfast login {offer.id}`" if variable else f"run `holdfast login {offer.id}`"
    return Lack(f"{offer.name} needs a key: {advice}.", variable, is_key=True)


def _check_bedrock(offer: Offer, found: Reach, environment: Mapping[str, str]) -> Reach | Lack:
    if found.api_key:
        return found
    has_pair = bool(environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"))
    if has_pair or _first(environment, _AWS_SIGNS) or offer.settings.aws_auth_refresh:
        return msgspec.structs.replace(found, is_ambient=True)
    sentence = f"{offer.name} needs AWS credentials: set AWS_PROFILE or AWS_BEARER_TOKEN_BEDROCK."
    return Lack(sentence, "AWS_BEARER_TOKEN_BEDROCK", is_key=True)


def _check_vertex(offer: Offer, found: Reach, environment: Mapping[str, str]) -> Reach | Lack:
    if found.api_key:
        return found
    if found.extras.get("project") and found.extras.get("location"):
        is_meant = bool(environment.get("VERTEXAI_PROJECT"))
        return msgspec.structs.replace(found, is_ambient=not is_meant)
    sentence = f"{offer.name} needs a project and a location: set VERTEXAI_PROJECT and VERTEXAI_LOCATION."
    return Lack(sentence, "VERTEXAI_PROJECT")


def _check_azure(offer: Offer, found: Reach, environment: Mapping[str, str]) -> Reach | Lack:
    found = msgspec.structs.replace(found, base_url=found.base_url or _first(environment, _AZURE_ENDPOINTS))
    if not found.base_url:
        sentence = f"{offer.name} needs its endpoint: set AZURE_OPENAI_ENDPOINT or providers.{offer.id}.base_url."
        return Lack(sentence, "AZURE_OPENAI_ENDPOINT")
    return _check_key(offer, found, environment)


_CHECKS = {"bedrock": _check_bedrock, "vertexai": _check_vertex, "azure": _check_azure}


def _extras(offer: Offer, environment: Mapping[str, str]) -> dict[str, str]:
    """Return wire-specific values from the provider's options, else from the environment."""
    options: dict[str, Any] = offer.settings.provider_options
    wanted = _EXTRAS.get(offer.type, {})
    values = {name: str(options.get(name) or _first(environment, variables)) for name, variables in wanted.items()}
    return {name: value for name, value in values.items() if value}


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _missing(template: str, environment: Mapping[str, str]) -> str:
    return next((name for name in _VARIABLE.findall(template) if not environment.get(name)), "")


def _filled(template: str, environment: Mapping[str, str]) -> str:
    """Expand a template of the catalogue, which contains only variables."""
    return re.sub(r"\$\{(\w+)\}", lambda found: environment.get(found[1], ""), template)
