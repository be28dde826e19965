"""Generator of the catalogue: converts the model data of an npm package to our schema. Pure except for prices.

The package is `@earendil-works/pi-ai` (MIT). Only facts are used: limits, prices, reasoning levels, addresses. The
set of supported providers, their order and their defaults are defined here.
"""

import io
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.usage import Price
from holdfast.providers.catalog import Catalog, CatalogModel, CatalogProvider, CatalogSource

__all__ = ["PACKAGE", "Pricing", "completed", "harvest", "known_price", "prices_version"]


PACKAGE = "@earendil-works/pi-ai"
_DATA = "package/dist/providers/data/"
_LARGEST = 32 * 1024 * 1024
_MOST_OUTPUT = 64_000
"""Upper limit of the default output tokens. Some providers reserve credit for all of them."""

_NOT_NOW = (":batch", "-batch")
"""Cheaper batch variants, which respond hours later."""

Pricing: TypeAlias = Callable[[str, str, Price], Price]
"""Completes the price of a provider's model."""

_WIRES = {
    "openai-completions": "openai-compat",
    "openai-responses": "openai-responses",
    "azure-openai-responses": "azure",
    "anthropic-messages": "anthropic",
    "google-generative-ai": "gemini",
    "google-vertex": "vertexai",
    "bedrock-converse-stream": "bedrock",
    "mistral-conversations": "mistral",
}
"""Wire names of the package, mapped to ours. Models on other wires are skipped."""


class _Plan(msgspec.Struct, frozen=True):
    """Our part of a provider's entry: its file in the package, id, name, key variables and default models.

    `only` forces one wire and address, for servers that support several; `thinking` is the dialect of reasoning
    parameters.
    """

    file: str
    name: str
    keys: tuple[str, ...]
    large: tuple[str, ...]
    small: tuple[str, ...]
    id: str = ""
    aliases: tuple[str, ...] = ()
    only: tuple[str, str] | None = None
    thinking: str = ""


_PLANS = (
    _Plan(
        "anthropic",
        "Anthropic",
        ("ANTHROPIC_API_KEY",),
        ("claude-sonnet-5-5", "claude-sonnet-5"),
        ("claude-haiku-5-5", "claude-haiku-4-5"),
    ),
    _Plan("openai", "OpenAI", ("OPENAI_API_KEY",), ("gpt-6.1-sol", "gpt-6-sol"), ("gpt-6-luna", "gpt-5.6-luna")),
    _Plan(
        "google",
        "Google Gemini",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("gemini-4-argon", "gemini-pro-latest"),
        ("gemini-3.5-flash-lite", "gemini-flash-lite-latest"),
        id="gemini",
        aliases=("google",),
    ),
    _Plan(
        "openrouter",
        "OpenRouter",
        ("OPENROUTER_API_KEY",),
        ("anthropic/claude-sonnet-5.5", "anthropic/claude-sonnet-5"),
        ("anthropic/claude-haiku-5.5", "anthropic/claude-haiku-4.5"),
        only=("openai-completions", "https://openrouter.ai/api/v1"),
        thinking="openrouter",
    ),
    _Plan("xai", "xAI", ("XAI_API_KEY",), ("grok-4.7",), ("grok-4.3",), aliases=("x-ai", "grok")),
    _Plan("deepseek", "DeepSeek", ("DEEPSEEK_API_KEY",), ("deepseek-v4-pro",), ("deepseek-flash",)),
    _Plan("zai", "Z.AI", ("ZAI_API_KEY",), ("glm-5.3",), ("glm-5.3-flash",), aliases=("z-ai",)),
    _Plan(
        "moonshotai",
        "Moonshot AI",
        ("MOONSHOT_API_KEY",),
        ("kimi-k3.1-pro", "kimi-k3"),
        ("kimi-k2.6",),
        aliases=("moonshot",),
    ),
    _Plan(
        "mistral", "Mistral", ("MISTRAL_API_KEY",), ("mistral-large-4", "devstral-latest"), ("mistral-small-latest",)
    ),
    _Plan("minimax", "MiniMax", ("MINIMAX_API_KEY",), ("MiniMax-M3",), ("MiniMax-M3.1-Flash",)),
    _Plan("groq", "Groq", ("GROQ_API_KEY",), ("openai/gpt-oss-120b",), ("openai/gpt-oss-20b",)),
    _Plan("cerebras", "Cerebras", ("CEREBRAS_API_KEY",), ("gpt-oss-120b",), ("gpt-oss-120b",)),
    _Plan(
        "together",
        "Together",
        ("TOGETHER_API_KEY",),
        ("zai-org/GLM-5.3",),
        ("zai-org/GLM-5.3-Flash",),
        aliases=("together-ai", "togetherai"),
    ),
    _Plan(
        "fireworks",
        "Fireworks",
        ("FIREWORKS_API_KEY",),
        ("accounts/fireworks/models/glm-5p3",),
        ("accounts/fireworks/models/glm-5p3-flash",),
        only=("openai-completions", "https://api.fireworks.ai/inference/v1"),
    ),
    _Plan("baseten", "Baseten", ("BASETEN_API_KEY",), ("zai-org/GLM-5.3",), ("zai-org/GLM-5.3-Flash",)),
    _Plan(
        "huggingface",
        "Hugging Face",
        ("HF_TOKEN",),
        ("moonshotai/Kimi-K3",),
        ("openai/gpt-oss-20b",),
        aliases=("hugging-face",),
    ),
    _Plan("nvidia", "NVIDIA", ("NVIDIA_API_KEY",), ("nvidia/nemotron-3-ultra-550b-a55b",), ("z-ai/glm-5.3-flash",)),
    _Plan(
        "vercel-ai-gateway",
        "Vercel AI Gateway",
        ("AI_GATEWAY_API_KEY",),
        ("anthropic/claude-sonnet-5.5",),
        ("anthropic/claude-haiku-5.5",),
        aliases=("vercel",),
        only=("openai-completions", "https://ai-gateway.vercel.sh/v1"),
    ),
    _Plan(
        "opencode",
        "OpenCode Zen",
        ("OPENCODE_API_KEY",),
        ("claude-sonnet-5-5",),
        ("claude-haiku-5-5",),
        aliases=("opencode-zen",),
    ),
    _Plan("opencode-go", "OpenCode Go", ("OPENCODE_API_KEY",), ("glm-5.3",), ("glm-5.3-flash",)),
    _Plan("kimi-coding", "Kimi For Coding", ("KIMI_API_KEY",), ("k3.1-pro", "kimi-for-coding"), ("kimi-for-coding",)),
    _Plan("meta", "Meta", ("META_API_KEY",), ("muse-spark-1.3",), ("muse-spark-1.3",)),
    _Plan("xiaomi", "Xiaomi", ("XIAOMI_API_KEY",), ("mimo-v2.6-pro",), ("mimo-v2.6-flash",)),
    _Plan("ant-ling", "Ant Ling", ("ANT_LING_API_KEY",), ("Ring-2.6-1T",), ("Ling-2.6-flash",)),
    _Plan("qwen-token-plan", "Qwen Token Plan", ("QWEN_TOKEN_PLAN_API_KEY",), (), ()),
    _Plan("qwen-token-plan-individual", "Qwen Token Plan Individual", ("QWEN_TOKEN_PLAN_API_KEY",), (), ()),
    _Plan("qwen-token-plan-cn", "Qwen Token Plan CN", ("QWEN_TOKEN_PLAN_CN_API_KEY",), (), ()),
    _Plan(
        "moonshotai-cn",
        "Moonshot AI CN",
        ("MOONSHOT_CN_API_KEY", "MOONSHOT_API_KEY"),
        ("kimi-k3.1-pro", "kimi-k3"),
        ("kimi-k2.6",),
    ),
    _Plan("minimax-cn", "MiniMax CN", ("MINIMAX_CN_API_KEY",), ("MiniMax-M3",), ("MiniMax-M3.1-Flash",)),
    _Plan("zai-coding-cn", "Z.AI Coding CN", ("ZAI_CODING_CN_API_KEY",), ("glm-5.3",), ("glm-5.3-flash",)),
    _Plan("xiaomi-token-plan-ams", "Xiaomi Token Plan AMS", ("XIAOMI_TOKEN_PLAN_AMS_API_KEY",), (), ()),
    _Plan("xiaomi-token-plan-cn", "Xiaomi Token Plan CN", ("XIAOMI_TOKEN_PLAN_CN_API_KEY",), (), ()),
    _Plan("xiaomi-token-plan-sgp", "Xiaomi Token Plan SGP", ("XIAOMI_TOKEN_PLAN_SGP_API_KEY",), (), ()),
    _Plan("cloudflare-workers-ai", "Cloudflare Workers AI", ("CLOUDFLARE_API_KEY",), (), ()),
    _Plan(
        "amazon-bedrock",
        "Amazon Bedrock",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        ("us.anthropic.claude-sonnet-5-5", "us.anthropic.claude-sonnet-5"),
        ("us.anthropic.claude-haiku-5-5", "us.anthropic.claude-haiku-4-5-20251001-v1:0"),
        id="bedrock",
        aliases=("amazon-bedrock", "aws"),
    ),
    _Plan(
        "google-vertex",
        "Google Vertex AI",
        ("GOOGLE_CLOUD_API_KEY",),
        ("gemini-4-argon", "gemini-2.5-pro"),
        ("gemini-3.5-flash-lite", "gemini-2.5-flash-lite"),
        id="vertexai",
        aliases=("google-vertex", "vertex"),
    ),
    _Plan(
        "azure",
        "Azure OpenAI",
        ("AZURE_OPENAI_API_KEY",),
        ("gpt-6.1-sol", "gpt-5.5"),
        ("gpt-6-luna", "gpt-5-mini"),
        aliases=("azure-openai",),
    ),
)


def harvest(tarball: bytes, pricing: Pricing, prices: str) -> Catalog:
    """Build a catalogue from the package. Raises `ValueError` if the tarball has an unexpected content."""
    held = dict(_members(tarball))
    try:
        package = msgspec.json.decode(held["package/package.json"])
        manifest = msgspec.json.decode(held[f"{_DATA}.manifest.json"])
        source = CatalogSource(package["name"], package["version"], manifest["generatedAt"][:10], "MIT", prices)
        providers = [
            _provider(plan, held[name], pricing) for plan in _PLANS if (name := f"{_DATA}{plan.file}.json") in held
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the package is not laid out as it was: {error!r} is missing") from error
    if package["name"] != PACKAGE or package.get("license") != "MIT":
        raise ValueError(f"it is not {PACKAGE} under the MIT licence")
    return Catalog(source, tuple(provider for provider in providers if provider.models))


def _members(tarball: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
            for member in archive:
                wanted = member.name == "package/package.json" or member.name.startswith(_DATA)
                if wanted and member.isfile() and member.size <= _LARGEST and (file := archive.extractfile(member)):
                    yield member.name, file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"it is not a package: {error}") from error


def _provider(plan: _Plan, data: bytes, pricing: Pricing) -> CatalogProvider:
    """Build one provider. The wire and address shared by most of its models become the provider's."""
    id = plan.id or plan.file
    raw = [
        (api, model)
        for api, models in msgspec.json.decode(data, type=dict[str, dict[str, dict[str, Any]]]).items()
        for model in models.values()
        if model["type"] == "chat" and api in _WIRES and not model["id"].endswith(_NOT_NOW)
    ]
    reached = [_place(*(plan.only or (api, model["baseUrl"]))) for api, model in raw]
    main = max(reached, key=reached.count, default=("openai-compat", ""))
    models = {
        model["id"]: _model(id, model, pricing, ("", "") if place == main else place)
        for place, (_, model) in zip(reached, raw, strict=True)
        if place == main or place[1]
    }
    if plan.thinking:
        models = {
            name: msgspec.structs.replace(model, thinking=plan.thinking) if model.can_reason else model
            for name, model in models.items()
        }
    ordered = tuple(models[name] for name in sorted(models))
    headers = raw[0][1].get("headers", {}) if raw else {}
    return CatalogProvider(
        id,
        plan.name,
        "openai" if id == "openai" else main[0],
        plan.keys,
        main[1],
        _first(plan.large, models) or _dearest(ordered),
        _first(plan.small, models) or _cheapest(ordered),
        plan.aliases,
        dict(sorted(headers.items())),
        ordered,
    )


def _place(api: str, url: str) -> tuple[str, str]:
    """Return our wire and the address as a template. Wires addressed by region or project have no address."""
    wire = _WIRES[api]
    if wire in ("bedrock", "vertexai", "azure"):
        return wire, ""
    if wire == "gemini":
        url = url.removesuffix("/v1beta")
    return wire, url.replace("{", "${")


def _model(provider: str, raw: dict[str, Any], pricing: Pricing, place: tuple[str, str]) -> CatalogModel:
    cost = raw["cost"]
    price = Price(*(float(cost.get(kind, 0)) for kind in ("input", "output", "cacheRead", "cacheWrite")))
    price = pricing(provider, raw["id"], price)
    levels = _levels(raw)
    window = int(raw["contextWindow"])
    return CatalogModel(
        id=raw["id"],
        name="" if raw["name"] == raw["id"] else raw["name"],
        context_window=window,
        default_max_tokens=min(int(raw["maxTokens"]), _MOST_OUTPUT, max(window // 2, 1024)),
        cost_in=price.input,
        cost_out=price.output,
        cost_cache_read=price.cache_read,
        cost_cache_write=price.cache_write,
        can_reason=bool(raw["reasoning"]),
        reasoning_levels=levels,
        default_reasoning_effort=next((level for level in ("medium", "high", *levels) if level in levels), ""),
        images="image" in raw["input"],
        thinking=_thinking(raw),
        type=place[0],
        base_url=place[1],
    )


def _levels(raw: dict[str, Any]) -> tuple[str, ...]:
    """Return the reasoning levels, weakest first, by the names that are sent, not the package's own."""
    if not raw["reasoning"] or raw.get("compat", {}).get("supportsReasoningEffort") is False:
        return ()
    given = raw.get("thinkingLevelMap") or {}
    words = [given.get(level, level if level in ("low", "medium", "high") else None) for level in _ORDER]
    off = ["none"] if given.get("off") == "none" else []
    return tuple(dict.fromkeys([*off, *(word for word in words if isinstance(word, str))]))


_ORDER = ("minimal", "low", "medium", "high", "xhigh", "max")


def _thinking(raw: dict[str, Any]) -> str:
    way = raw.get("compat", {}).get("thinkingFormat", "") if raw["reasoning"] else ""
    return "" if way == "openai" else str(way)


def _first(wanted: tuple[str, ...], models: dict[str, CatalogModel]) -> str:
    return next((name for name in wanted if name in models), "")


def _dearest(models: tuple[CatalogModel, ...]) -> str:
    """Return the most expensive model below an upper limit. Price approximates strength for lack of better data."""
    fair = [model for model in models if model.cost_out <= 30.0] or list(models)
    return (
        max(fair, key=lambda model: (model.can_reason, model.cost_out, model.context_window, model.id)).id
        if fair
        else ""
    )


def _cheapest(models: tuple[CatalogModel, ...]) -> str:
    able = [model for model in models if model.context_window >= 32_000] or list(models)
    return min(able, key=lambda model: (model.cost_out, -model.context_window, model.id)).id if able else ""


# Prices for models that the catalogue's source does not list. Used when a catalogue is generated, never at runtime.

_PROVIDERS = {
    "bedrock": "aws",
    "gemini": "google",
    "vertexai": "google",
    "xai": "x-ai",
    "zai-coding-cn": "zhipuai",
    "moonshotai-cn": "moonshotai",
    "minimax-cn": "minimax",
    "cloudflare-workers-ai": "cloudflare",
}
"""Our provider ids, mapped to those of the price list."""

_KINDS = ("input", "output", "cache_read", "cache_write")


def prices_version() -> str:
    """Return name and version of the price list."""
    from importlib.metadata import version  # noqa: PLC0415 - only when a catalogue is made

    return f"genai-prices {version('genai-prices')}"


def known_price(provider: str, model: str) -> Price | None:
    """Return the listed price or None. It is the base price, without tiers for long contexts."""
    from genai_prices.data import providers  # noqa: PLC0415 - half a second

    name = _PROVIDERS.get(provider, provider)
    listed = next((item for item in providers if item.id == name), None)
    found = listed.find_model(model) if listed is not None else None
    if found is None:
        return None
    prices = found.prices[-1].prices if isinstance(found.prices, list) else found.prices
    price = Price(*(_plain(getattr(prices, f"{kind}_mtok", None)) for kind in _KINDS))
    return price if price.input or price.output else None


def completed(price: Price, listed: Price | None) -> Price:
    """Fill gaps of a price: use the listed price if none is known, else only its cache prices."""
    if listed is None:
        return price
    if not price.input and not price.output:
        return listed
    is_same = (price.input, price.output) == (listed.input, listed.output)
    if not is_same:
        return price
    return Price(
        price.input, price.output, price.cache_read or listed.cache_read, price.cache_write or listed.cache_write
    )


def _plain(value: Any) -> float:  # noqa: ANN401 - a decimal, a table of steps, or nothing
    if value is None:
        return 0.0
    return float(getattr(value, "base", value))
