"""Generates `src/holdfast/providers/catalog.json` from the model data of an npm package. Called by `update-catalog`.

The package is `@earendil-works/pi-ai` (MIT). Only facts are used: limits, prices, reasoning levels, addresses. The
set of supported providers, their order and their defaults are defined here. Missing prices are taken from
`genai-prices`.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.usage import Price
from holdfast.providers.catalog import (
    Catalog,
    CatalogModel,
    CatalogProvider,
    CatalogSource,
    encode_catalog,
    load_catalog,
    parse_catalog,
)

__all__ = ["PACKAGE", "Pricing", "build_catalog", "complete_price", "download_package", "listed_price", "main"]


PACKAGE = "@earendil-works/pi-ai"
_DATA = "package/dist/providers/data/"
_SNAPSHOT = Path(__file__).parents[1] / "src/holdfast/providers/catalog.json"
_MAX_MEMBER_SIZE = 32 * 1024 * 1024
_DOWNLOAD_TIMEOUT = 120.0
_MAX_OUTPUT_TOKENS = 64_000
"""Upper limit of the default output tokens. Some providers reserve credit for all of them."""

_BATCH_SUFFIXES = (":batch", "-batch")
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


class _ProviderPlan(msgspec.Struct, frozen=True):
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


_PROVIDER_PLANS = (
    _ProviderPlan(
        "anthropic",
        "Anthropic",
        ("ANTHROPIC_API_KEY",),
        ("claude-sonnet-5-5", "claude-sonnet-5"),
        ("claude-haiku-5-5", "claude-haiku-4-5"),
    ),
    _ProviderPlan(
        "openai", "OpenAI", ("OPENAI_API_KEY",), ("gpt-6.1-sol", "gpt-6-sol"), ("gpt-6-luna", "gpt-5.6-luna")
    ),
    _ProviderPlan(
        "google",
        "Google Gemini",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("gemini-4-argon", "gemini-pro-latest"),
        ("gemini-3.5-flash-lite", "gemini-flash-lite-latest"),
        id="gemini",
        aliases=("google",),
    ),
    _ProviderPlan(
        "openrouter",
        "OpenRouter",
        ("OPENROUTER_API_KEY",),
        ("anthropic/claude-sonnet-5.5", "anthropic/claude-sonnet-5"),
        ("anthropic/claude-haiku-5.5", "anthropic/claude-haiku-4.5"),
        only=("openai-completions", "https://openrouter.ai/api/v1"),
        thinking="openrouter",
    ),
    _ProviderPlan("xai", "xAI", ("XAI_API_KEY",), ("grok-4.7",), ("grok-4.3",), aliases=("x-ai", "grok")),
    _ProviderPlan("deepseek", "DeepSeek", ("DEEPSEEK_API_KEY",), ("deepseek-v4-pro",), ("deepseek-flash",)),
    _ProviderPlan("zai", "Z.AI", ("ZAI_API_KEY",), ("glm-5.3",), ("glm-5.3-flash",), aliases=("z-ai",)),
    _ProviderPlan(
        "moonshotai",
        "Moonshot AI",
        ("MOONSHOT_API_KEY",),
        ("kimi-k3.1-pro", "kimi-k3"),
        ("kimi-k2.6",),
        aliases=("moonshot",),
    ),
    _ProviderPlan(
        "mistral", "Mistral", ("MISTRAL_API_KEY",), ("mistral-large-4", "devstral-latest"), ("mistral-small-latest",)
    ),
    _ProviderPlan("minimax", "MiniMax", ("MINIMAX_API_KEY",), ("MiniMax-M3",), ("MiniMax-M3.1-Flash",)),
    _ProviderPlan("groq", "Groq", ("GROQ_API_KEY",), ("openai/gpt-oss-120b",), ("openai/gpt-oss-20b",)),
    _ProviderPlan("cerebras", "Cerebras", ("CEREBRAS_API_KEY",), ("gpt-oss-120b",), ("gpt-oss-120b",)),
    _ProviderPlan(
        "together",
        "Together",
        ("TOGETHER_API_KEY",),
        ("zai-org/GLM-5.3",),
        ("zai-org/GLM-5.3-Flash",),
        aliases=("together-ai", "togetherai"),
    ),
    _ProviderPlan(
        "fireworks",
        "Fireworks",
        ("FIREWORKS_API_KEY",),
        ("accounts/fireworks/models/glm-5p3",),
        ("accounts/fireworks/models/glm-5p3-flash",),
        only=("openai-completions", "https://api.fireworks.ai/inference/v1"),
    ),
    _ProviderPlan("baseten", "Baseten", ("BASETEN_API_KEY",), ("zai-org/GLM-5.3",), ("zai-org/GLM-5.3-Flash",)),
    _ProviderPlan(
        "huggingface",
        "Hugging Face",
        ("HF_TOKEN",),
        ("moonshotai/Kimi-K3",),
        ("openai/gpt-oss-20b",),
        aliases=("hugging-face",),
    ),
    _ProviderPlan(
        "nvidia", "NVIDIA", ("NVIDIA_API_KEY",), ("nvidia/nemotron-3-ultra-550b-a55b",), ("z-ai/glm-5.3-flash",)
    ),
    _ProviderPlan(
        "vercel-ai-gateway",
        "Vercel AI Gateway",
        ("AI_GATEWAY_API_KEY",),
        ("anthropic/claude-sonnet-5.5",),
        ("anthropic/claude-haiku-5.5",),
        aliases=("vercel",),
        only=("openai-completions", "https://ai-gateway.vercel.sh/v1"),
    ),
    _ProviderPlan(
        "opencode",
        "OpenCode Zen",
        ("OPENCODE_API_KEY",),
        ("claude-sonnet-5-5",),
        ("claude-haiku-5-5",),
        aliases=("opencode-zen",),
    ),
    _ProviderPlan("opencode-go", "OpenCode Go", ("OPENCODE_API_KEY",), ("glm-5.3",), ("glm-5.3-flash",)),
    _ProviderPlan(
        "kimi-coding", "Kimi For Coding", ("KIMI_API_KEY",), ("k3.1-pro", "kimi-for-coding"), ("kimi-for-coding",)
    ),
    _ProviderPlan("meta", "Meta", ("META_API_KEY",), ("muse-spark-1.3",), ("muse-spark-1.3",)),
    _ProviderPlan("xiaomi", "Xiaomi", ("XIAOMI_API_KEY",), ("mimo-v2.6-pro",), ("mimo-v2.6-flash",)),
    _ProviderPlan("ant-ling", "Ant Ling", ("ANT_LING_API_KEY",), ("Ring-2.6-1T",), ("Ling-2.6-flash",)),
    _ProviderPlan("qwen-token-plan", "Qwen Token Plan", ("QWEN_TOKEN_PLAN_API_KEY",), (), ()),
    _ProviderPlan("qwen-token-plan-individual", "Qwen Token Plan Individual", ("QWEN_TOKEN_PLAN_API_KEY",), (), ()),
    _ProviderPlan("qwen-token-plan-cn", "Qwen Token Plan CN", ("QWEN_TOKEN_PLAN_CN_API_KEY",), (), ()),
    _ProviderPlan(
        "moonshotai-cn",
        "Moonshot AI CN",
        ("MOONSHOT_CN_API_KEY", "MOONSHOT_API_KEY"),
        ("kimi-k3.1-pro", "kimi-k3"),
        ("kimi-k2.6",),
    ),
    _ProviderPlan("minimax-cn", "MiniMax CN", ("MINIMAX_CN_API_KEY",), ("MiniMax-M3",), ("MiniMax-M3.1-Flash",)),
    _ProviderPlan("zai-coding-cn", "Z.AI Coding CN", ("ZAI_CODING_CN_API_KEY",), ("glm-5.3",), ("glm-5.3-flash",)),
    _ProviderPlan("xiaomi-token-plan-ams", "Xiaomi Token Plan AMS", ("XIAOMI_TOKEN_PLAN_AMS_API_KEY",), (), ()),
    _ProviderPlan("xiaomi-token-plan-cn", "Xiaomi Token Plan CN", ("XIAOMI_TOKEN_PLAN_CN_API_KEY",), (), ()),
    _ProviderPlan("xiaomi-token-plan-sgp", "Xiaomi Token Plan SGP", ("XIAOMI_TOKEN_PLAN_SGP_API_KEY",), (), ()),
    _ProviderPlan("cloudflare-workers-ai", "Cloudflare Workers AI", ("CLOUDFLARE_API_KEY",), (), ()),
    _ProviderPlan(
        "amazon-bedrock",
        "Amazon Bedrock",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        ("us.anthropic.claude-sonnet-5-5", "us.anthropic.claude-sonnet-5"),
        ("us.anthropic.claude-haiku-5-5", "us.anthropic.claude-haiku-4-5-20251001-v1:0"),
        id="bedrock",
        aliases=("amazon-bedrock", "aws"),
    ),
    _ProviderPlan(
        "google-vertex",
        "Google Vertex AI",
        ("GOOGLE_CLOUD_API_KEY",),
        ("gemini-4-argon", "gemini-2.5-pro"),
        ("gemini-3.5-flash-lite", "gemini-2.5-flash-lite"),
        id="vertexai",
        aliases=("google-vertex", "vertex"),
    ),
    _ProviderPlan(
        "azure",
        "Azure OpenAI",
        ("AZURE_OPENAI_API_KEY",),
        ("gpt-6.1-sol", "gpt-5.5"),
        ("gpt-6-luna", "gpt-5-mini"),
        aliases=("azure-openai",),
    ),
)


def build_catalog(tarball: bytes, pricing: Pricing | None = None, prices: str = "") -> Catalog:
    """Build a catalogue from the package. Raises `ValueError` if the tarball has an unexpected content.

    `pricing` replaces the price list, and `prices` its name, in tests.
    """
    pricing = pricing or _complete_from_list
    prices = prices or f"genai-prices {version('genai-prices')}"
    files = dict(_members(tarball))
    try:
        package = msgspec.json.decode(files["package/package.json"])
        manifest = msgspec.json.decode(files[f"{_DATA}.manifest.json"])
        source = CatalogSource(package["name"], package["version"], manifest["generatedAt"][:10], "MIT", prices)
        providers = [
            _provider(plan, files[name], pricing)
            for plan in _PROVIDER_PLANS
            if (name := f"{_DATA}{plan.file}.json") in files
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the package has an unexpected layout: {error!r} is missing") from error
    if package["name"] != PACKAGE or package.get("license") != "MIT":
        raise ValueError(f"the package is not {PACKAGE} under the MIT licence")
    return Catalog(source, tuple(provider for provider in providers if provider.models))


def _members(tarball: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
            for member in archive:
                is_data = member.name == "package/package.json" or member.name.startswith(_DATA)
                is_small = member.isfile() and member.size <= _MAX_MEMBER_SIZE
                if is_data and is_small and (file := archive.extractfile(member)):
                    yield member.name, file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"not an npm package: {error}") from error


def _provider(plan: _ProviderPlan, data: bytes, pricing: Pricing) -> CatalogProvider:
    """Build one provider. The wire and address shared by most of its models become the provider's."""
    id = plan.id or plan.file
    raw = [
        (api, model)
        for api, models in msgspec.json.decode(data, type=dict[str, dict[str, dict[str, Any]]]).items()
        for model in models.values()
        if model["type"] == "chat" and api in _WIRES and not model["id"].endswith(_BATCH_SUFFIXES)
    ]
    endpoints = [_endpoint(*(plan.only or (api, model["baseUrl"]))) for api, model in raw]
    main = max(endpoints, key=endpoints.count, default=("openai-compat", ""))
    models = {
        model["id"]: _model(id, model, pricing, ("", "") if endpoint == main else endpoint)
        for endpoint, (_, model) in zip(endpoints, raw, strict=True)
        if endpoint == main or endpoint[1]
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
        _first(plan.large, models) or _strongest(ordered),
        _first(plan.small, models) or _cheapest(ordered),
        plan.aliases,
        dict(sorted(headers.items())),
        ordered,
    )


def _endpoint(api: str, url: str) -> tuple[str, str]:
    """Return our wire and the address as a template. Wires addressed by region or project have no address."""
    wire = _WIRES[api]
    if wire in ("bedrock", "vertexai", "azure"):
        return wire, ""
    if wire == "gemini":
        url = url.removesuffix("/v1beta")
    return wire, url.replace("{", "${")


def _model(provider: str, raw: dict[str, Any], pricing: Pricing, endpoint: tuple[str, str]) -> CatalogModel:
    cost = raw["cost"]
    price = Price(*(float(cost.get(kind, 0)) for kind in ("input", "output", "cacheRead", "cacheWrite")))
    price = pricing(provider, raw["id"], price)
    levels = _levels(raw)
    window = int(raw["contextWindow"])
    return CatalogModel(
        id=raw["id"],
        name="" if raw["name"] == raw["id"] else raw["name"],
        context_window=window,
        default_max_tokens=min(int(raw["maxTokens"]), _MAX_OUTPUT_TOKENS, max(window // 2, 1024)),
        cost_in=price.input,
        cost_out=price.output,
        cost_cache_read=price.cache_read,
        cost_cache_write=price.cache_write,
        can_reason=bool(raw["reasoning"]),
        reasoning_levels=levels,
        default_reasoning_effort=next((level for level in ("medium", "high", *levels) if level in levels), ""),
        images="image" in raw["input"],
        thinking=_thinking(raw),
        type=endpoint[0],
        base_url=endpoint[1],
    )


def _levels(raw: dict[str, Any]) -> tuple[str, ...]:
    """Return the reasoning levels, weakest first, by the names that are sent, not the package's own."""
    if not raw["reasoning"] or raw.get("compat", {}).get("supportsReasoningEffort") is False:
        return ()
    mapping = raw.get("thinkingLevelMap") or {}
    names = [mapping.get(level, level if level in ("low", "medium", "high") else None) for level in _LEVELS]
    off = ["none"] if mapping.get("off") == "none" else []
    return tuple(dict.fromkeys([*off, *(name for name in names if isinstance(name, str))]))


_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")


def _thinking(raw: dict[str, Any]) -> str:
    dialect = raw.get("compat", {}).get("thinkingFormat", "") if raw["reasoning"] else ""
    return "" if dialect == "openai" else str(dialect)


def _first(wanted: tuple[str, ...], models: dict[str, CatalogModel]) -> str:
    return next((name for name in wanted if name in models), "")


def _strongest(models: tuple[CatalogModel, ...]) -> str:
    """Return the most expensive model below an upper limit. Price approximates strength for lack of better data."""
    candidates = [model for model in models if model.cost_out <= 30.0] or list(models)
    if not candidates:
        return ""
    return max(candidates, key=lambda model: (model.can_reason, model.cost_out, model.context_window, model.id)).id


def _cheapest(models: tuple[CatalogModel, ...]) -> str:
    """Return the cheapest model with a context that fits an agent's conversation."""
    candidates = [model for model in models if model.context_window >= 32_000] or list(models)
    return min(candidates, key=lambda model: (model.cost_out, -model.context_window, model.id)).id if candidates else ""


# Prices

_PRICE_LIST_IDS = {
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

_TOKEN_KINDS = ("input", "output", "cache_read", "cache_write")


def _complete_from_list(provider: str, model: str, price: Price) -> Price:
    is_free = model.endswith((":free", "-free"))
    return price if is_free else complete_price(price, listed_price(provider, model))


def listed_price(provider: str, model: str) -> Price | None:
    """Return the listed price or None. It is the base price, without tiers for long contexts."""
    from genai_prices.data import providers  # noqa: PLC0415 - takes half a second

    name = _PRICE_LIST_IDS.get(provider, provider)
    listed = next((item for item in providers if item.id == name), None)
    found = listed.find_model(model) if listed is not None else None
    if found is None:
        return None
    prices = found.prices[-1].prices if isinstance(found.prices, list) else found.prices
    price = Price(*(_to_float(getattr(prices, f"{kind}_mtok", None)) for kind in _TOKEN_KINDS))
    return price if price.input or price.output else None


def complete_price(price: Price, listed: Price | None) -> Price:
    """Fill gaps of a price: use the listed price if none is known, else only its cache prices."""
    if listed is None:
        return price
    if not price.input and not price.output:
        return listed
    if (price.input, price.output) != (listed.input, listed.output):
        # The list describes another model or another tier; its cache prices would not fit.
        return price
    return Price(
        price.input, price.output, price.cache_read or listed.cache_read, price.cache_write or listed.cache_write
    )


def _to_float(value: Any) -> float:  # noqa: ANN401 - a decimal, a table of tiers, or None
    if value is None:
        return 0.0
    return float(getattr(value, "base", value))


# Command


def download_package() -> bytes:
    """Download the newest tarball with npm, which knows proxies and registries. Raises `OSError`."""
    with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as directory:
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{PACKAGE}@latest"]
        done = subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, timeout=_DOWNLOAD_TIMEOUT, check=False)
        tarballs = list(Path(directory).glob("*.tgz"))
        if done.returncode != 0 or not tarballs:
            raise OSError(f"npm could not download {PACKAGE}")
        return tarballs[0].read_bytes()


def main(arguments: list[str], path: Path = _SNAPSHOT) -> str:
    """Generate the catalogue from the tarball that is named, or from a download. Return a summary of the changes."""
    catalog = build_catalog(Path(arguments[0]).read_bytes() if arguments else download_package())
    data = encode_catalog(catalog)
    # Validate before replacing the file.
    parse_catalog(data)
    try:
        before = _model_names(load_catalog())
    except (OSError, ValueError):
        before = set()
    after = _model_names(catalog)
    path.write_bytes(data)
    return (
        f"{catalog.source.package} {catalog.source.version} of {catalog.source.made}: {len(catalog.providers)} "
        f"providers, {len(after)} models, {len(after - before)} added, {len(before - after)} removed, "
        f"{len(data) // 1024} KiB"
    )


def _model_names(catalog: Catalog) -> set[tuple[str, str]]:
    return {(provider.id, model.id) for provider in catalog.providers for model in provider.models}


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1:])}\n")
