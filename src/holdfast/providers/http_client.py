"""HTTP clients shared by all providers of one event loop, created on first use.

Models are rebuilt whenever settings change; connections outlive them.
"""

import asyncio
import gc
import importlib
import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from holdfast import __version__
from holdfast.http11.client_connection import RequestWatchdog

if TYPE_CHECKING:
    import httpx2

__all__ = ["CURRENT_WATCHDOG", "USER_AGENT", "close_connections", "http_client", "in_thread", "post_form"]

_FORM_SECONDS = 30.0
USER_AGENT = f"Holdfast/{__version__}"

CURRENT_WATCHDOG: ContextVar[RequestWatchdog | None] = ContextVar("holdfast_watchdog", default=None)
"""Watchdog of the request made by the current task; reaches our transport through SDKs without a parameter for it."""

_direct: "WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]" = WeakKeyDictionary()
_proxied: "WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]" = WeakKeyDictionary()


async def in_thread(module: str) -> ModuleType:
    """Import a slow module in a thread without blocking the event loop. Raises `ImportError`."""
    if (loaded := sys.modules.get(module)) is not None and not _is_loading(loaded):
        return loaded
    return await asyncio.to_thread(_load, module)


def _load(module: str) -> ModuleType:
    """Import with garbage collection disabled, then freeze the new objects.

    An SDK creates about a hundred thousand permanent objects. Scanning them, now or during a response, would block
    the whole server noticeably.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


async def http_client(url: str) -> "httpx2.AsyncClient":
    """Return the shared client for a URL: own connections, or those of httpx2 if a proxy applies to the URL."""
    loop = asyncio.get_running_loop()
    clients = _proxied if await _needs_proxy(url) else _direct
    transport = await in_thread("holdfast.providers.httpx_transport")
    if not transport.has_certificates() and (url.startswith("https:") or clients is _proxied):
        await asyncio.to_thread(transport.certificates)
    if loop not in clients:
        clients[loop] = transport.make_client(is_direct=clients is _direct)
    return clients[loop]


async def post_form(url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
    """Post a form and return the decoded JSON response of any status, because error responses carry the reason. A
    response that is not JSON becomes an empty mapping.
    """
    client = await http_client(url)
    response = await client.post(url, data=dict(form), headers={"accept": "application/json"}, timeout=_FORM_SECONDS)
    try:
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


async def close_connections() -> None:
    """Close all connections of this event loop, including those in use. Later requests open new ones."""
    loop = asyncio.get_running_loop()
    for clients in (_direct, _proxied):
        client = clients.pop(loop, None)
        if client is not None:
            await client.aclose()


async def _needs_proxy(url: str) -> bool:
    """Return whether a proxy applies to a URL. On other systems than Linux the system settings count too."""
    if sys.platform.startswith("linux") and not any(name.lower().endswith("_proxy") for name in os.environ):
        return False
    parts = urlsplit(url)
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        # Local servers are never behind a proxy, regardless of the environment variables.
        return False
    request = await in_thread("urllib.request")
    proxies = request.getproxies()
    has_proxy = parts.scheme in proxies or "all" in proxies
    return has_proxy and not request.proxy_bypass(parts.hostname or "")


def _is_loading(module: ModuleType) -> bool:
    """Return whether another thread is still importing the module."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
