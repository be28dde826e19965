"""The protocol version."""

__all__ = ["PROTOCOL"]

PROTOCOL = 1
"""Incremented with every change that an older client or server could not handle."""
