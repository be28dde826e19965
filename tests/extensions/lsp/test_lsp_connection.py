"""Connection to a language server with in-memory pipes: ids, limits, pauses, the end. In virtual time."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from holdfast.domain.errors import ToolError
from holdfast.extensions.lsp import lsp_connection
from holdfast.extensions.lsp import lsp_connection as module
from holdfast.extensions.lsp.lsp_connection import ConnectionClosed, LspConnection, RequestRefused, RequestTimeout
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse, in_virtual_time
from holdfast.workspace.process.guard_client import CannotStart


class _Child:
    """A process that records its input and the times at which it was killed and closed."""

    def __init__(self) -> None:
        self.stdin = self
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.frames = lsp_connection.FrameParser()
        self.sent: list[lsp_connection.Incoming] = []
        self.is_deaf = False
        self.steps: list[str] = []
        self.end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        self.sent += self.frames.feed(data)

    async def drain(self) -> None:
        if self.is_deaf:
            await asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self.end)

    def kill(self) -> None:
        self.steps.append("kill")
        if not self.end.done():
            self.end.set_result(137)

    def close(self) -> None:
        self.steps.append("close")


class PeerFixture:
    """A peer with such a process."""

    def __init__(self, answer: object = None) -> None:
        self.child = _Child()
        self.received: list[str] = []
        self.gone: list[str] = []
        self.printed: list[str] = []
        self.traced: list[tuple[str, str]] = []
        self.answer = answer
        given = cast("Any", self.child)
        self.peer = LspConnection(given, self.receive, self.gone.append, self.printed.append, self.trace)
        self.peer.start()

    def receive(self, received: lsp_connection.Incoming) -> object:
        self.received.append(received.method)
        return self.answer

    def trace(self, what: str, text: str) -> None:
        self.traced.append((what, text))

    def send(self, **message: Any) -> None:  # noqa: ANN401
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.child.stdout.feed_data(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def sent(self) -> list[tuple[str, object]]:
        return [(item.method, item.id) for item in self.child.sent]


def run_with_peer(scenario: Any, answer: object = None) -> None:  # noqa: ANN401
    async def main() -> None:
        fixture = PeerFixture(answer)
        work: Coroutine[Any, Any, None] = scenario(fixture)
        await work
        await fixture.peer.close()
        assert fixture.child.steps == ["kill", "close"]

    in_virtual_time(main)


def test_requests_are_numbered_and_answered_in_any_order() -> None:
    async def scenario(fixture: PeerFixture) -> None:
        first, second = start(fixture.peer.request("a", {}, 5)), start(fixture.peer.request("b", {}, 5))
        await elapse(1)
        assert fixture.sent() == [("a", 1), ("b", 2)]
        fixture.send(id=2, result="two")
        fixture.send(id=9, result="no question")
        fixture.send(id="1", result="no number")
        fixture.send(id=1, error={"code": 3, "message": "x" * 501})
        assert bytes(await second) == b'"two"'
        with pytest.raises(RequestRefused) as caught:
            await first
        assert str(caught.value) == f"The language server refused: {'x' * 500}"
        fixture.send(id=1, result="too late")
        await elapse(1)
        assert fixture.sent()[2:] == [], "an answered question is not cancelled"
        assert (fixture.gone, fixture.peer._pending) == ([], {})

    run_with_peer(scenario)


@pytest.mark.parametrize("way", ["late", "cancelled"])
def test_unanswered_request_is_cancelled_at_server(way: str) -> None:
    async def scenario(fixture: PeerFixture) -> None:
        asking = start(fixture.peer.request("slow", {}, 2.5))
        await elapse(2.4)
        assert not asking.done()
        if way == "cancelled":
            asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled() == (way == "cancelled")
        if way == "late":
            error = asking.exception()
            assert isinstance(error, RequestTimeout)
            assert str(error) == "The language server did not answer within 2.5 s (slow)."
            assert asyncio.get_running_loop().time() == 2.5
        await elapse(0)
        await elapse(0)
        assert fixture.sent()[1:] == [("$/cancelRequest", None)]
        assert json.loads(bytes(fixture.child.sent[1].params)) == {"id": 1}
        assert fixture.peer._pending == {}

    run_with_peer(scenario)


@pytest.mark.parametrize(
    ("answer", "result", "code"),
    [({"a": 1}, b'{"a":1}', None), (None, b"null", None), (NotImplemented, b"null", -32601)],
)
def test_request_of_server(answer: object, result: bytes, code: int | None) -> None:
    async def scenario(fixture: PeerFixture) -> None:
        fixture.send(method="notice")
        fixture.send(method="question", id=0)
        fixture.send(method="question", id="x")
        await elapse(1)
        assert fixture.received == ["notice", "question", "question"]
        replies = [(item.id, bytes(item.result), item.error and item.error.code) for item in fixture.child.sent]
        assert replies == [(0, result, code), ("x", result, code)], "a notice has no reply"

    run_with_peer(scenario, answer)


def test_all_messages_are_traced() -> None:
    async def scenario(fixture: PeerFixture) -> None:
        fixture.peer.notify("m", {"a": "ä"})
        fixture.send(method="n", params=[1])
        fixture.send(id=5, result=2)
        fixture.send(id=5, error={"code": 1, "message": "no"})
        fixture.child.stderr.feed_data(b"words\xff")
        await elapse(1)
        assert sorted(fixture.traced) == sorted(
            [
                ("-> m", '{"jsonrpc":"2.0","method":"m","params":{"a":"ä"}}'),
                ("<- n", "[1]"),
                ("<- answer", "2"),
                ("<- answer", "no"),
                ("<- stderr", "words\ufffd"),
            ]
        )
        assert fixture.printed == ["words\ufffd"]

    run_with_peer(scenario)


def test_server_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(lsp_connection.encode_notification("m", {}))
    monkeypatch.setattr(module, "_MAX_QUEUED_BYTES", 3 * size)

    async def scenario(fixture: PeerFixture) -> None:
        for _ in range(10):
            fixture.peer.notify("m", {})
            await elapse(1)
        assert fixture.gone == [], "what was read does not count"
        fixture.child.is_deaf = True
        for _ in range(3):
            fixture.peer.notify("m", {})
        await elapse(1)
        assert not fixture.peer.is_closed
        fixture.peer.notify("m", {})
        assert (fixture.peer.is_closed, fixture.gone) == (True, ["It does not read its input."])

    run_with_peer(scenario)


def test_a_flood_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause follows more messages than a burst, and the count restarts after it."""
    monkeypatch.setattr(module, "_BURST_MESSAGES", 3)

    async def scenario(fixture: PeerFixture) -> None:
        for count, is_paused in ((3, False), (1, True), (3, False), (2, True), (0, False)):
            for _ in range(count):
                fixture.send(method="m")
            await elapse(0.049)
            is_reading = cast("Any", fixture.child.stdout)._waiter is not None
            assert is_reading == (not is_paused), count
            await elapse(0.002)
            assert cast("Any", fixture.child.stdout)._waiter is not None
        assert len(fixture.received) == 9

    run_with_peer(scenario)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (b"", "It ended with exit code 3."),
        (b"  \n", "It ended with exit code 3."),
        (b"one\ntwo \n", "It ended with exit code 3. Its last output: two"),
        (b"Error: no such file\n  at x\n", "It ended with exit code 3. Its last output: Error: no such file"),
        (b"a\nError: x\nb", "It ended with exit code 3. Its last output: b"),
        (b"y" * 400, f"It ended with exit code 3. Its last output: {'y' * 300}"),
        (b"cannot find it\n" + b"z\n" * 1_000, "It ended with exit code 3. Its last output: z"),
    ],
)
def test_end_includes_last_stderr_lines(words: bytes, expected: str) -> None:
    async def scenario(fixture: PeerFixture) -> None:
        asking = start(fixture.peer.request("a", {}, 5))
        await elapse(0.1)
        fixture.child.end.set_result(3)
        await elapse(0.1)
        # Its output may arrive after its end.
        assert fixture.gone == []
        fixture.child.stderr.feed_data(words)
        fixture.child.stderr.feed_eof()
        with pytest.raises(ConnectionClosed):
            await asking
        assert fixture.gone == [expected]
        with pytest.raises(ConnectionClosed):
            await fixture.peer.request("b", {}, 5)
        fixture.peer.notify("c", {})
        fixture.send(method="ignored")
        await elapse(1)
        assert (fixture.sent(), fixture.received, fixture.gone) == ([("a", 1)], [], [expected])

    run_with_peer(scenario)


def test_last_stderr_lines_are_awaited_briefly() -> None:
    async def scenario(fixture: PeerFixture) -> None:
        fixture.child.end.set_result(1)
        await elapse(0.19)
        assert fixture.gone == []
        await elapse(0.02)
        assert fixture.gone == ["It ended with exit code 1."]

    run_with_peer(scenario)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"Segmentation fault\r\n\r\n", "It sent output that is not a message: 'Segmentation fault'."),
        (None, "no sandbox"),
    ],
)
def test_other_ends(data: bytes | None, expected: str) -> None:
    async def scenario(fixture: PeerFixture) -> None:
        if data is None:
            fixture.child.end.set_exception(CannotStart("no sandbox"))
        else:
            fixture.child.stdout.feed_data(data)
        await elapse(0.3)
        assert fixture.gone == [expected]

    run_with_peer(scenario)


@pytest.mark.parametrize("way", ["answers", "silent", "refuses", "over"])
def test_orderly_shutdown(way: str) -> None:
    async def main() -> None:
        fixture = PeerFixture()
        loop = asyncio.get_running_loop()
        if way == "over":
            fixture.child.end.set_result(0)
            await elapse(1)
        began = loop.time()
        closing = start(fixture.peer.close(2.0))
        await elapse(0.5)
        if way in ("answers", "refuses"):
            fixture.send(id=1, **({"result": None} if way == "answers" else {"error": {"code": 1, "message": "no"}}))
        await closing
        methods = [method for method, _ in fixture.sent()]
        assert methods == {"answers": ["shutdown", "exit"], "over": []}.get(way, ["shutdown"])
        assert loop.time() - began == {"answers": 2.5, "silent": 2.0, "refuses": 0.5, "over": 0.5}[way]
        assert (fixture.child.steps, fixture.peer.is_closed) == (["kill", "close"], True)

    in_virtual_time(main)


def test_errors_are_tool_errors() -> None:
    assert all(issubclass(kind, ToolError) for kind in (ConnectionClosed, RequestTimeout, RequestRefused))


# Limits of messages


def framed(body: bytes, head: bytes = b"") -> bytes:
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def test_bounds_of_a_message() -> None:
    body = b'{"method":"m"}'
    assert [item.method for item in lsp_connection.FrameParser(len(body)).feed(framed(body))] == ["m"]
    with pytest.raises(lsp_connection.ProtocolError, match=r"14 bytes; the limit is 13\.$"):
        lsp_connection.FrameParser(len(body) - 1).feed(framed(body))
    two = lsp_connection.FrameParser().feed(framed(body) + framed(body))
    assert [item.method for item in two] == ["m", "m"]
    assert lsp_connection.Incoming() == lsp_connection.Incoming("", None, error=None)
    assert lsp_connection.RpcError() == lsp_connection.RpcError(0, "")


@pytest.mark.parametrize(("length", "is_taken"), [(4_096, True), (4_097, False)])
def test_bounds_of_a_head(length: int, is_taken: bool) -> None:
    tail = b"\r\nContent-Length: 2"
    head = b"X: " + b"x" * (length - 3 - len(tail)) + tail
    frames = lsp_connection.FrameParser()
    if is_taken:
        assert frames.feed(head) == []
        assert len(frames.feed(b"\r\n\r\n{}")) == 1
    else:
        with pytest.raises(lsp_connection.ProtocolError, match="not a message"):
            frames.feed(head)
        with pytest.raises(lsp_connection.ProtocolError, match="not a message"):
            lsp_connection.FrameParser().feed(head + b"\r\n\r\n{}")


def test_too_deeply_nested_body_is_invalid() -> None:
    with pytest.raises(lsp_connection.ProtocolError, match="not JSON-RPC"):
        lsp_connection.FrameParser().feed(framed(b'{"params":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
