"""Token counts and costs."""

import msgspec

__all__ = ["Price", "Usage", "cost_of", "estimate_tokens"]

_CHARACTERS_PER_TOKEN = 4


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of one provider request. All zero means that the provider did not report them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def is_reported(self) -> bool:
        """True if the provider reported any count."""
        return bool(self.input_tokens or self.output_tokens or self.cache_read_tokens or self.cache_write_tokens)


class Price(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0


def cost_of(usage: Usage, price: Price) -> float:
    """Return the cost of the usage in dollars."""
    return (
        usage.input_tokens * price.input
        + usage.output_tokens * price.output
        + usage.cache_read_tokens * price.cache_read
        + usage.cache_write_tokens * price.cache_write
    ) / 1_000_000


def estimate_tokens(characters: int) -> int:
    """Return a rough token count, for providers that report none."""
    return -(-characters // _CHARACTERS_PER_TOKEN)
