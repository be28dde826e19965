"""What models cost, where the catalogue's source does not say. Used when a catalogue is made, never while running."""

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
"""Our names for providers, and the ones of the price list."""

_KINDS = ("input", "output", "cache_read", "cache_write")


def prices_version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - only when a catalogue is made

    return f"genai-prices {version('genai-prices')}"


def known_price(provider: str, model: str) -> Price | None:
    """What the price list says, or None. The plain price, without steps for long conversations."""
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
    """A price without gaps: all of it from the list if none is known, else only the cache's."""
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
