"""Effective providers: each field of the settings of a provider and its models, and its effect."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import ModelSettings, Options, ProviderSettings, Selection, Settings
from holdfast.domain.usage import Price
from holdfast.providers.adapter_config import BETWEEN, FIRST_BYTE
from holdfast.providers.catalog import Catalog, CatalogModel, CatalogProvider, CatalogSource
from holdfast.providers.effective_providers import (
    WIRES,
    Endpoint,
    EndpointSources,
    ModelSpec,
    Provider,
    Unavailable,
    adapt_selection,
    describe,
    effective_providers,
    key_variables,
    models_of,
    resolve_endpoint,
    wire_of,
)
from holdfast.providers.model_discovery import DiscoveredModel
from holdfast.providers.model_factory import ModelConfig, configure_model

LISTED = CatalogModel(
    "m",
    "Model M",
    context_window=1000,
    default_max_tokens=100,
    cost_in=1,
    cost_out=2,
    cost_cache_read=3,
    cost_cache_write=4,
    images=True,
    can_reason=True,
    reasoning_levels=("low", "high"),
    default_reasoning_effort="low",
)
KNOWN = CatalogProvider(
    "acme",
    "Acme",
    type="anthropic",
    base_url="https://acme.test/v1",
    api_key=("ACME_KEY", "OTHER_KEY"),
    default_large="m",
    default_small="s",
    models=(LISTED, CatalogModel("s"), CatalogModel("odd", type="openai-compat", base_url="https://odd.test/v1")),
    headers={"x-catalogue": "1"},
    aliases=("also",),
)
SOURCE = CatalogSource("p", "1", "2026-01-01", "MIT")
CATALOG = Catalog(SOURCE, (KNOWN,))


def provider_of(id: str = "acme", /, **given: Any) -> Provider:  # noqa: ANN401
    settings = msgspec.convert({"providers": {id: given}}, Settings)
    return next(item for item in effective_providers(CATALOG, settings) if item.id == id)


def model_spec(**given: Any) -> ModelSpec:  # noqa: ANN401
    found = describe(provider_of(models=[{"id": "m", **given}]), "m")
    assert found is not None
    return found


PLAIN = ModelInfo(
    "acme",
    "m",
    1000,
    100,
    Price(1, 2, 3, 4),
    supports_images=True,
    name="Model M",
    can_reason=True,
    reasoning_levels=("low", "high"),
    default_reasoning_effort="low",
    takes_media_in_results=True,
)
FACTS: dict[str, tuple[tuple[Any, dict[str, Any]], ...]] = {
    "name": (("Other", {"name": "Other"}), ("", {})),
    "cost_per_1m_in": ((9, {"price": Price(9, 2, 3, 4)}), (0, {"price": Price(0, 2, 3, 4)})),
    "cost_per_1m_out": ((9, {"price": Price(1, 9, 3, 4)}), (0, {"price": Price(1, 0, 3, 4)})),
    "cost_per_1m_in_cached": ((9, {"price": Price(1, 2, 3, 9)}), (0, {"price": Price(1, 2, 3, 0)})),
    "cost_per_1m_out_cached": ((9, {"price": Price(1, 2, 9, 4)}), (0, {"price": Price(1, 2, 0, 4)})),
    "context_window": ((9, {"context_window": 9}), (0, {"context_window": 0})),
    "default_max_tokens": ((9, {"max_output_tokens": 9}), (0, {"max_output_tokens": 0})),
    "can_reason": ((True, {}), (False, {"can_reason": False})),
    "reasoning_levels": ((["x"], {"reasoning_levels": ("x",)}), ([], {"reasoning_levels": ()})),
    "default_reasoning_effort": (("high", {"default_reasoning_effort": "high"}), ("", {})),
    "supports_attachments": ((True, {}), (False, {"supports_images": False, "takes_media_in_results": False})),
    "options": (({"a": 1}, {}), ({}, {})),
}


def test_every_fact_of_a_model_has_a_row() -> None:
    assert FACTS.keys() == set(ModelSettings.__struct_fields__) - {"id"}
    assert model_spec().info == PLAIN


@pytest.mark.parametrize(
    ("name", "value", "changes"),
    [(name, *row) for name, rows in FACTS.items() for row in rows],
)
def test_model_settings_override_the_catalogue(name: str, value: object, changes: dict[str, Any]) -> None:
    """A value that is set applies, even if it is falsy; unset fields keep the catalogue's value."""
    found = model_spec(**{name: value})
    assert found.info == msgspec.structs.replace(PLAIN, **changes)
    assert found.options == (value if name == "options" else {})


def test_reasoning_levels_of_settings_and_catalogue() -> None:
    assert model_spec().knows_levels
    own = provider_of("mine", base_url="http://x", models=[{"id": "m"}, {"id": "n", "reasoning_levels": []}])
    plain, explicit = models_of(own)
    assert (plain.knows_levels, explicit.knows_levels) == (False, True)
    reasoning = describe(provider_of("mine", base_url="http://x", models=[{"id": "m", "reasoning_levels": ["a"]}]), "m")
    assert reasoning is not None
    assert reasoning.info.can_reason


FOUND = DiscoveredModel("f", "Found F", context_window=7, max_tokens=5, images=True, can_reason=True)


def test_discovered_facts_fill_gaps() -> None:
    provider = provider_of("mine", base_url="http://x")
    info = describe(provider, "f", FOUND)
    assert info is not None
    assert info.info == ModelInfo("mine", "f", 7, 5, supports_images=True, name="Found F", can_reason=True)
    listed = describe(provider_of(), "m", FOUND)
    assert listed is not None
    assert listed.info == PLAIN
    nothing = describe(provider, "f", DiscoveredModel("f"))
    assert nothing is not None
    assert nothing.info == ModelInfo("mine", "f", name="f")
    assert describe(provider, "f") is None


def test_a_model_can_have_its_own_wire() -> None:
    """Unless the settings of its provider name the wire or the address."""

    def address_of(**given: Any) -> tuple[str, str]:  # noqa: ANN401
        found = describe(provider_of(**given), "odd")
        assert found is not None
        return found.type, found.base_url

    assert address_of() == ("openai-compat", "https://odd.test/v1")
    assert address_of(type="openai") == ("openai", "https://odd.test/v1")
    assert address_of(base_url="http://x") == ("openai-compat", "http://x")


def test_order_and_names_of_providers() -> None:
    local = Provider("ollama", "Ollama", "openai-compat", "local", "http://127.0.0.1:1/v1")

    def providers(**tables: Any) -> list[tuple[str, str, bool]]:  # noqa: ANN401
        settings = msgspec.convert(tables, Settings)
        return [(item.id, item.origin, item.is_named) for item in effective_providers(CATALOG, settings, [local])]

    assert providers() == [("acme", "catalog", False), ("ollama", "local", False)]
    assert providers(providers={"mine": {}, "ollama": {}}) == [
        ("mine", "settings", True),
        ("ollama", "local", True),
        ("acme", "catalog", False),
    ]
    assert providers(options={"disable_default_providers": True}) == []
    assert providers(providers={"also": {}, "acme": {}}) == [("acme", "catalog", True), ("ollama", "local", False)]
    second = provider_of("second", id="acme")
    assert (second.name, second.type, second.base_url) == ("Acme (second)", "anthropic", "https://acme.test/v1")
    assert (second.default_large, second.default_small) == ("m", "s")
    assert provider_of("second", id="nobody").type == "openai-compat"


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        *((wire, wire) for wire in WIRES),
        (" Google ", "gemini"),
        ("google-vertex", "vertexai"),
        ("vertex", "vertexai"),
        ("amazon-bedrock", "bedrock"),
        *((name, "openai-compat") for name in ("openrouter", "openai-compatible", "vercel", "ollama", "lmstudio")),
        *((name, "openai-compat") for name in ("llamacpp", "vllm", "litellm", "omlx")),
        ("telepathy", "telepathy"),
        ("", ""),
    ],
)
def test_spellings_of_provider_types(name: str, wire: str) -> None:
    assert wire_of(name) == wire


# From the settings to the model access

ENVIRONMENT = {"ACME_KEY": "from-the-environment"}


def _no_key(_: str) -> str | None:
    return None


def sources(**keys: str) -> EndpointSources:
    return EndpointSources(lambda text, _: text.replace("$", "~"), keys.get, ENVIRONMENT)


def plan_of(given: dict[str, Any], selection: Selection | None = None) -> ModelConfig:
    provider = provider_of(**given)
    found = resolve_endpoint(provider, sources())
    assert isinstance(found, Endpoint), found
    model = describe(provider, "m")
    assert model is not None
    return configure_model(provider, found, model, selection or Selection())


def _access(name: str) -> Callable[[ModelConfig], Any]:
    return lambda plan: getattr(plan.access, name)


EFFECTS: dict[str, tuple[tuple[Any, Callable[[ModelConfig], Any], Any], ...]] = {
    "id": (("acme", lambda plan: plan.info.provider, "acme"),),
    "name": (
        ("Other", lambda _: provider_of(name="Other").name, "Other"),
        ("", lambda _: provider_of(name="").name, "Acme"),
    ),
    "type": (("openai", lambda plan: plan.type, "openai"), ("", lambda plan: plan.type, "anthropic")),
    "base_url": (
        ("http://x/v1", _access("base_url"), "http://x/v1"),
        (" http://x/$A ", _access("base_url"), "http://x/~A"),
        ("", _access("base_url"), "https://acme.test/v1"),
    ),
    "api_key": (
        ("k", _access("api_key"), "k"),
        ("$K", _access("api_key"), "~K"),
        ("", _access("api_key"), "from-the-environment"),
    ),
    "oauth": (
        ({"access_token": "t"}, _access("api_key"), "t"),
        ({"access_token": ""}, _access("api_key"), "from-the-environment"),
        ({}, _access("api_key"), "from-the-environment"),
    ),
    "disable": ((False, _access("api_key"), "from-the-environment"),),
    "system_prompt_prefix": (("P", _access("system_prefix"), "P"), ("", _access("system_prefix"), "")),
    "extra_headers": (
        ({"A": "$B", "c": ""}, _access("headers"), {"x-catalogue": "1", "A": "~B"}),
        ({"x-catalogue": ""}, _access("headers"), {}),
        ({}, _access("headers"), {"x-catalogue": "1"}),
    ),
    "extra_body": (({"a": {"b": ["$C"]}}, _access("body"), {"a": {"b": ["~C"]}}), ({}, _access("body"), {})),
    "provider_options": (({"a": 1}, _access("options"), {"a": 1}), ({}, _access("options"), {})),
    "aws_auth_refresh": (("", _access("api_key"), "from-the-environment"),),
    "flat_rate": (
        (True, lambda plan: plan.info.price, Price()),
        (False, lambda plan: plan.info.price, Price(1, 2, 3, 4)),
    ),
    "discover_models": ((False, _access("api_key"), "from-the-environment"),),
    "timeout": (
        (7, lambda plan: (plan.access.first_byte, plan.access.between), (7.0, 7.0)),
        (0, lambda plan: (plan.access.first_byte, plan.access.between), (FIRST_BYTE, BETWEEN)),
    ),
    "models": (((), lambda plan: plan.info, PLAIN),),
}


def test_every_setting_of_a_provider_has_a_row() -> None:
    assert EFFECTS.keys() == set(ProviderSettings.__struct_fields__)
    assert (FIRST_BYTE, BETWEEN) == (300.0, 120.0)


@pytest.mark.parametrize(
    ("name", "value", "look", "expected"),
    [(name, *row) for name, rows in EFFECTS.items() for row in rows],
)
def test_effect_of_each_provider_setting(
    name: str, value: object, look: Callable[[ModelConfig], object], expected: object
) -> None:
    assert look(plan_of({name: value})) == expected


def test_options_are_merged_and_the_selection_wins() -> None:
    model = {"temperature": 0.1, "top_p": 0.2, "top_k": 3, "frequency_penalty": 0.4, "presence_penalty": 0.5}
    options = {**model, "a": 1, "provider_options": {"b": 2, "c": 2}}
    given = {"provider_options": {"a": 0, "d": 4}, "models": [{"id": "m", "options": options}]}
    plan = plan_of(given)
    assert plan.access.options == {"a": 1, "b": 2, "c": 2, "d": 4}
    assert msgspec.to_builtins(plan.selection) == {"model": "m", "provider": "acme", **model}
    for name in model:
        chosen = plan_of(given, msgspec.convert({name: 0}, Selection)).selection
        assert msgspec.to_builtins(chosen) == {"model": "m", "provider": "acme", **model, name: 0}


@pytest.mark.parametrize(
    ("provider_type", "model_type", "sends_dialect"),
    [
        ("openai-compat", "", True),
        ("openai", "openai-compat", True),
        ("openai-compat", "openai", False),
    ],
)
def test_the_dialect_follows_the_wire_of_the_model(provider_type: str, model_type: str, sends_dialect: bool) -> None:
    known = CatalogModel("m", can_reason=True, thinking="qwen", type=model_type, base_url="http://model/v1")
    catalog = CatalogProvider("acme", "Acme", provider_type, base_url="http://provider/v1", models=(known,))
    provider = Provider("acme", "Acme", provider_type, "catalog", "http://provider/v1", catalog=catalog)
    model = describe(provider, "m")
    assert model is not None
    plan = configure_model(provider, Endpoint("http://expanded/v1"), model, Selection(think=True))
    assert ("enable_thinking" in plan.access.options) == sends_dialect
    assert plan.access.base_url == "http://model/v1"


def test_options_of_a_provider_override_the_dialect_and_those_of_a_model_override_both() -> None:
    known = CatalogModel("m", can_reason=True, thinking="qwen")
    catalog = CatalogProvider("acme", "Acme", "openai-compat", models=(known,))
    for options, expected in (({}, "provider"), ({"enable_thinking": "model"}, "model")):
        given = ProviderSettings(
            provider_options={"enable_thinking": "provider"}, models=(ModelSettings("m", options=options),)
        )
        provider = Provider("acme", "Acme", "openai-compat", "settings", settings=given, catalog=catalog)
        model = describe(provider, "m")
        assert model is not None
        plan = configure_model(provider, Endpoint("http://x/v1"), model, Selection(think=True))
        assert plan.access.options["enable_thinking"] == expected


# Efforts


@pytest.mark.parametrize(
    ("can", "levels", "knows", "effort", "think", "expected"),
    [
        (True, ("low", "high"), True, "high", False, (True, "high", False)),
        (True, ("low", "high"), True, "odd", False, (True, "dflt", False)),
        (True, ("low", "high"), False, "odd", False, (True, "dflt", False)),
        (True, ("low",), True, "", False, (True, "", False)),
        (True, ("low",), True, "", True, (True, "", True)),
        (True, (), False, "odd", False, (True, "odd", False)),
        (True, (), True, "odd", False, (True, "", True)),
        (True, (), True, "none", True, (True, "", False)),
        (False, (), True, "high", True, (False, "", False)),
        (False, (), False, "high", False, (True, "high", False)),
        (False, (), False, "", True, (True, "", True)),
        (False, (), False, "", False, (False, "", False)),
    ],
)
def test_effort_in_the_form_of_the_model(
    can: bool, levels: tuple[str, ...], knows: bool, effort: str, think: bool, expected: tuple[bool, str, bool]
) -> None:
    info = ModelInfo("p", "m", can_reason=can, reasoning_levels=levels, default_reasoning_effort="dflt")
    found, chosen = adapt_selection(
        Selection(reasoning_effort=effort, think=think), ModelSpec(info, "anthropic", "", knows_levels=knows)
    )
    assert (found.can_reason, chosen.reasoning_effort, chosen.think) == expected


# Keys


def key_of(given: dict[str, Any], keys: dict[str, str], environment: dict[str, str], name: str = "acme") -> str:
    found = resolve_endpoint(provider_of(name, **given), EndpointSources(_expand(environment), keys.get, environment))
    return found.api_key if isinstance(found, Endpoint) else f"lacks: {found.sentence}"


def _expand(environment: dict[str, str]) -> Callable[[str, Any], str]:
    def expand(text: str, _: Any) -> str:  # noqa: ANN401
        if text == "$(fails)":
            raise ValueError("the command failed")
        if text[1:] not in environment:
            raise ValueError(f"{text} is not set")
        return environment[text[1:]]

    return expand


NO_KEY = "lacks: Acme needs a key: set ACME_KEY, or run `holdfast login acme`."
ALL_KEYS = {"acme": "stored", "also": "by another name"}
BOTH = {"ACME_KEY": "first", "OTHER_KEY": "second", "MINE": "mine"}


@pytest.mark.parametrize(
    ("given", "keys", "environment", "expected"),
    [
        ({"api_key": " plain ", "oauth": {"access_token": "t"}}, ALL_KEYS, BOTH, "plain"),
        ({"api_key": "$MINE"}, ALL_KEYS, BOTH, "mine"),
        ({"api_key": "$GONE", "oauth": {"access_token": "t"}}, ALL_KEYS, BOTH, "t"),
        ({"api_key": "$GONE"}, ALL_KEYS, BOTH, "stored"),
        ({"api_key": "$GONE"}, {}, BOTH, "first"),
        ({"api_key": "$(fails)"}, ALL_KEYS, BOTH, "stored"),
        ({"api_key": "$(fails)"}, {}, BOTH, "first"),
        ({"api_key": "$(fails)"}, {}, {}, "lacks: Acme cannot be used: the command failed"),
        ({"api_key": "$GONE"}, {}, {}, "lacks: Acme needs a key: set GONE, or run `holdfast login acme`."),
        ({"oauth": {"access_token": 7}}, {}, BOTH, "first"),
        ({}, ALL_KEYS, BOTH, "stored"),
        ({}, {"acme": " "}, BOTH, "first"),
        ({}, {"also": " other "}, BOTH, "other"),
        ({}, {}, BOTH, "first"),
        ({}, {}, {"ACME_KEY": " ", "OTHER_KEY": "second"}, "second"),
        ({}, {}, {}, NO_KEY),
        ({"extra_headers": {"Authorization": "x"}}, {}, {}, ""),
        ({"extra_headers": {"x-api-key": "x"}}, {}, {}, ""),
        ({"extra_headers": {"api-key": "x"}}, {}, {}, ""),
        ({"extra_headers": {"x-goog-api-key": "x"}}, {}, {}, ""),
        ({"extra_headers": {"x-other": "x"}}, {}, {}, NO_KEY),
        ({"disable": True}, ALL_KEYS, BOTH, "lacks: Acme is disabled: providers.acme.disable is true."),
        ({"base_url": "acme.test"}, {}, BOTH, "lacks: providers.acme.base_url must begin with http:// or https://."),
    ],
)  # fmt: skip
def test_sources_of_a_key(
    given: dict[str, Any], keys: dict[str, str], environment: dict[str, str], expected: str
) -> None:
    assert key_of(given, keys, environment) == expected


@pytest.mark.parametrize(
    ("given", "keys", "expected"),
    [
        ({"base_url": "http://x"}, {}, ""),
        ({"base_url": "http://x"}, {"mine": "stored"}, "stored"),
        (
            {"base_url": "http://x", "api_key": "$K"},
            {},
            "lacks: mine needs a key: set K, or run `holdfast login mine`.",
        ),
        ({}, {}, "lacks: mine has no address: set providers.mine.base_url."),
        ({"type": "anthropic"}, {}, "lacks: mine needs a key: run `holdfast login mine`."),
        ({"type": "anthropic", "base_url": "http://x"}, {}, ""),
        ({"type": "anthropic"}, {"mine": "stored"}, "stored"),
    ],
)
def test_custom_providers(given: dict[str, Any], keys: dict[str, str], expected: str) -> None:
    assert key_of(given, keys, {}, "mine") == expected


def test_an_unknown_provider_type() -> None:
    found = resolve_endpoint(provider_of("mine", type="telepathy", base_url="http://x"), sources())
    assert isinstance(found, Unavailable)
    assert "'telepathy'" in found.sentence
    assert not found.is_key


SPECIAL: tuple[tuple[str, dict[str, Any], dict[str, str], str], ...] = (
    ("bedrock", {"api_key": "k"}, {}, "k"),
    ("bedrock", {}, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "ambient"),
    ("bedrock", {}, {"AWS_ACCESS_KEY_ID": "a"}, "lack"),
    ("bedrock", {}, {"AWS_SECRET_ACCESS_KEY": "b"}, "lack"),
    ("bedrock", {}, {"AWS_PROFILE": "p"}, "ambient"),
    ("bedrock", {}, {"AWS_DEFAULT_PROFILE": "p"}, "ambient"),
    ("bedrock", {}, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "p"}, "ambient"),
    ("bedrock", {}, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "p"}, "ambient"),
    ("bedrock", {}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "p"}, "ambient"),
    ("bedrock", {"aws_auth_refresh": "aws sso login"}, {}, "ambient"),
    ("bedrock", {}, {}, "lack"),
    ("vertexai", {"api_key": "k"}, {}, "k"),
    ("vertexai", {}, {"VERTEXAI_PROJECT": "p", "VERTEXAI_LOCATION": "l"}, ""),
    ("vertexai", {}, {"GOOGLE_CLOUD_PROJECT": "p", "VERTEXAI_LOCATION": "l"}, "ambient"),
    ("vertexai", {}, {"GCLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "l"}, "ambient"),
    ("vertexai", {}, {"VERTEXAI_PROJECT": "p"}, "lack"),
    ("vertexai", {}, {"VERTEXAI_LOCATION": "l"}, "lack"),
    ("vertexai", {"provider_options": {"project": "p", "location": "l"}}, {}, "ambient"),
    ("azure", {"api_key": "k"}, {"AZURE_OPENAI_API_ENDPOINT": "http://a"}, "k"),
    ("azure", {"api_key": "k"}, {"AZURE_OPENAI_ENDPOINT": "http://a"}, "k"),
    ("azure", {"api_key": "k"}, {"AZURE_OPENAI_BASE_URL": "http://a"}, "k"),
    ("azure", {"api_key": "k", "base_url": "http://b"}, {}, "k"),
    ("azure", {"api_key": "k"}, {}, "lack"),
    ("azure", {"base_url": "x"}, {}, "lack"),
)


@pytest.mark.parametrize(("wire", "given", "environment", "expected"), SPECIAL)
def test_providers_with_credentials_of_their_own(
    wire: str, given: dict[str, Any], environment: dict[str, str], expected: str
) -> None:
    found = resolve_endpoint(
        provider_of("mine", type=wire, **given), EndpointSources(lambda text, _: text, _no_key, environment)
    )
    seen = "lack" if isinstance(found, Unavailable) else "ambient" if found.is_ambient else found.api_key
    assert seen == expected


@pytest.mark.parametrize(
    ("wire", "environment", "expected"),
    [
        (
            "bedrock",
            {"AWS_REGION": "r", "AWS_DEFAULT_REGION": "d", "AWS_PROFILE": "p"},
            {"region": "r", "profile": "p"},
        ),
        ("bedrock", {"AWS_DEFAULT_REGION": "d", "AWS_DEFAULT_PROFILE": "p"}, {"region": "d", "profile": "p"}),
        (
            "bedrock",
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"},
            {"access_key_id": "a", "secret_access_key": "s", "session_token": "t"},
        ),
        ("azure", {"AZURE_OPENAI_API_VERSION": "1", "OPENAI_API_VERSION": "2"}, {"api_version": "1"}),
        ("azure", {"OPENAI_API_VERSION": "2"}, {"api_version": "2"}),
        ("anthropic", {"AWS_REGION": "r"}, {}),
    ],
)
def test_wire_specific_values(wire: str, environment: dict[str, str], expected: dict[str, str]) -> None:
    given = {"type": wire, "api_key": "k", "base_url": "http://x"}
    found = resolve_endpoint(provider_of("mine", **given), EndpointSources(lambda text, _: text, _no_key, environment))
    assert isinstance(found, Endpoint)
    assert found.extras == expected
    chosen = {name: "own" for name in expected}
    found = resolve_endpoint(
        provider_of("mine", **given, provider_options=chosen),
        EndpointSources(lambda text, _: text, _no_key, environment),
    )
    assert isinstance(found, Endpoint)
    assert found.extras == chosen
    plan = configure_model(provider_of("mine", **given, provider_options=chosen), found, model_spec(), Selection())
    assert plan.access.options == {}, "they are no part of a request"


def test_environment_variables_of_keys() -> None:
    assert key_variables(provider_of(api_key="${A}$B")) == ["A", "B", "ACME_KEY", "OTHER_KEY"]
    assert key_variables(provider_of("mine")) == []


def test_address_with_missing_variables() -> None:
    holed = msgspec.structs.replace(KNOWN, base_url="https://${REGION}.acme.test")
    settings = Settings(options=Options())
    (provider,) = effective_providers(Catalog(SOURCE, (holed,)), settings)
    lacking = resolve_endpoint(provider, EndpointSources(lambda text, _: text, _no_key, ENVIRONMENT))
    assert lacking == Unavailable("Acme needs REGION: set it.", "REGION")
    found = resolve_endpoint(provider, EndpointSources(lambda text, _: text, _no_key, {**ENVIRONMENT, "REGION": "eu"}))
    assert isinstance(found, Endpoint)
    assert found.base_url == "https://eu.acme.test"


UNAVAILABLE: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    # provider, settings, variable to set, whether a key is missing
    "switched off": ("acme", {"disable": True}, "", False),
    "unknown type": ("mine", {"type": "telepathy", "base_url": "http://x"}, "", False),
    "no address": ("mine", {}, "", False),
    "no web address": ("mine", {"base_url": "x"}, "", False),
    "no key": ("acme", {}, "ACME_KEY", True),
    "no key of the settings": ("mine", {"base_url": "http://x", "api_key": "$K"}, "K", True),
    "no key, no variable": ("mine", {"type": "anthropic"}, "", True),
    "no credentials of AWS": ("mine", {"type": "bedrock"}, "AWS_BEARER_TOKEN_BEDROCK", True),
    "no project": ("mine", {"type": "vertexai"}, "VERTEXAI_PROJECT", False),
    "no endpoint": ("mine", {"type": "azure", "api_key": "k"}, "AZURE_OPENAI_ENDPOINT", False),
}


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_what_is_missing(name: str) -> None:
    """The variable is offered to the user, and a missing key may be asked for."""
    id, given, variable, is_key = UNAVAILABLE[name]
    found = resolve_endpoint(provider_of(id, **given), EndpointSources(_expand({}), _no_key, {}))
    assert isinstance(found, Unavailable)
    assert (found.variable, found.is_key) == (variable, is_key)
