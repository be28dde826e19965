"""What was done, in numbers: counted by the store, drawn by whoever likes."""

import msgspec

__all__ = ["ModelUse", "Stats"]


class ModelUse(msgspec.Struct, frozen=True):
    """How many answers a model gave, and how long one took from its beginning to its end, on average."""

    provider: str
    model: str
    messages: int
    seconds: float = 0.0


class Stats(msgspec.Struct, frozen=True):
    """What was done in a workspace, or in all of them. Sessions that agents open for themselves count in all but
    `sessions`.

    `runs` counts by outcome; those that have not ended are `open`. `days` counts runs by the day they were accepted
    on, `costs` adds up dollars by the day a session was begun on. `week` counts prompts: seven days from Monday on,
    with 24 hours each. Days and hours are those of a clock that is `zone` minutes ahead of UTC. `seconds` is how long a
    completed run took from its start to its end, on average, `response_seconds` how long an answer did. `tools` counts
    calls.
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
