"""Whether client and server understand each other."""

__all__ = ["PROTOCOL"]

PROTOCOL = 1
"""Grows with every change that an older client or server would stumble over."""
