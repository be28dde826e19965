"""Token counts, costs, and the usage statistics that the store counts."""

import msgspec

__all__ = ["ModelUse", "Price", "Stats", "Usage", "cost_of", "estimate_tokens"]


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


class ModelUse(msgspec.Struct, frozen=True):
    """The number of answers of a model, and their average duration."""

    provider: str
    model: str
    messages: int
    seconds: float = 0.0


class Stats(msgspec.Struct, frozen=True):
    """The statistics of a workspace, or of all of them. Sessions of sub-agents are included in everything except
    `sessions`.

    `runs` counts by outcome; those that have not ended are `open`. `days` counts runs by the day they were accepted
    on, `costs` sums dollars by the day a session was created on. `week` counts prompts: seven days from Monday on,
    with 24 hours each. Days and hours are those of a clock that is `zone` minutes ahead of UTC. `seconds` is the
    average
    duration of a completed run, `response_seconds` that of an answer. `tools` counts calls.
    """

    sessions: int
    messages: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    runs: dict[str, int]
    days: dict[str, int]
    seconds: float
    response_seconds: float = 0.0
    models: tuple[ModelUse, ...] = ()
    tools: dict[str, int] = {}
    week: tuple[tuple[int, ...], ...] = ()
    costs: dict[str, float] = {}
    workspaces: tuple[str, ...] = ()
    zone: int = 0
