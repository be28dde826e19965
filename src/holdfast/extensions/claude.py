"""How Claude Code names models and events, and what we call them; its names of tools are in the domain. Pure."""

__all__ = ["our_model", "their_event"]

_ALIASES = {"": "", "inherit": "", "default": "", "sonnet": "", "opus": "", "haiku": "small"}


def their_event(name: str) -> str:
    """Scripts look at what they are called for."""
    return "Stop" if name == "RunEnd" else name


def our_model(name: str) -> str:
    """`large`, `small` or a name; empty where nothing else is wanted than usual."""
    return _ALIASES.get(name.strip().lower(), name.strip())
