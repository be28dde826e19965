"""Bodies about skills and commands."""

from typing import Literal

import msgspec

__all__ = ["CommandAsk", "CommandText", "SkillAsk", "SkillFacts", "SkillInfo", "SkillSource", "SkillText"]

SkillSource = Literal["user", "project", "system"]


class SkillInfo(msgspec.Struct, frozen=True):
    """A usable skill. `id` is the key with which its text is requested."""

    id: str
    name: str
    description: str
    label: str
    source: SkillSource
    user_invocable: bool


class SkillAsk(msgspec.Struct, frozen=True):
    """A request for the text of a skill."""

    skill_id: str


class SkillFacts(msgspec.Struct, frozen=True):
    """Facts about a skill."""

    name: str
    description: str
    source: SkillSource
    builtin: bool


class SkillText(msgspec.Struct, frozen=True):
    """The full text of a skill's file."""

    content: bytes
    result: SkillFacts


class CommandAsk(msgspec.Struct, frozen=True):
    """A prompt of the form `/name …`; `arguments` are named ones, in addition to the typed text."""

    prompt: str
    arguments: dict[str, str] = {}


class CommandText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The expansion of a command, for display only: the server expands a command that is sent as a prompt."""

    prompt: str
    command: str
    model: str = ""
    allowed_tools: tuple[str, ...] = ()
