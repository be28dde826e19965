"""Language servers, as clients are told of them."""

from enum import IntEnum
from typing import Literal

import msgspec

__all__ = ["NEVER", "LspInfo", "LspNotice", "LspState"]

NEVER = "0001-01-01T00:00:00Z"
"""A moment that was not yet."""


class LspState(IntEnum):
    """Where a language server stands. The numbers are those of the wire."""

    UNSTARTED = 0
    STARTING = 1
    READY = 2
    ERROR = 3
    STOPPED = 4
    DISABLED = 5


class LspInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A language server as it is now. `error` says why it is not ready, and what to do; it may be set in any state."""

    name: str
    state: LspState
    connected_at: str
    error: str = ""
    diagnostic_count: int = 0


class LspNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has changed about a language server, and how it is now."""

    type: Literal["state_changed", "diagnostics_changed"]
    name: str
    state: LspState
    error: str = ""
    diagnostic_count: int = 0
