"""Adapter for providers with an SDK: OpenAI, Anthropic, Google, Bedrock, Azure, Mistral.

Requests go through pydantic-ai's direct API. The SDKs take seconds to import, so they are imported in a thread with
the first request. A request runs in a separate task: however an SDK reacts to cancellation, the connection is closed
at once.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from types import ModuleType
from typing import Any

import msgspec

from holdfast.distribution_names import install_command
from holdfast.domain.errors import ProviderError
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.settings import Selection
from holdfast.http11.client_connection import RequestWatchdog
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.openai_compatible import session_headers
from holdfast.providers.provider_errors import (
    ErrorContext,
    convert_exception,
    credentials_error,
    incomplete_error,
    refused_error,
)
from holdfast.providers.shared_http_clients import CURRENT_WATCHDOG, USER_AGENT, http_client, in_thread
from holdfast.tasks import TaskOwner

__all__ = ["KINDS", "PydanticModel"]

KINDS: dict[str, tuple[str, str, str]] = {
    "openai": ("openai", "build", ""),
    "openai-chat": ("openai", "build_chat", ""),
    "openai-responses": ("openai", "build_responses", ""),
    "azure": ("openai", "build_azure", ""),
    "anthropic": ("anthropic", "build", ""),
    "google": ("google", "build", ""),
    "gemini": ("google", "build", ""),
    "vertex": ("google", "build_vertex", ""),
    "vertexai": ("google", "build_vertex", ""),
    "google-vertex": ("google", "build_vertex", ""),
    "bedrock": ("bedrock", "build", "bedrock"),
    "mistral": ("mistral", "build", "mistral"),
}
"""For each kind: module of `holdfast.providers.sdk`, function, and the extra to install."""

_KEYLESS = frozenset({"vertex", "vertexai", "google-vertex", "bedrock"})
_DEFAULT_URLS = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
    "mistral": "https://api.mistral.ai",
}
_SDK = "holdfast.providers.sdk"
_CONVERSION = f"{_SDK}.conversion"
_GOODBYE_SECONDS = 2.0
_tasks = TaskOwner()


class PydanticModel:
    """A model behind an SDK. `kind` is one of `KINDS`."""

    def __init__(self, info: ModelInfo, access: ModelAccess, selection: Selection, *, kind: str) -> None:
        self._info = info
        self._access = access
        self._selection = selection
        self._kind = kind
        self._context = ErrorContext(info.provider, info.model, access.base_url, access.secrets)
        self._sdk: ModuleType | None = None
        self._model: Any = None
        self._direct: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Send a request and yield the parts of the response. Raises `ProviderError`."""
        watchdog = RequestWatchdog(self._access.first_byte, self._access.between)
        queue: asyncio.Queue[StreamPart | None] = asyncio.Queue()
        await self._prepare()
        task = _tasks.start(self._pump(request, watchdog, queue), name="model", done=lambda _: queue.put_nowait(None))
        watchdog.start(on_stall=task.cancel)
        try:
            while (part := await queue.get()) is not None:
                yield part
            if task.cancelled() or (error := task.exception()) is not None:
                raise convert_exception(
                    self._context, watchdog, None if task.cancelled() else error, now=time.time()
                ) from None
            watchdog.finish()
        finally:
            watchdog.abort()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_GOODBYE_SECONDS)

    async def _prepare(self) -> None:
        """Import the SDK and create its client, once per event loop."""
        loop = asyncio.get_running_loop()
        if self._model is not None and self._loop is loop:
            return
        module, function, extra = self._recipe()
        try:
            self._sdk = await in_thread(f"{_SDK}.{module}")
            conversion = await in_thread(_CONVERSION)
            direct = await in_thread("pydantic_ai.direct")
        except ImportError as error:
            raise self._missing(extra, error) from None
        client = await http_client(self._access.base_url or _DEFAULT_URLS.get(module, "https:"))
        try:
            build = getattr(self._sdk, function)
            # Some SDKs accept extra body fields only once, for all requests.
            body = conversion.body_for(self._access, self._selection)
            access = msgspec.structs.replace(self._access, body=body)
            self._model = await asyncio.to_thread(build, self._info, access, client)
        except ProviderError:
            raise
        except Exception as error:
            # SDKs raise various exceptions for settings they reject.
            raise refused_error(self._context, f"its settings are not valid: {error}") from None
        self._direct, self._loop = direct, loop

    def _recipe(self) -> tuple[str, str, str]:
        recipe = KINDS.get(self._kind)
        if recipe is None:
            raise refused_error(
                self._context, f"there is no type {self._kind!r}", f"There are: {', '.join(sorted(KINDS))}."
            )
        if not self._access.api_key and self._kind not in _KEYLESS and not self._access.headers:
            raise credentials_error(self._context, "there is no key")
        return recipe

    def _missing(self, extra: str, error: ImportError) -> ProviderError:
        if not extra:
            return refused_error(self._context, f"a library is missing: {error}", "Install Holdfast again.")
        return refused_error(
            self._context,
            f"{error.name or 'a library'} is not installed",
            f"Install the extra {extra!r}: {install_command(extra)}.",
        )

    def _supported_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Remove settings that this kind does not support; pydantic-ai would only warn about them."""
        unknown: frozenset[str] = getattr(self._model, "unsupported_settings", frozenset())
        return {name: value for name, value in settings.items() if name not in unknown}

    async def _pump(
        self, request: ModelRequest, watchdog: RequestWatchdog, queue: asyncio.Queue[StreamPart | None]
    ) -> None:
        CURRENT_WATCHDOG.set(watchdog)
        conversion = await in_thread(_CONVERSION)
        assert self._sdk is not None
        affinity = session_headers(request.session_id)
        headers = {"User-Agent": USER_AGENT, **affinity, **self._access.headers}
        wanted_settings = conversion.settings_for(request, self._info, self._access, self._selection, headers)
        stream = conversion.StreamParts()
        async with self._direct.model_request_stream(
            self._model,
            conversion.conversation(request.messages, self._info, self._model.system),
            model_settings=self._supported_settings(self._sdk.refine(wanted_settings, affinity["x-session-id"])),
            model_request_parameters=conversion.parameters(request, self._access),
            instrument=False,
        ) as response:
            async for event in response:
                watchdog.touch()
                for part in stream.feed(event):
                    queue.put_nowait(part)
            last = stream.end(response)
        if last is None:
            raise incomplete_error(self._context)
        for part in last:
            queue.put_nowait(part)
