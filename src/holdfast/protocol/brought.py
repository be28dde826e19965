"""What is said about skills and commands."""

from typing import Literal

import msgspec

__all__ = ["CommandAsk", "CommandText", "SkillAsk", "SkillFacts", "SkillInfo", "SkillSource", "SkillText"]

SkillSource = Literal["user", "project", "system"]


class SkillInfo(msgspec.Struct, frozen=True):
    """A skill that can be used. `id` is what its text is asked for with."""

    id: str
    name: str
    description: str
    label: str
    source: SkillSource
    user_invocable: bool


class SkillAsk(msgspec.Struct, frozen=True):
    skill_id: str


class SkillFacts(msgspec.Struct, frozen=True):
    name: str
    description: str
    source: SkillSource
    builtin: bool


class SkillText(msgspec.Struct, frozen=True):
    """All that stands in its file."""

    content: bytes
    result: SkillFacts


class CommandAsk(msgspec.Struct, frozen=True):
    """A prompt of the form `/name …`; `arguments` are named ones, apart from what was typed."""

    prompt: str
    arguments: dict[str, str] = {}


class CommandText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command stands for. Sent as a prompt, it is expanded by the server; this only shows it."""

    prompt: str
    command: str
    model: str = ""
    allowed_tools: tuple[str, ...] = ()
