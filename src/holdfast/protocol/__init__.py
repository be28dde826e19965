"""The contract between client and server: routes, bodies, error statuses and the protocol version.

Types that both sides and the store share are in `domain`. No I/O, no handlers and no client code.
"""

__all__ = ["PROTOCOL"]

PROTOCOL = 1
"""The protocol version, incremented with every change that an older client or server could not handle."""
