"""Skills, as clients see them."""

from typing import Literal

import msgspec

__all__ = ["SkillState", "SkillStates"]


class SkillState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A skill that was found. `state` is 0 if it can be used and 1 if it cannot; `error` is the reason."""

    name: str
    path: str
    state: Literal[0, 1]
    error: str = ""


class SkillStates(msgspec.Struct, frozen=True):
    """All skills of a workspace."""

    states: tuple[SkillState, ...]
