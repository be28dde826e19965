"""The OpenAI-compatible adapter: how messages are converted, and how each kind of response ends the exchange.

Responses come from a client without sockets, so that silence costs no real time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.settings import Selection
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.chat_request import chat_body
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.testing.seeded_loop import in_virtual_time
from providers.adapters import message, prompt, shape

INFO = ModelInfo("acme", "m", can_reason=True)


def body_of(
    request: ModelRequest,
    *,
    info: ModelInfo = INFO,
    access: ModelAccess | None = None,
    **fields: Any,  # noqa: ANN401
) -> dict[str, Any]:
    return dict(msgspec.json.decode(chat_body(request, info, access or ModelAccess(), Selection(**fields))))


# Messages


def call_part(text: str) -> Part:
    return ToolCallPart(ToolCall(ToolCallId("a"), "ls", text, finished=True))


def picture(id: str) -> Message:
    result = ToolResult(ToolCallId(id), "view", "shown", "", is_error=False, data="cG5n", mime_type="image/png")
    return message("tool", ToolResultPart(result))


def own(*parts: Part, model: str = "m", provider: str = "acme") -> Message:
    return message("assistant", *parts, model=model, provider=provider)


PLAIN = Reasoning("hm", "reasoning_content")
SIGNED = Reasoning("hm", "S")
ENCRYPTED = Reasoning("", "", redacted=('{"type":"reasoning.encrypted","data":"D"}', "opaque"))
SIGNED_DETAIL = {"type": "reasoning.text", "text": "hm", "signature": "S"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (own(TextPart(Text("a")), TextPart(Text("b"))), {"content": "ab"}),
        (own(call_part("")), {"content": None, "arguments": "{}"}),
        (own(call_part('{"x":1}')), {"content": None, "arguments": '{"x":1}'}),
        (own(ReasoningPart(PLAIN), call_part("")), {"content": None, "arguments": "{}", "reasoning_content": "hm"}),
        (own(ReasoningPart(PLAIN), TextPart(Text("a"))), {"content": "a"}),
        (own(ReasoningPart(PLAIN), call_part(""), model="n"), {"content": None, "arguments": "{}"}),
        (own(ReasoningPart(PLAIN), call_part(""), provider="n"), {"content": None, "arguments": "{}"}),
        (own(ReasoningPart(SIGNED), TextPart(Text("a"))), {"content": "a", "reasoning_details": [SIGNED_DETAIL]}),
        (own(ReasoningPart(SIGNED), TextPart(Text("a")), model="n"), {"content": "a"}),
        (own(ReasoningPart(SIGNED), TextPart(Text("a")), provider="n"), {"content": "a"}),
        (
            own(ReasoningPart(ENCRYPTED), TextPart(Text("a"))),
            {"content": "a", "reasoning_details": [{"type": "reasoning.encrypted", "data": "D"}]},
        ),
    ],
)
def test_a_stored_response_as_the_next_request_repeats_it(output: Message, expected: dict[str, Any]) -> None:
    (sent,) = body_of(msgspec.structs.replace(prompt(output), system=""))["messages"]
    if calls := sent.pop("tool_calls", None):
        (call,) = calls
        assert (call["id"], call["type"], call["function"]["name"]) == ("a", "function", "ls")
        sent["arguments"] = call["function"]["arguments"]
    assert sent == {"role": "assistant", **expected}


def test_media_of_results_follow_their_own_step_once() -> None:
    request = prompt(picture("a"), picture("b"), own(TextPart(Text("next"))), picture("c"))
    messages = body_of(request)["messages"][1:]
    assert [item["role"] for item in messages] == ["tool", "tool", "user", "assistant", "tool", "user"]
    texts = [
        [part["text"] for part in item["content"] if "text" in part] for item in messages if item["role"] == "user"
    ]
    assert [[name in text for text in reported for name in ("call a", "call b", "call c")] for reported in texts] == [
        [True, False, False, False, True, False],
        [False, False, True],
    ]


@pytest.mark.parametrize(("path", "name"), [("/a/b.pdf", "b.pdf"), ("b.pdf", "b.pdf"), ("", "file"), ("/a/", "file")])
def test_the_name_of_an_attached_file(path: str, name: str) -> None:
    asked = message("user", BinaryPart(Binary(path, "application/pdf", b"%PDF")))
    (part,) = body_of(prompt(asked))["messages"][-1]["content"]
    assert part["file"]["filename"] == name


@pytest.mark.parametrize(
    ("prefix", "system", "expected"),
    [("", "", []), (" \n", "\t", []), ("P", "", ["P"]), ("", "S", ["S"]), ("P", "S", ["P", "S"])],
)
def test_system_prompts(prefix: str, system: str, expected: list[str]) -> None:
    request = msgspec.structs.replace(prompt(), system=system)
    messages = body_of(request, access=ModelAccess(system_prefix=prefix))["messages"]
    assert [item["content"] for item in messages if item["role"] == "system"] == expected


@pytest.mark.parametrize(
    ("levels", "default", "effort", "think", "expected"),
    [
        ((), "", "high", False, "high"),
        ((), "low", "high", False, "high"),
        (("low",), "low", "high", False, "low"),
        (("low", "high"), "low", "high", False, "high"),
        (("low",), "low", "", True, "low"),
        (("low",), "low", "", False, None),
        (("low",), "", "high", False, None),
    ],
)
def test_the_reasoning_effort_of_a_request(
    levels: tuple[str, ...], default: str, effort: str, think: bool, expected: str | None
) -> None:
    info = msgspec.structs.replace(INFO, reasoning_levels=levels, default_reasoning_effort=default)
    assert body_of(prompt(), info=info, reasoning_effort=effort, think=think).get("reasoning_effort") == expected


# Exchanges

STREAM = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
PIECE = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


class Body(httpx2.AsyncByteStream):
    """Yields bytes, waits for numbers of seconds, and raises errors."""

    def __init__(self, items: Iterable[bytes | float | Exception]) -> None:
        self._items = items
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for item in self._items:
            if isinstance(item, bytes):
                yield item
            elif isinstance(item, Exception):
                raise item
            else:
                await asyncio.sleep(item)

    async def aclose(self) -> None:
        self.is_closed = True


class Client:
    """Stands for an httpx2 client: responds to every request with one response, after `delay` seconds."""

    def __init__(
        self, *items: bytes | float | Exception, status: int = 200, headers: dict[str, str] = STREAM, delay: float = 0.0
    ) -> None:
        self.body = Body(items)
        self._status, self._headers, self._delay = status, headers, delay
        self.requests: list[httpx2.Request] = []

    def build_request(self, method: str, url: str, **more: Any) -> httpx2.Request:  # noqa: ANN401 - the library's
        more.pop("extensions")
        return httpx2.Request(method, url, **more)

    async def send(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        assert stream
        self.requests.append(request)
        await asyncio.sleep(self._delay)
        return httpx2.Response(self._status, headers=self._headers, stream=self.body, request=request)


def ask(client: Client, access: ModelAccess | None = None) -> list[StreamPart]:
    async def main() -> list[StreamPart]:
        model = CompatibleModel(INFO, access or ModelAccess("http://x/v1"), Selection(), client=client)  # type: ignore[arg-type]
        return [part async for part in model.stream(prompt())]

    return in_virtual_time(main)


def failure(client: Client, access: ModelAccess | None = None) -> tuple[str, str]:
    with pytest.raises(ProviderError) as caught:
        ask(client, access)
    return caught.value.trouble, str(caught.value)


@pytest.mark.parametrize(
    "client",
    [
        Client(PIECE, END, b"data: [DONE]\n\n"),
        Client(PIECE, END),
        Client(PIECE, END, httpx2.ReadError("broken")),
        Client(PIECE, END, 1_000.0),
        Client(PIECE, END, delay=299.0),
        Client(299.0, PIECE, 119.0, END),
        Client(b'{"choices":[{"message":{"content":"hi"},', b'"finish_reason":"stop"}]}', headers=JSON),
    ],
    ids=["marker", "no marker", "broken after its end", "silent after its end", "slow", "slow to begin", "no stream"],
)
def test_responses_that_are_complete(client: Client) -> None:
    parts = shape(ask(client))
    assert parts[0] == ("text", "hi")
    assert parts[-1] == ("FinishedPart", "FinishedPart(reason='stop')")
    assert client.body.is_closed


@pytest.mark.parametrize(
    ("client", "trouble", "text"),
    [
        (Client(PIECE), "cut", "before it was complete"),
        (Client(PIECE, httpx2.ReadError("broken")), "cut", "broken"),
        (Client(PIECE, 121.0), "stalled", "nothing more came for 120 seconds"),
        (Client(301.0, PIECE), "stalled", "nothing came for 300 seconds"),
        (Client(PIECE, END, delay=1_000.0), "stalled", "nothing came for 300 seconds"),
        (Client(b"odd"), "cut", "before it was complete"),
        (Client(b' {"a":1}'), "refused", "not a response of a model"),
        (Client(b" [1]"), "refused", "not a response of a model"),
        (Client(PIECE, b"data: odd\n\n"), "cut", "odd"),
        (Client(status=202), "refused", "HTTP 202"),
        (Client(status=204), "refused", "HTTP 204"),
        (
            Client(b'{"error":{"mess', b'age":"in two"}}', status=400, headers=JSON),
            "refused",
            "acme: in two (HTTP 400)",
        ),
        (
            Client(b'{"error":"\\ud83d odd"}', status=400, headers=JSON),
            "refused",
            "acme: \N{REPLACEMENT CHARACTER} odd",
        ),
        (Client(b"no", 1_000.0, status=400), "refused", "acme: no"),
        (Client(b"no", httpx2.ReadError("broken"), status=400), "refused", "acme: no"),
        (Client(1_000.0, status=400), "stalled", "nothing came for 300 seconds"),
    ],
)
def test_responses_that_are_not(client: Client, trouble: str, text: str) -> None:
    found, output = failure(client)
    assert (found, text in output) == (trouble, True), output


@pytest.mark.parametrize(
    ("base_url", "address"),
    [
        ("http://x/v1", "http://x/v1/chat/completions"),
        (" http://x/v1/ ", "http://x/v1/chat/completions"),
        ("http://x/v1//", "http://x/v1/chat/completions"),
        ("http://x", "http://x/chat/completions"),
        ("http://x/v1/chat/completions", "http://x/v1/chat/completions"),
        ("http://x/v1/chat/completions/", "http://x/v1/chat/completions"),
        ("http://x/v1?version=2", "http://x/v1/chat/completions?version=2"),
        ("https://u:p@x:1/v1#part", "https://u:p@x:1/v1/chat/completions"),
    ],
)
def test_the_address_of_a_request(base_url: str, address: str) -> None:
    client = Client(PIECE, END)
    ask(client, ModelAccess(base_url))
    assert str(client.requests[0].url) == address


@pytest.mark.parametrize("name", ["Authorization", "USER-AGENT", "X-Session-Id", "content-Type", "Accept"])
def test_each_header_is_sent_once_and_the_configured_one_wins(name: str) -> None:
    client = Client(PIECE, END)
    ask(client, ModelAccess("http://x/v1", "key", headers={name: "mine"}))
    assert client.requests[0].headers.get_list(name) == ["mine"]
