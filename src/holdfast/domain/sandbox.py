"""The sandbox of the commands of a workspace."""

from typing import Literal

import msgspec

__all__ = ["PROTECTED", "Mechanism", "SandboxState"]

Mechanism = Literal["bubblewrap", "landlock"]
"""The enforcing mechanism: the program bubblewrap, or the kernel (Landlock), set up by the guard."""


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
"""Paths in a workspace directory that are read outside of the sandbox, as settings, hooks, servers, skills, commands
and agents, and therefore protected in it. Git directories are protected in addition.
"""


class SandboxState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sandbox in force, for clients. `gaps` are restrictions that this machine cannot enforce."""

    mode: Literal["off", "workspace"] = "off"
    mechanism: Mechanism | None = None
    network: bool = True
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
