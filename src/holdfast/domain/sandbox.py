"""What the commands of a workspace may do."""

from typing import Literal

import msgspec

__all__ = ["PROTECTED", "Mechanism", "SandboxState"]

Mechanism = Literal["bubblewrap", "landlock"]
"""Who enforces it: a program that is installed beside, or the kernel, with the guard's help."""


PROTECTED = (
    "holdfast.toml",
    ".holdfast.toml",
    ".holdfast",
    "crush.json",
    ".crush.json",
    ".crush",
    ".mcp.json",
    ".claude",
    ".agents",
    ".cursor",
    ".hg/hgrc",
)
"""In the directory of a workspace: settings, hooks, servers, skills, commands and agents, which are obeyed outside of
the sandbox. Git directories are protected besides."""


class SandboxState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sandbox in force, for people and clients. `gaps` are what this machine cannot close."""

    mode: Literal["off", "workspace"] = "off"
    mechanism: Mechanism | None = None
    network: bool = True
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
