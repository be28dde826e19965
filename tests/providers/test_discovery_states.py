"""Discovery with the network replaced: requests, order, limits, and cache lifetimes. In virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.providers import model_discovery as module
from holdfast.providers.model_discovery import DiscoveredModel, DiscoveryResult, DiscoveryTarget, Kind, ModelDiscovery
from holdfast.testing.seeded_loop import elapse, in_virtual_time

REMOTE = "http://models.example:80/v1"
LOCAL = "http://127.0.0.1:9/v1"
ONE = {"data": [{"id": "m", "n_ctx": 5}]}
FOUND = DiscoveryResult((DiscoveredModel("m", context_window=5),), has_answered=True)


class FakeNetwork:
    """Answers by path. A number is a status, a negative number a delay without a response, an error is raised."""

    def __init__(self, **answers: Any) -> None:  # noqa: ANN401
        self.answers = {name.replace("_", "/"): answer for name, answer in answers.items()}
        self.requests: list[str] = []
        self.bodies: list[Any] = []
        self.at_once = 0
        self.most_at_once = 0

    async def fetch(self, target: DiscoveryTarget, url: str, body: object = None) -> Any:  # noqa: ANN401
        assert target.base_url.startswith(url[:20])
        path = url.removeprefix("http://models.example:80").removeprefix("http://127.0.0.1:9")
        self.requests.append(path)
        self.bodies.append(body)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await elapse(0.01)
            answer = self.answers.get(path.strip("/"), 404)
            answer = answer(body) if callable(answer) else answer
            if isinstance(answer, int) and answer < 0:
                await elapse(-answer)
            if isinstance(answer, int):
                raise module._UnexpectedResponse(f"HTTP {answer}")
            return answer
        finally:
            self.at_once -= 1


def discover(
    patch: pytest.MonkeyPatch, network: FakeNetwork, kind: Kind = "openai", url: str = REMOTE
) -> DiscoveryResult:
    patch.setattr(module, "_fetch", network.fetch)

    async def main() -> DiscoveryResult:
        discovery = ModelDiscovery(asyncio.get_running_loop().time)
        try:
            return await discovery.query(DiscoveryTarget(url, kind))
        finally:
            await discovery.close()

    return in_virtual_time(main)


LLAMA = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
TAGS = {"models": [{"model": "m"}]}
SHOWN = {"capabilities": ["completion"], "model_info": {"q.context_length": 7}}


@pytest.mark.parametrize(
    ("answers", "requests", "models"),
    [
        ({"v1_models": ONE}, ["/v1/models"], [("m", 5)]),
        # All sizes are known: nothing else is requested, whichever program it is.
        ({"v1_models": {"data": [{"id": "m", "n_ctx": 5, "owned_by": "llamacpp"}]}}, ["/v1/models"], [("m", 5)]),
        ({"v1_models": LLAMA}, ["/v1/models", "/props"], [("m", 0)]),
        ({"v1_models": LLAMA, "props": {}}, ["/v1/models", "/props"], [("m", 0)]),
        ({"v1_models": LLAMA, "props": {"default_generation_settings": {"n_ctx": "9"}}}, None, [("m", 0)]),
        ({"v1_models": LLAMA, "props": {"default_generation_settings": {"n_ctx": 9}}}, None, [("m", 9)]),
        ({"v1_models": {"data": [{"id": "m", "owned_by": "other"}]}}, ["/v1/models"], [("m", 0)]),
        (
            {"v1_models": {"data": [{"id": "m", "owned_by": "ollama"}]}, "api_tags": TAGS, "api_show": SHOWN},
            ["/v1/models", "/api/tags", "/api/ps", "/api/show"],
            [("m", 7)],
        ),
        (
            {
                "v1_models": {"data": [{"id": "m", "owned_by": "organization_owner"}]},
                "api_v0_models": {"data": [{"id": "m", "max_context_length": 8}]},
            },
            ["/v1/models", "/api/v0/models"],
            [("m", 8)],
        ),
    ],
)
def test_requests_depend_on_the_program_that_answered(
    answers: dict[str, Any], requests: list[str] | None, models: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = FakeNetwork(**answers)
    finding = discover(monkeypatch, network)
    assert [(found.id, found.context_window) for found in finding.models] == models
    assert (finding.has_answered, finding.error) == (True, "")
    assert requests is None or network.requests == requests


@pytest.mark.parametrize(
    ("kind", "answers", "expected"),
    [
        ("openai", {"v1_models": -60}, DiscoveryResult(error="no answer within 3 s")),
        ("openai", {"v1_models": 403}, DiscoveryResult(error="HTTP 403")),
        ("ollama", {"api_tags": 500}, DiscoveryResult(error="HTTP 500")),
        ("lmstudio", {"v1_models": 502}, DiscoveryResult(error="HTTP 502")),
        # The list arrived, the details did not: the list is used.
        (
            "ollama",
            {"api_tags": TAGS, "api_show": -60},
            DiscoveryResult((DiscoveredModel("m"),), has_answered=True, error="no answer within 3 s"),
        ),
        (
            "openai",
            {"v1_models": LLAMA, "props": -60},
            DiscoveryResult((DiscoveredModel("m"),), has_answered=True, error="no answer within 3 s"),
        ),
    ],
)
def test_failing_or_unresponsive_server(
    kind: Kind, answers: dict[str, Any], expected: DiscoveryResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert discover(monkeypatch, FakeNetwork(**answers), kind) == expected


def test_ollama_is_requested_for_few_details_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"m{number}" for number in range(70)]

    def show(body: dict[str, str]) -> Any:  # noqa: ANN401
        return 500 if body["model"] == "m1" else SHOWN

    network = FakeNetwork(
        api_tags={"models": [{"model": name} for name in names]}, api_show=show, api_ps={"models": []}
    )
    finding = discover(monkeypatch, network, "ollama")
    assert [body["model"] for body in network.bodies if body] == names[:64]
    assert network.most_at_once == 4
    assert [found.context_window for found in finding.models] == [7, 0, *[7] * 62, *[0] * 6]


class _Answer:
    """An HTTP response: a status and pieces of a body."""

    def __init__(self, status: int, pieces: list[bytes]) -> None:
        self.status_code = status
        self._pieces = pieces

    async def __aenter__(self) -> "_Answer":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    async def aiter_bytes(self) -> Any:  # noqa: ANN401
        for piece in self._pieces:
            yield piece


class _Client:
    def __init__(self, answer: Exception | _Answer) -> None:
        self._answer = answer
        self.sent: list[tuple[Any, ...]] = []

    def stream(self, *given: str, headers: dict[str, str], content: bytes | None) -> _Answer:
        self.sent.append((*given, headers, content))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def fetch_with(
    patch: pytest.MonkeyPatch, answer: Exception | _Answer, body: object = None
) -> tuple[Any, tuple[Any, ...]]:
    client = _Client(answer)

    async def http_client(_url: str) -> _Client:
        return client

    patch.setattr(module, "http_client", http_client)
    target = DiscoveryTarget(REMOTE, headers=(("authorization", "Bearer k"),))
    try:
        result = in_virtual_time(lambda: module._fetch(target, REMOTE, body))
    except module._UnexpectedResponse as error:
        return str(error), client.sent[0]
    return result, client.sent[0]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (_Answer(200, [b'{"a"', b":1}"]), {"a": 1}),
        (_Answer(200, [b"{}", b" " * 6]), {}),
        (_Answer(200, [b"{}", b" " * 7]), ""),
        (_Answer(201, [b"{}"]), "HTTP 201"),
        (_Answer(204, []), "HTTP 204"),
        (_Answer(200, [b"[1]"]), ""),
        (_Answer(200, [b"{"]), "Input data was truncated"),
        (httpx2.ConnectError("no route"), "no route"),
        (httpx2.InvalidURL("bad"), "bad"),
        (OSError(), "OSError"),
        (UnicodeError("label too long"), "label too long"),
        (msgspec.DecodeError("odd"), "odd"),
    ],
)
def test_response_of_one_request(
    answer: Exception | _Answer, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_RESPONSE_SIZE", 8)
    result, sent = fetch_with(monkeypatch, answer)
    assert result == expected
    assert sent == ("GET", REMOTE, {"accept": "application/json", "authorization": "Bearer k"}, None)


def test_a_request_with_a_body_is_a_post(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sent = fetch_with(monkeypatch, _Answer(200, [b"{}"]), {"model": "m"})
    assert (sent[0], sent[-1]) == ("POST", b'{"model":"m"}')


async def _hang(*_: object) -> Any:  # noqa: ANN401
    await elapse(60)


def _raising(error: Exception) -> Callable[..., Any]:
    async def connect(*_: object) -> Any:  # noqa: ANN401
        raise error

    return connect


@pytest.mark.parametrize(
    ("connect", "error"),
    [
        (_hang, "no connection was made in time"),
        (_raising(ConnectionRefusedError(111, "refused")), "the connection was refused"),
        (_raising(ValueError("odd port")), "odd port"),
    ],
)
def test_local_server_is_connected_first(
    connect: Callable[..., Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a connection no request is made; for remote servers the request decides."""
    monkeypatch.setattr(asyncio, "open_connection", connect)
    network = FakeNetwork(v1_models=ONE)
    finding = discover(monkeypatch, network, url=LOCAL)
    assert (finding.models, finding.has_answered) == ((), False)
    assert finding.error == error
    assert network.requests == []
    assert discover(monkeypatch, network).has_answered


def test_cache_lifetime_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    discovery = ModelDiscovery(lambda: now[0])
    target, answers = DiscoveryTarget(REMOTE), [FOUND, DiscoveryResult(error="no"), DiscoveryResult(error="no"), FOUND]

    async def query(_place: DiscoveryTarget) -> DiscoveryResult:
        return answers.pop(0)

    monkeypatch.setattr(module, "_query_server", query)

    async def main() -> None:
        for lasts, version in ((300.0, 1), (20.0, 2), (20.0, 2), (300.0, 3)):
            finding = await discovery.query(target)
            assert discovery.version == version
            now[0] += lasts - 0.001
            assert discovery.cached(target) is finding
            now[0] += 0.001
            assert discovery.cached(target) is None

    in_virtual_time(main)


def test_one_query_is_pending_per_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even after its result has expired; none is left after a close."""
    places: list[DiscoveryTarget] = []

    async def query(target: DiscoveryTarget) -> DiscoveryResult:
        places.append(target)
        await elapse(1)
        return FOUND

    async def main() -> None:
        monkeypatch.setattr(module, "_query_server", query)
        discovery = ModelDiscovery(asyncio.get_running_loop().time)
        one, other = DiscoveryTarget(REMOTE), DiscoveryTarget(REMOTE, headers=(("a", "b"),))
        discovery.query_in_background(one)
        discovery.query_in_background(one)
        assert tuple(await asyncio.gather(discovery.query(one), discovery.query(other))) == (FOUND, FOUND)
        assert places == [one, other]
        discovery.query_in_background(one)
        await elapse(2)
        assert len(places) == 2, "a known answer is not requested in the background"
        discovery.clear_cache()
        assert await discovery.query(one) == FOUND
        assert len(places) == 3
        discovery.clear_cache()
        discovery.query_in_background(one)
        await elapse(0.5)
        await discovery.close()
        assert (discovery.cached(one), len(discovery._queries)) == (None, 0), "a closed one stores nothing"

    in_virtual_time(main)


def test_fields_that_are_not_given() -> None:
    assert DiscoveryResult() == DiscoveryResult((), has_answered=False, error="")
    assert DiscoveryTarget(REMOTE) == DiscoveryTarget(REMOTE, "openai", ())
    assert "models" not in repr(DiscoveryTarget(REMOTE, headers=(("authorization", "k"),)))
