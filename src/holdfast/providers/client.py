"""The HTTP client that all providers of one event loop share, made when somebody first needs it.

Models are made anew as often as their settings are read; connections outlive them.
"""

import asyncio
import gc
import importlib
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from holdfast import __version__

if TYPE_CHECKING:
    import httpx2

__all__ = ["USER_AGENT", "close_connections", "http_client", "in_thread", "post_form"]

_FORM_SECONDS = 30.0
USER_AGENT = f"Holdfast/{__version__}"

_direct: "WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]" = WeakKeyDictionary()
_proxied: "WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient]" = WeakKeyDictionary()


async def in_thread(module: str) -> ModuleType:
    """Import a module that takes long, while everything else goes on. Raises `ImportError`."""
    if (loaded := sys.modules.get(module)) is not None and not _is_loading(loaded):
        return loaded
    return await asyncio.to_thread(_load, module)


def _load(module: str) -> ModuleType:
    """Its hundred thousand objects stay for ever. Looking through them for garbage, now or in the middle of some
    answer, would stop the whole server for as long as a person notices.
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
    """The client for this address: with our own connections, or httpx2's where a proxy is set for it."""
    loop = asyncio.get_running_loop()
    kept = _proxied if await _needs_proxy(url) else _direct
    transport = await in_thread("holdfast.providers.transport")
    if not transport.has_certificates() and (url.startswith("https:") or kept is _proxied):
        await asyncio.to_thread(transport.certificates)
    if loop not in kept:
        kept[loop] = transport.make_client(is_direct=kept is _direct)
    return kept[loop]


async def post_form(url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
    """Send a form and give the decoded answer, whatever its status: a refusal says why in its body."""
    client = await http_client(url)
    answer = await client.post(url, data=dict(form), headers={"accept": "application/json"}, timeout=_FORM_SECONDS)
    try:
        return msgspec.json.decode(answer.content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


async def close_connections() -> None:
    """Close what this loop has open, in use or not. Whoever asks again gets new connections."""
    loop = asyncio.get_running_loop()
    for kept in (_direct, _proxied):
        client = kept.pop(loop, None)
        if client is not None:
            await client.aclose()


async def _needs_proxy(url: str) -> bool:
    """Whether this address is reached through another. Elsewhere than on Linux the system is asked too."""
    if sys.platform.startswith("linux") and not any(name.lower().endswith("_proxy") for name in os.environ):
        return False
    parts = urlsplit(url)
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        # A server of this machine is not on the other side of a proxy, whatever the variables say.
        return False
    request = await in_thread("urllib.request")
    proxies = request.getproxies()
    has_proxy = parts.scheme in proxies or "all" in proxies
    return has_proxy and not request.proxy_bypass(parts.hostname or "")


def _is_loading(module: ModuleType) -> bool:
    """Whether another thread is still at it."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
