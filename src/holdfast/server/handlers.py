"""Every handler by the name of its route."""

from holdfast.protocol.routes import ROUTES
from holdfast.server import (
    agent,
    asks,
    commands,
    configuration,
    doctor,
    entry,
    files,
    insights,
    log,
    lsp,
    mcp,
    runs,
    sessions,
    skills,
    system,
    undo,
    work,
    workspaces,
)
from holdfast.server.calls import Handler

__all__ = ["HANDLERS"]

_MODULES = (
    agent,
    asks,
    commands,
    configuration,
    doctor,
    entry,
    files,
    insights,
    log,
    lsp,
    mcp,
    runs,
    sessions,
    skills,
    system,
    undo,
    work,
    workspaces,
)


def _find(name: str) -> Handler:
    handlers: list[Handler] = [getattr(module, name) for module in _MODULES if name in module.__all__]
    if len(handlers) != 1:
        raise LookupError(f"route {name} has {len(handlers)} handlers")
    return handlers[0]


HANDLERS: dict[str, Handler] = {route.name: _find(route.name) for route in ROUTES if not route.streams}
