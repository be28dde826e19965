"""Mapping of Claude Code's model and event names to ours. Tool names are mapped in the domain. Pure."""

__all__ = ["our_model", "their_event"]

_ALIASES = {"": "", "inherit": "", "default": "", "sonnet": "", "opus": "", "haiku": "small"}


def their_event(name: str) -> str:
    """Return Claude Code's name of an event, because hook scripts inspect it."""
    return "Stop" if name == "RunEnd" else name


def our_model(name: str) -> str:
    """Return `large`, `small` or a model name; empty for the default model."""
    return _ALIASES.get(name.strip().lower(), name.strip())
