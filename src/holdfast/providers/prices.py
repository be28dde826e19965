"""Prices for models that the catalogue's source does not list. Used when a catalogue is generated, never at runtime."""

from typing import Any

from holdfast.domain.usage import Price

__all__ = ["completed", "known_price", "prices_version"]

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
