"""`holdfast logout`: forget the key of a provider."""

from holdfast.cli.login import logout as command

__all__ = ["command"]
