"""Model discovery: queries the server for its models. Local servers always, others if they are configured.

Results are cached for some minutes, and concurrent queries share one request. A server that is silent, slow or sends
invalid data counts as one without models; a query takes at most `LIMIT` seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from holdfast.providers.access import is_loopback
from holdfast.providers.client import http_client
from holdfast.providers.connections import not_reached
from holdfast.providers.findings import Found, of_lm_studio, of_ollama, of_openai, with_context
from holdfast.tasks import TaskOwner

__all__ = [
    "LIMIT",
    "LOCAL_SERVERS",
    "Discovery",
    "Finding",
    "Kind",
    "Place",
    "ollama_address",
]

LIMIT = 3.0
_CONNECT = 0.5
_LARGEST = 8 * 1024 * 1024
_MOST_SHOWN = 64
"""Maximum number of models whose details are requested from Ollama."""
_KEPT = 300.0
_KEPT_NOTHING = 20.0

Kind: TypeAlias = Literal["openai", "ollama", "lmstudio"]


class Place(msgspec.Struct, frozen=True):
    """Address and credentials of a query. The address and the headers may contain a key, so the repr omits both."""

    base_url: str
    kind: Kind = "openai"
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Place({self.kind!r}, …)"


class Finding(msgspec.Struct, frozen=True):
    """Result of a query. `has_answered` is false if the server did not respond."""

    models: tuple[Found, ...] = ()
    has_answered: bool = False
    error: str = ""
    """Reason for a missing response, if known."""

    def model(self, id: str) -> Found | None:
        """Return the model with this id, or None."""
        return next((found for found in self.models if found.id == id), None)


LOCAL_SERVERS: tuple[tuple[str, str, Kind, str], ...] = (
    ("ollama", "Ollama", "ollama", "http://127.0.0.1:11434/v1"),
    ("lmstudio", "LM Studio", "lmstudio", "http://127.0.0.1:1234/v1"),
)
"""Servers that may run on this machine: id, name, kind of API, address."""


def ollama_address(environment: Mapping[str, str]) -> str:
    """Return the address of Ollama: `OLLAMA_HOST`, interpreted as Ollama does, or the default."""
    given = environment.get("OLLAMA_HOST", "").strip()
    if not given:
        return LOCAL_SERVERS[0][3]
    scheme, separator, rest = given.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError:
        return LOCAL_SERVERS[0][3]
    port = port or {"http": 80, "https": 443}.get(scheme if separator else "", 11434)
    # A wildcard address is for listening; connect to the loopback address instead.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme or 'http'}://{host}:{port}{parts.path.rstrip('/')}/v1"


class Discovery:
    """Queries servers and caches the results. One instance serves all workspaces of a server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tasks = TaskOwner()
        self._known: dict[Place, tuple[float, Finding]] = {}
        self._asking: dict[Place, asyncio.Task[Finding]] = {}
        self.version = 0
        """Incremented whenever a result differs from the previous one."""

    def known(self, place: Place) -> Finding | None:
        """Return the cached result without a query, or None."""
        held = self._known.get(place)
        return held[1] if held is not None and self._clock() < held[0] else None

    async def ask(self, place: Place) -> Finding:
        """Return the models of a server, from the cache or by a query. Never raises."""
        known = self.known(place)
        # Shielded, because other callers may share the query.
        return known if known is not None else await asyncio.shield(self._ask(place))

    def ask_in_background(self, place: Place) -> None:
        """Start a query unless a result is cached, to fill the cache."""
        if self.known(place) is None:
            self._ask(place)

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()

    async def close(self) -> None:
        """Cancel running queries and wait for their end."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    def _ask(self, place: Place) -> asyncio.Task[Finding]:
        task = self._asking.get(place)
        if task is None or task.done():
            task = self._tasks.start(self._look(place), name="ask for models")
            self._asking[place] = task
        return task

    async def _look(self, place: Place) -> Finding:
        finding = Finding()
        try:
            finding = await _look(place)
        finally:
            self._asking.pop(place, None)
        before = self._known.get(place)
        lasts = _KEPT if finding.models else _KEPT_NOTHING
        self._known[place] = (self._clock() + lasts, finding)
        if before is None or before[1] != finding:
            self.version += 1
        return finding


async def _look(place: Place) -> Finding:
    found: list[Found] = []
    try:
        async with asyncio.timeout(LIMIT):
            if error := await _connect_error(place.base_url):
                return Finding(error=error)
            await _LOOKS[place.kind](place, found)
    except TimeoutError:
        return Finding(tuple(found), has_answered=bool(found), error=f"no answer within {LIMIT:g} s")
    except (_Nonsense, ValueError) as error:
        return Finding(error=str(error))
    return Finding(tuple(found), has_answered=True)


class _Nonsense(Exception):
    """It is no server of the kind we look for."""


async def _connect_error(url: str) -> str:
    """Return why no local server listens at the address, or an empty string. Remote servers may be behind a proxy, so
    only a request shows whether they are reachable.
    """
    if not is_loopback(url):
        return ""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_CONNECT):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    except TimeoutError:
        return "no connection was made in time"
    except OSError as error:
        return str(not_reached(error))
    except ValueError as error:
        return str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def _fetch(place: Place, url: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
    """Request a JSON object. Raises `_Nonsense`."""
    import httpx2  # noqa: PLC0415 - http_client has loaded it in a thread

    client = await http_client(url)
    headers = {"accept": "application/json", **dict(place.headers)}
    method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
    try:
        async with client.stream(method, url, headers=headers, content=content) as answer:
            if answer.status_code != 200:
                raise _Nonsense(f"HTTP {answer.status_code}")
            data = bytearray()
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > _LARGEST:
                    raise _Nonsense
        decoded = msgspec.json.decode(data)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.DecodeError, UnicodeError, OSError) as error:
        raise _Nonsense(str(error) or type(error).__name__) from error
    if not isinstance(decoded, dict):
        raise _Nonsense
    return decoded


async def _look_openai(place: Place, found: list[Found]) -> None:
    """Query `/models`, then the server's own API for models without a context size."""
    answer = await _fetch(place, f"{place.base_url.rstrip('/')}/models")
    models, maker = of_openai(answer)
    found += models
    if all(model.context_window for model in models):
        return
    with contextlib.suppress(_Nonsense):
        more: list[Found] = []
        if maker in ("library", "ollama"):
            await _look_ollama(place, more)
        elif maker == "organization_owner":
            await _look_lm_studio(place, more)
        # llama.cpp serves one model; its context size is a property of the server.
        elif maker == "llamacpp":
            window = _window_of(await _fetch(place, f"{_root(place)}/props"))
            more = [Found(id=model.id, context_window=window) for model in models]
        found[:] = with_context(models, more)


async def _look_ollama(place: Place, found: list[Found]) -> None:
    root = _root(place)
    tags = await _fetch(place, f"{root}/api/tags")
    found += of_ollama(tags, {}, {})
    running: dict[str, Any] = {}
    with contextlib.suppress(_Nonsense):
        running = await _fetch(place, f"{root}/api/ps")
    shown: dict[str, Any] = {}

    async def show(name: str) -> None:
        with contextlib.suppress(_Nonsense):
            shown[name] = await _fetch(place, f"{root}/api/show", {"model": name})

    try:
        # Four at a time, because Ollama reads the model's file for each request.
        names = [model.id for model in found][:_MOST_SHOWN]
        for start in range(0, len(names), 4):
            async with asyncio.TaskGroup() as group:
                for name in names[start : start + 4]:
                    group.create_task(show(name))
    finally:
        found[:] = of_ollama(tags, shown, running)


async def _look_lm_studio(place: Place, found: list[Found]) -> None:
    try:
        answer = await _fetch(place, f"{_root(place)}/api/v0/models")
    except _Nonsense:
        found += of_openai(await _fetch(place, f"{place.base_url.rstrip('/')}/models"))[0]
    else:
        found += of_lm_studio(answer)


def _root(place: Place) -> str:
    return place.base_url.rstrip("/").removesuffix("/v1")


def _window_of(properties: dict[str, Any]) -> int:
    settings = properties.get("default_generation_settings")
    window = settings.get("n_ctx") if isinstance(settings, dict) else 0
    return window if isinstance(window, int) else 0


_LOOKS = {"openai": _look_openai, "ollama": _look_ollama, "lmstudio": _look_lm_studio}
