"""Language servers, as clients see them."""

from enum import IntEnum
from typing import Literal

import msgspec

__all__ = ["NEVER", "LspInfo", "LspNotice", "LspState"]

NEVER = "0001-01-01T00:00:00Z"
"""The timestamp of an event that has not happened."""


class LspState(IntEnum):
    """The state of a language server. The numbers are those of the wire."""

    UNSTARTED = 0
    STARTING = 1
    READY = 2
    ERROR = 3
    STOPPED = 4
    DISABLED = 5


class LspInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current state of a language server. `error` has the reason why it is not ready and a remedy; it may be set in
    any state.
    """

    name: str
    state: LspState
    connected_at: str
    error: str = ""
    diagnostic_count: int = 0


class LspNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a language server, and its current state."""

    type: Literal["state_changed", "diagnostics_changed"]
    name: str
    state: LspState
    error: str = ""
    diagnostic_count: int = 0
