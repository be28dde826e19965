"""Holdfast: a coding agent that holds on when you let go."""

__all__ = ["__version__"]

__version__ = "0.1.0"
