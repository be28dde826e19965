"""What the commands of a workspace may do."""

from typing import Literal

import msgspec

__all__ = ["Mechanism", "SandboxState"]

Mechanism = Literal["bubblewrap", "landlock"]
"""Who enforces it: a program that is installed beside, or the kernel by itself."""


class SandboxState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is in force, for people and clients. `notes` says where it is weaker than one may think."""

    mode: Literal["off", "workspace"] = "off"
    mechanism: Mechanism | None = None
    network: bool = True
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
