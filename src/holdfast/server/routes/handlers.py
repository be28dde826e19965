"""Handlers by the name of their route."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType

from holdfast.protocol.routes import ROUTES
from holdfast.server.http.request import Handler
from holdfast.server.routes import system

__all__ = ["HANDLERS"]

_FIRST = ("routes.workspaces", "routes.sessions", "routes.prompts")
"""Imported with the first request about a workspace."""
_OTHER_MODULES = (
    "routes.approvals",
    "routes.extension_files",
    "routes.configuration",
    "routes.files",
    "routes.lsp",
    "routes.mcp",
    "routes.nodes",
    "routes.shell",
    "routes.web_login",
    "health.doctor",
)
"""Imported on first use, so that they do not delay the first prompt of a new server."""


class _Handlers(Mapping[str, Handler]):
    def __init__(self) -> None:
        self._names = tuple(route.name for route in ROUTES if not route.streams)
        self._known: dict[str, Handler] = {}
        self._add_modules([system])

    def __getitem__(self, name: str) -> Handler:
        for modules in (_FIRST, _OTHER_MODULES):
            if name in self._known:
                break
            self._add_modules(import_module(f"holdfast.server.{module}") for module in modules)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _add_modules(self, modules: Iterable[ModuleType]) -> None:
        for module in modules:
            for name in frozenset(self._names).intersection(module.__all__):
                if self._known.setdefault(name, getattr(module, name)) is not getattr(module, name):
                    raise LookupError(f"route {name} has two handlers")


HANDLERS: Mapping[str, Handler] = _Handlers()
