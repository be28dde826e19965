"""Homes for editors: a fresh one, or one with a server that the tests of a module share."""

from cli.conftest import alone, home

__all__ = ["alone", "home"]
