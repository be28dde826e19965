"""Usage statistics, counted by the store."""

import msgspec

__all__ = ["ModelUse", "Stats"]


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
