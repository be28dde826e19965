"""HTTP clients shared by all providers of one event loop, created on first use.

Models are rebuilt whenever settings change; connections outlive them.
"""

import asyncio
import gc
import importlib
import os
import re
import ssl
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from holdfast import __version__
from holdfast.http11.client_connection import ConnectionPool, Origin, RequestWatchdog

if TYPE_CHECKING:
    import httpx2

__all__ = [
    "CURRENT_WATCHDOG",
    "USER_AGENT",
    "DirectRoute",
    "close_connections",
    "direct_route",
    "http_client",
    "in_thread",
    "post_form",
]

_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~:/-]*)?(\?[A-Za-z0-9._~:/&=-]*)?")

_FORM_SECONDS = 30.0
USER_AGENT = f"Holdfast/{__version__}"

CURRENT_WATCHDOG: ContextVar[RequestWatchdog | None] = ContextVar("holdfast_watchdog", default=None)
"""Watchdog of the request made by the current task; reaches our transport through SDKs without a parameter for it."""

_pools: "WeakKeyDictionary[asyncio.AbstractEventLoop, ConnectionPool]" = WeakKeyDictionary()
"""Connections without a proxy, with and without httpx2."""
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
    if url.startswith("https:") or clients is _proxied:
        await _certificates()
    if loop not in clients:
        clients[loop] = transport.make_client(_pool(loop), is_direct=clients is _direct)
    return clients[loop]


class DirectRoute(NamedTuple):
    """The way of a request to a server without httpx2: its connections, and the parts of its URL."""

    connections: ConnectionPool
    origin: Origin
    target: str
    authority: str
    tls: ssl.SSLContext | None


async def direct_route(url: str) -> DirectRoute | None:
    """Return the route for a URL, or None if httpx2 is needed: for a proxy, a password in the URL, or characters that
    have to be encoded.

    Importing httpx2 takes longer than the rest of the first turn, and each of its requests costs about 0.3 ms.
    """
    if _PLAIN_URL.fullmatch(url) is None or await _needs_proxy(url):
        return None
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    try:
        port = parts.port or (443 if is_secure else 80)
    except ValueError:
        return None
    tls = await _certificates() if is_secure else None
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    pool = _pool(asyncio.get_running_loop())
    return DirectRoute(pool, Origin(parts.hostname or "", port, is_secure), target, parts.netloc.lower(), tls)


async def _certificates() -> ssl.SSLContext:
    transport = await in_thread("holdfast.providers.httpx_transport")
    if not transport.has_certificates():
        await asyncio.to_thread(transport.certificates)
    return cast("ssl.SSLContext", transport.certificates())


def _pool(loop: asyncio.AbstractEventLoop) -> ConnectionPool:
    if loop not in _pools:
        _pools[loop] = ConnectionPool()
    return _pools[loop]


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
    if (pool := _pools.pop(loop, None)) is not None:
        pool.close()


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
