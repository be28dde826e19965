"""Construction of SDK clients: every field of `ModelAccess` is passed, or omitted on purpose."""

import importlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec
import pytest
from botocore.exceptions import ProfileNotFound  # type: ignore[import-untyped]

from holdfast.domain.model_requests import ModelInfo
from holdfast.http11.client_connection import RequestWatchdog
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.pydantic_ai import KINDS
from holdfast.providers.sdk import bedrock
from holdfast.providers.shared_http_clients import CURRENT_WATCHDOG
from providers.adapters import LIBRARIES

pytestmark = LIBRARIES

Facts = dict[str, Any]

KEY = "key-123456"
AWS = {"region": "eu-north-1", "access_key_id": "AK", "secret_access_key": "SK", "session_token": "ST"}
GOOGLE = {"project": "P", "location": "europe-west1", "api_version": "v9"}
HEADERS = {"x-mine": "1"}
BODY = {"mine": 1}
ADDRESS = "https://example.test"
ELSEWHERE = {
    "options": "with each request",
    "system_prefix": "in the prompt",
    "between": "by the watch on the answer",
}
"""Fields that are passed to no library, and where they take effect."""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries read missing values from the environment."""
    for name in tuple(os.environ):
        if name.startswith(("GOOGLE_", "GEMINI_", "OPENAI_", "AZURE_", "ANTHROPIC_", "MISTRAL_", "AWS_")):
            monkeypatch.delenv(name)


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient() as made:
        yield made


def _google(model: Any, client: object) -> Facts:  # noqa: ANN401 - a library's
    made = model.client._api_client
    options = made._http_options
    return {
        "vertex": made.vertexai,
        "key": made.api_key,
        "project": made.project,
        "location": made.location,
        "address": options.base_url,
        "version": options.api_version,
        "body": options.extra_body,
        "tries": options.retry_options.attempts,
        "is ours": options.httpx_async_client is client,
    }


def _openai(model: Any, client: object) -> Facts:  # noqa: ANN401
    made = model.client
    return {
        "model": type(model).__name__,
        "key": made.api_key,
        "address": str(made.base_url),
        "version": made._custom_query.get("api-version"),
        "tries": made.max_retries + 1,
        "is ours": made._client is client,
    }


def _anthropic(model: Any, client: object) -> Facts:  # noqa: ANN401
    made = model.client
    return {
        "key": made.api_key,
        "token": made.auth_token,
        "address": str(made.base_url),
        "headers": dict(made._custom_headers),
        "tries": made.max_retries + 1,
        "is ours": made._client is client,
    }


def _mistral(model: Any, client: object) -> Facts:  # noqa: ANN401
    made = model.client.sdk_configuration
    request = made.async_client.build_request("POST", ADDRESS, content=b'{"theirs": 2}')
    return {
        "key": made.security.api_key,
        "address": made.server_url,
        "body": msgspec.json.decode(request.content),
        "headers": {name: value for name, value in made.async_client._headers.items() if name != "user-agent"},
        "is ours": made.async_client._client is client,
    }


def _bedrock(model: Any, client: object) -> Facts:  # noqa: ANN401
    made, signer = model.client, model.client._request_signer
    held = signer._credentials.get_frozen_credentials() if signer._credentials else None
    return {
        "key": signer._auth_token.token if signer._auth_token else None,
        "signed": made.meta.config.signature_version,
        "credentials": held and (held.access_key, held.secret_key, held.token),
        "region": made.meta.region_name,
        "address": made.meta.endpoint_url,
        "patience": made.meta.config.read_timeout,
        "tries": made.meta.config.retries["total_max_attempts"],
    }


FULL = ModelAccess(f"{ADDRESS}/v1", KEY, HEADERS, BODY, first_byte=40.0)
_G: Facts = {"address": ADDRESS, "version": "v9", "body": BODY, "tries": 1, "is ours": True}
_G_KEY: Facts = {"key": KEY, "project": None, "location": None, **_G}
_O: Facts = {"key": KEY, "address": f"{ADDRESS}/v1/", "version": None, "tries": 1, "is ours": True}
_CHAT, _RESPONSES = {"model": "OpenAIChatModel"}, {"model": "OpenAIResponsesModel"}
_OPENAI = "https://api.openai.com/v1/"
_A: Facts = {"key": KEY, "token": None, "address": ADDRESS, "headers": HEADERS, "tries": 1, "is ours": True}
_M: Facts = {"key": KEY, "address": ADDRESS, "body": {"theirs": 2} | BODY, "headers": HEADERS, "is ours": True}
_B: Facts = {"region": "eu-north-1", "address": f"{ADDRESS}/v1", "patience": 100.0, "tries": 1}
_B_KEY: Facts = {"key": KEY, "signed": "bearer", "credentials": None, **_B}

Reader = Callable[[Any, object], Facts]

# The kind, the difference from a full access, how its client is inspected, and its arguments.
CASES: list[tuple[str, Facts, Reader, Facts]] = [
    ("gemini", {"extras": GOOGLE}, _google, {"vertex": False, **_G_KEY}),
    ("gemini", {"extras": GOOGLE, "base_url": f"{ADDRESS}/v1beta/"}, _google, {"vertex": False, **_G_KEY}),
    ("gemini", {"extras": GOOGLE, "body": {}}, _google, {"vertex": False, **_G_KEY, "body": None}),
    ("vertexai", {"extras": GOOGLE}, _google, {"vertex": True, **_G_KEY}),
    (
        "vertexai",
        {"extras": GOOGLE, "api_key": ""},
        _google,
        {"vertex": True, "key": None, "project": "P", "location": "europe-west1", **_G},
    ),
    ("openai", {}, _openai, _CHAT | _O),
    ("openai", {"base_url": ""}, _openai, _RESPONSES | _O | {"address": _OPENAI}),
    ("openai", {"base_url": "https://eu.api.openai.com/v1"}, _openai,
     _RESPONSES | _O | {"address": "https://eu.api.openai.com/v1/"}),
    ("openai-chat", {}, _openai, _CHAT | _O),
    ("openai-chat", {"base_url": "", "api_key": ""}, _openai, _CHAT | _O | {"address": _OPENAI, "key": "none"}),
    ("openai-responses", {}, _openai, _RESPONSES | _O),
    ("azure", {"base_url": f"{ADDRESS}/openai/v1"}, _openai, _CHAT | _O | {"address": f"{ADDRESS}/openai/v1/"}),
    (
        "azure",
        {"base_url": ADDRESS, "extras": {"api_version": "v9"}},
        _openai,
        _CHAT | _O | {"address": f"{ADDRESS}/openai/", "version": "v9"},
    ),
    ("anthropic", {}, _anthropic, _A),
    ("anthropic", {"api_key": "Bearer tok"}, _anthropic, _A | {"key": None, "token": "tok"}),
    ("anthropic", {"base_url": f"{ADDRESS}/v1/"}, _anthropic, _A),
    ("anthropic", {"base_url": ""}, _anthropic, _A | {"address": "https://api.anthropic.com"}),
    ("mistral", {}, _mistral, _M),
    ("mistral", {"body": {}}, _mistral, _M | {"body": {"theirs": 2}}),
    ("mistral", {"body": {"theirs": 3}}, _mistral, _M | {"body": {"theirs": 3}}),
    ("mistral", {"base_url": f"{ADDRESS}/v1/"}, _mistral, _M),
    ("bedrock", {"extras": AWS}, _bedrock, _B_KEY),
    ("bedrock", {"extras": AWS, "base_url": ""}, _bedrock,
     _B_KEY | {"address": "https://bedrock-runtime.eu-north-1.amazonaws.com"}),
    (
        "bedrock",
        {"extras": AWS, "api_key": ""},
        _bedrock,
        {"key": None, "signed": "v4", "credentials": ("AK", "SK", "ST"), **_B},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}".replace("'", ""))
def test_arguments_of_each_sdk_client(case: tuple[str, Facts, Reader, Facts], client: httpx2.AsyncClient) -> None:
    kind, given, read, expected = case
    module, function, _ = KINDS[kind]
    build = getattr(importlib.import_module(f"holdfast.providers.sdk.{module}"), function)
    model = build(ModelInfo("acme", "m"), msgspec.structs.replace(FULL, **given), client)
    assert model.model_name == "m"
    assert read(model, client) == expected


def test_bedrock_uses_the_selected_profile(client: httpx2.AsyncClient) -> None:
    access = msgspec.structs.replace(FULL, api_key="", extras={"region": "eu-north-1", "profile": "absent"})
    with pytest.raises(ProfileNotFound, match="absent"):
        bedrock.build(ModelInfo("acme", "m"), access, client)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"message":"no"}', {"message": "no"}),
        (b'{"Message":"no"}', {"Message": "no"}),
        (b'{"error":"no"}', {"message": '{"error":"no"}'}),
        (b'["no"]', {"message": '["no"]'}),
        (b"{}", {}),
    ],
)
def test_the_text_of_an_error_of_bedrock(body: bytes, expected: dict[str, str]) -> None:
    assert msgspec.json.decode(bedrock._with_message(body)) == expected


class _Wire:
    """The connection of the library, without a network."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.peer: socket.socket | None = None

    def connect(self) -> None:
        self.sock, self.peer = socket.socketpair()

    def request(self, *_: object, **__: object) -> str:
        return "sent"


class _Supervised(bedrock._SupervisedConnection, _Wire):
    pass


async def test_a_request_on_a_kept_connection_of_bedrock_can_be_aborted() -> None:
    """Each request has its own watch; the first one connects, and the second one uses its connection."""
    connection = _Supervised()
    first, second, third = (RequestWatchdog(1, 1) for _ in range(3))
    token = CURRENT_WATCHDOG.set(first)
    try:
        assert connection.request() == "sent", "nothing to register yet"
        connection.connect()
        first.finish()
        CURRENT_WATCHDOG.set(second)
        assert connection.request() == "sent"
        assert connection.sock is not None
        assert connection.peer is not None
        with connection.sock, connection.peer:
            third.abort()
            connection.peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.peer.recv(1)
            second.abort()
            assert connection.peer.recv(1) == b"", "shut down"
            second.abort()
    finally:
        CURRENT_WATCHDOG.reset(token)


async def test_a_connection_of_bedrock_is_registered_before_its_first_request() -> None:
    connection, watch = _Supervised(), RequestWatchdog(1, 1)
    token = CURRENT_WATCHDOG.set(watch)
    try:
        connection.connect()
        assert connection.sock is not None
        assert connection.peer is not None
        with connection.sock, connection.peer:
            watch.abort()
            assert connection.peer.recv(1) == b""
    finally:
        CURRENT_WATCHDOG.reset(token)


def test_every_builder_and_every_field_has_a_case() -> None:
    assert {KINDS[kind][:2] for kind, *_ in CASES} == {recipe[:2] for recipe in KINDS.values()}
    names = {field.name for field in msgspec.structs.fields(ModelAccess)}
    given = {"base_url", "api_key", "headers", "body", "first_byte", "extras"}
    assert names == given | ELSEWHERE.keys()
