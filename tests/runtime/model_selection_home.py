"""Sources of model selection as a test sets them up: settings, environment, stored keys, and a record of executed
commands.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from holdfast.config.variables import Expander, ExpansionFailed
from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Settings
from holdfast.providers.catalog import load_catalog
from holdfast.providers.model_discovery import ModelDiscovery
from holdfast.providers.shared_http_clients import close_connections
from holdfast.runtime.model_selection import ModelSources, SelectedModels
from providers.json_server import JsonServer

__all__ = [
    "DEEPSEEK",
    "GROQ",
    "GROQ_LARGE",
    "GROQ_SMALL",
    "ModelSelectionHome",
    "local_provider",
    "open_home",
    "refusal",
]

GROQ, DEEPSEEK = (next(item for item in load_catalog().providers if item.id == id) for id in ("groq", "deepseek"))
GROQ_LARGE, GROQ_SMALL = f"groq/{GROQ.default_large}", f"groq/{GROQ.default_small}"


class ModelSelectionHome:
    """`output_of` maps each `$(command)` to its output; `commands` are the executed ones."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.settings = Settings()
        self.environment = dict(environment)
        self.keys: dict[str, str] = {}
        self.stamp = 0
        self.output_of: dict[str, str] = {}
        self.commands: list[str] = []
        self.tokens: list[str] = []
        self.signs_in = True
        self.selection_problem = ""
        self.now = 0.0
        self.discovery = ModelDiscovery(lambda: self.now)
        sources = ModelSources(
            lambda: self.settings,
            self._expand,
            lambda: self.environment,
            self.keys.get,
            lambda: self.stamp,
            selection_problem=lambda: self.selection_problem,
            new_token=self._new_token,
            sign_in=self._sign_in,
        )
        self.models = SelectedModels(sources, self.discovery, clock=lambda: self.now)

    def set(self, **tables: object) -> None:
        """Replace the settings, given as in the files."""
        self.settings = msgspec.convert(tables, Settings)

    async def large(self) -> str:
        info = (await self.models.large()).info
        return f"{info.provider}/{info.model}"

    async def small(self) -> str:
        info = (await self.models.small()).info
        return f"{info.provider}/{info.model}"

    def _expand(self, text: str, _path: tuple[str | int, ...]) -> str:
        return Expander(self.environment, self._run).expand(text, may_run=True)

    def _run(self, command: str, _environment: Mapping[str, str]) -> str:
        self.commands.append(command)
        if command not in self.output_of:
            raise ExpansionFailed("The command in $(…) failed with status 1.")
        return self.output_of[command]

    async def _new_token(self, _provider: str, _used: str) -> str | None:
        self.commands.append("token")
        return self.tokens.pop(0) if self.tokens else None

    async def _sign_in(self, command: str) -> bool:
        self.commands.append(command)
        return self.signs_in


@asynccontextmanager
async def open_home(port: int) -> AsyncIterator[ModelSelectionHome]:
    """Yield a home whose OLLAMA_HOST is this port, without other providers."""
    made = ModelSelectionHome({"OLLAMA_HOST": f"127.0.0.1:{port}"})
    try:
        yield made
    finally:
        await made.models.close()
        await made.discovery.close()
        await close_connections()


def local_provider(server: JsonServer, **more: object) -> dict[str, Any]:
    return {"local": {"base_url": f"{server.url}/v1", **more}}


async def refusal(open_home: ModelSelectionHome) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await open_home.models.large()
    return caught.value
