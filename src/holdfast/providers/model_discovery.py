"""Model discovery: queries servers for their models. Local servers always, others if they are configured.

Results are cached for some minutes, and concurrent queries share one request. A server that is silent, slow or sends
invalid data counts as one without models; a query takes at most `QUERY_TIMEOUT` seconds.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from holdfast.http11.client_connection import connect_error
from holdfast.providers.adapter_config import is_loopback
from holdfast.providers.shared_http_clients import http_client
from holdfast.tasks import TaskOwner

__all__ = [
    "LOCAL_SERVERS",
    "QUERY_TIMEOUT",
    "DiscoveredModel",
    "DiscoveryResult",
    "DiscoveryTarget",
    "Kind",
    "ModelDiscovery",
    "merge_details",
    "ollama_address",
    "parse_lm_studio_models",
    "parse_ollama_models",
    "parse_openai_models",
]

_CONTEXT = (
    "loaded_context_length",
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_context_window",
    "max_input_tokens",
    "n_ctx",
    "n_ctx_train",
)
"""Keys for the context size; the size in effect precedes the possible maximum."""

_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})$", re.MULTILINE)
_NO_CHAT_MODEL = re.compile(
    r"(^|[-_/])(embed|embedding|embeddings|rerank|reranker|whisper|tts|moderation)([-_:.]|$)", re.I
)
QUERY_TIMEOUT = 3.0
_CONNECT_TIMEOUT = 0.5
_MAX_RESPONSE_SIZE = 8 * 1024 * 1024
_MAX_DETAILS = 64
"""Maximum number of models whose details are requested from Ollama."""
_CACHE_SECONDS = 300.0
_EMPTY_CACHE_SECONDS = 20.0


class DiscoveredModel(msgspec.Struct, frozen=True):
    """A model offered by a server. None means that the server did not report the property."""

    id: str
    name: str = ""
    context_window: int = 0
    max_tokens: int = 0
    can_reason: bool | None = None
    images: bool | None = None
    tools: bool | None = None
    is_loaded: bool = False
    """True if the model is in memory and can respond at once."""


def parse_openai_models(answer: Mapping[str, Any]) -> tuple[list[DiscoveredModel], str]:
    """Parse `/models`. Returns the models and the `owned_by` of the first one, which identifies the server software."""
    found: list[DiscoveredModel] = []
    owner = ""
    for item in _objects(answer.get("data")):
        id = _text(item, "id")
        if not id or _NO_CHAT_MODEL.search(id) or item.get("type") in ("embedding", "embeddings", "image", "audio"):
            continue
        meta = item.get("meta")
        window = _context_size(item) or (_context_size(meta) if isinstance(meta, dict) else 0)
        owner = owner or _text(item, "owned_by")
        found.append(
            DiscoveredModel(
                id, _name(item, id), window, _number(item, "max_completion_tokens"), images=_accepts_images(item)
            )
        )
    return _unique(found), owner


def parse_ollama_models(
    tags: Mapping[str, Any], details: Mapping[str, Any], running: Mapping[str, Any]
) -> list[DiscoveredModel]:
    """Parse `/api/tags`, the `/api/show` responses by model, and `/api/ps`. Models without completion are left out.

    The context size is the one in effect: the one set in the model's file, else the one it was loaded with, else the
    one it was trained for.
    """
    loaded = {_text(item, "model") or _text(item, "name"): item for item in _objects(running.get("models"))}
    found: list[DiscoveredModel] = []
    for item in _objects(tags.get("models")):
        id = _text(item, "model") or _text(item, "name")
        detail = details.get(id)
        detail = detail if isinstance(detail, dict) else {}
        can = detail.get("capabilities")
        abilities = {word for word in can if isinstance(word, str)} if isinstance(can, list) else None
        if not id or _NO_CHAT_MODEL.search(id) or (abilities is not None and "completion" not in abilities):
            continue
        window = (
            _configured_context(detail) or _number(loaded.get(id, {}), "context_length") or _trained_context(detail)
        )
        found.append(
            DiscoveredModel(
                id,
                context_window=window,
                can_reason=None if abilities is None else "thinking" in abilities,
                images=None if abilities is None else "vision" in abilities,
                tools=None if abilities is None else "tools" in abilities,
                is_loaded=id in loaded,
            )
        )
    return _unique(found)


def parse_lm_studio_models(answer: Mapping[str, Any]) -> list[DiscoveredModel]:
    """Parse `/api/v0/models`."""
    found: list[DiscoveredModel] = []
    for item in _objects(answer.get("data")):
        id = _text(item, "id")
        kind = _text(item, "type")
        if not id or kind not in ("llm", "vlm", ""):
            continue
        can = item.get("capabilities")
        tools = "tool_use" in can if isinstance(can, list) else None
        is_loaded = item.get("state") == "loaded"
        found.append(DiscoveredModel(id, "", _context_size(item), 0, None, kind == "vlm", tools, is_loaded))
    return _unique(found)


def merge_details(models: Iterable[DiscoveredModel], more: Iterable[DiscoveredModel]) -> list[DiscoveredModel]:
    """Add the details of the second list to the first. Models without details are removed: they cannot
    complete text.
    """
    details = {item.id: item for item in more}
    if not details:
        return list(models)
    result: list[DiscoveredModel] = []
    for model in models:
        detail = details.get(model.id)
        if detail is not None:
            window = model.context_window or detail.context_window
            result.append(msgspec.structs.replace(detail, context_window=window, name=model.name or detail.name))
    return result


def _trained_context(detail: Mapping[str, Any]) -> int:
    info = detail.get("model_info")
    if not isinstance(info, dict):
        return 0
    sizes = [
        _positive_int(value) for key, value in info.items() if isinstance(key, str) and key.endswith(".context_length")
    ]
    return max(sizes, default=0)


def _configured_context(detail: Mapping[str, Any]) -> int:
    found = _NUM_CTX.search(_text(detail, "parameters"))
    return int(found[1]) if found else 0


def _context_size(item: Mapping[str, Any]) -> int:
    return next((size for name in _CONTEXT if (size := _number(item, name))), 0)


def _accepts_images(item: Mapping[str, Any]) -> bool | None:
    architecture = item.get("architecture")
    kinds = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    return "image" in kinds if isinstance(kinds, list) else None


def _name(item: Mapping[str, Any], id: str) -> str:
    name = _text(item, "name")
    return "" if name == id else name


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value[:500] if isinstance(value, str) else ""


def _number(item: Mapping[str, Any], name: str) -> int:
    return _positive_int(item.get(name))


def _positive_int(value: object) -> int:
    is_size = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1_000_000_000
    return value if is_size and isinstance(value, int) else 0


def _unique(found: list[DiscoveredModel]) -> list[DiscoveredModel]:
    return list({model.id: model for model in found}.values())


Kind: TypeAlias = Literal["openai", "ollama", "lmstudio"]


class DiscoveryTarget(msgspec.Struct, frozen=True):
    """Address and credentials of a query. The address and the headers may contain a key, so the repr omits both."""

    base_url: str
    kind: Kind = "openai"
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"DiscoveryTarget({self.kind!r}, …)"


class DiscoveryResult(msgspec.Struct, frozen=True):
    """Result of a query. `has_answered` is false if the server did not respond."""

    models: tuple[DiscoveredModel, ...] = ()
    has_answered: bool = False
    error: str = ""
    """Reason for a missing response, if known."""

    def model(self, id: str) -> DiscoveredModel | None:
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


class ModelDiscovery:
    """Queries servers and caches the results. One instance serves all workspaces of a server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tasks = TaskOwner()
        self._cache: dict[DiscoveryTarget, tuple[float, DiscoveryResult]] = {}
        self._queries: dict[DiscoveryTarget, asyncio.Task[DiscoveryResult]] = {}
        self.version = 0
        """Incremented whenever a result differs from the previous one."""

    def cached(self, target: DiscoveryTarget) -> DiscoveryResult | None:
        """Return the cached result without a query, or None."""
        entry = self._cache.get(target)
        return entry[1] if entry is not None and self._clock() < entry[0] else None

    async def query(self, target: DiscoveryTarget) -> DiscoveryResult:
        """Return the models of a server, from the cache or by a query. Never raises."""
        cached = self.cached(target)
        # Shielded, because other callers may share the query.
        return cached if cached is not None else await asyncio.shield(self._start_query(target))

    def query_in_background(self, target: DiscoveryTarget) -> None:
        """Start a query unless a result is cached, to fill the cache."""
        if self.cached(target) is None:
            self._start_query(target)

    def clear_cache(self) -> None:
        """Forget all results, so that the next query reaches the server."""
        self._cache.clear()

    async def close(self) -> None:
        """Cancel running queries and wait for their end."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    def _start_query(self, target: DiscoveryTarget) -> asyncio.Task[DiscoveryResult]:
        task = self._queries.get(target)
        if task is None or task.done():
            task = self._tasks.start(self._query_server(target), name="query models")
            self._queries[target] = task
        return task

    async def _query_server(self, target: DiscoveryTarget) -> DiscoveryResult:
        result = DiscoveryResult()
        try:
            result = await _query_server(target)
        finally:
            self._queries.pop(target, None)
        before = self._cache.get(target)
        lifetime = _CACHE_SECONDS if result.models else _EMPTY_CACHE_SECONDS
        self._cache[target] = (self._clock() + lifetime, result)
        if before is None or before[1] != result:
            self.version += 1
        return result


async def _query_server(target: DiscoveryTarget) -> DiscoveryResult:
    found: list[DiscoveredModel] = []
    try:
        async with asyncio.timeout(QUERY_TIMEOUT):
            if error := await _connect_error(target.base_url):
                return DiscoveryResult(error=error)
            await _QUERIES[target.kind](target, found)
    except TimeoutError:
        return DiscoveryResult(tuple(found), has_answered=bool(found), error=f"no answer within {QUERY_TIMEOUT:g} s")
    except (_UnexpectedResponse, ValueError) as error:
        return DiscoveryResult(error=str(error))
    return DiscoveryResult(tuple(found), has_answered=True)


class _UnexpectedResponse(Exception):
    """The response is not that of a server of the expected kind."""


async def _connect_error(url: str) -> str:
    """Return why no local server listens at the address, or an empty string. Remote servers may be behind a proxy, so
    only a request shows whether they are reachable.
    """
    if not is_loopback(url):
        return ""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    except TimeoutError:
        return "no connection was made in time"
    except OSError as error:
        return str(connect_error(error))
    except ValueError as error:
        return str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def _fetch(target: DiscoveryTarget, url: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
    """Request a JSON object. Raises `_UnexpectedResponse`."""
    client = await http_client(url)
    import httpx2  # noqa: PLC0415 - http_client has just loaded it in a thread

    headers = {"accept": "application/json", **dict(target.headers)}
    method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
    try:
        async with client.stream(method, url, headers=headers, content=content) as answer:
            if answer.status_code != 200:
                raise _UnexpectedResponse(f"HTTP {answer.status_code}")
            data = bytearray()
            async for piece in answer.aiter_bytes():
                data += piece
                if len(data) > _MAX_RESPONSE_SIZE:
                    raise _UnexpectedResponse
        decoded = msgspec.json.decode(data)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.DecodeError, UnicodeError, OSError) as error:
        raise _UnexpectedResponse(str(error) or type(error).__name__) from error
    if not isinstance(decoded, dict):
        raise _UnexpectedResponse
    return decoded


async def _query_openai(target: DiscoveryTarget, found: list[DiscoveredModel]) -> None:
    """Query `/models`, then the server's own API for models without a context size."""
    answer = await _fetch(target, f"{target.base_url.rstrip('/')}/models")
    models, owner = parse_openai_models(answer)
    found += models
    if all(model.context_window for model in models):
        return
    with contextlib.suppress(_UnexpectedResponse):
        more: list[DiscoveredModel] = []
        if owner in ("library", "ollama"):
            await _query_ollama(target, more)
        elif owner == "organization_owner":
            await _query_lm_studio(target, more)
        # llama.cpp serves one model; its context size is a property of the server.
        elif owner == "llamacpp":
            window = _server_context(await _fetch(target, f"{_root(target)}/props"))
            more = [DiscoveredModel(id=model.id, context_window=window) for model in models]
        found[:] = merge_details(models, more)


async def _query_ollama(target: DiscoveryTarget, found: list[DiscoveredModel]) -> None:
    root = _root(target)
    tags = await _fetch(target, f"{root}/api/tags")
    found += parse_ollama_models(tags, {}, {})
    running: dict[str, Any] = {}
    with contextlib.suppress(_UnexpectedResponse):
        running = await _fetch(target, f"{root}/api/ps")
    details: dict[str, Any] = {}

    async def show(name: str) -> None:
        with contextlib.suppress(_UnexpectedResponse):
            details[name] = await _fetch(target, f"{root}/api/show", {"model": name})

    try:
        # Four at a time, because Ollama reads the model's file for each request.
        names = [model.id for model in found][:_MAX_DETAILS]
        for start in range(0, len(names), 4):
            async with asyncio.TaskGroup() as group:
                for name in names[start : start + 4]:
                    group.create_task(show(name))
    finally:
        found[:] = parse_ollama_models(tags, details, running)


async def _query_lm_studio(target: DiscoveryTarget, found: list[DiscoveredModel]) -> None:
    try:
        answer = await _fetch(target, f"{_root(target)}/api/v0/models")
    except _UnexpectedResponse:
        found += parse_openai_models(await _fetch(target, f"{target.base_url.rstrip('/')}/models"))[0]
    else:
        found += parse_lm_studio_models(answer)


def _root(target: DiscoveryTarget) -> str:
    return target.base_url.rstrip("/").removesuffix("/v1")


def _server_context(properties: dict[str, Any]) -> int:
    settings = properties.get("default_generation_settings")
    window = settings.get("n_ctx") if isinstance(settings, dict) else 0
    return window if isinstance(window, int) else 0


_QUERIES = {"openai": _query_openai, "ollama": _query_ollama, "lmstudio": _query_lm_studio}
