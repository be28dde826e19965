"""One conversation with a language server whose pipes are memory: numbers, limits, pauses, the end. In virtual time."""

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
from holdfast.workspace.process.guard import CannotStart


class _Child:
    """A process: what it was sent, and when it was killed and closed."""

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


class Stage:
    """A peer with such a process."""

    def __init__(self, answer: object = None) -> None:
        self.child = _Child()
        self.heard: list[str] = []
        self.gone: list[str] = []
        self.printed: list[str] = []
        self.traced: list[tuple[str, str]] = []
        self.answer = answer
        given = cast("Any", self.child)
        self.peer = LspConnection(given, self.hear, self.gone.append, self.printed.append, self.trace)
        self.peer.start()

    def hear(self, heard: lsp_connection.Incoming) -> object:
        self.heard.append(heard.method)
        return self.answer

    def trace(self, what: str, text: str) -> None:
        self.traced.append((what, text))

    def say(self, **message: Any) -> None:  # noqa: ANN401
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.child.stdout.feed_data(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def sent(self) -> list[tuple[str, object]]:
        return [(item.method, item.id) for item in self.child.sent]


def staged(life: Any, answer: object = None) -> None:  # noqa: ANN401
    async def main() -> None:
        stage = Stage(answer)
        work: Coroutine[Any, Any, None] = life(stage)
        await work
        await stage.peer.close()
        assert stage.child.steps == ["kill", "close"]

    in_virtual_time(main)


def test_questions_are_numbered_and_answered_in_any_order() -> None:
    async def life(stage: Stage) -> None:
        first, second = start(stage.peer.request("a", {}, 5)), start(stage.peer.request("b", {}, 5))
        await elapse(1)
        assert stage.sent() == [("a", 1), ("b", 2)]
        stage.say(id=2, result="two")
        stage.say(id=9, result="no question")
        stage.say(id="1", result="no number")
        stage.say(id=1, error={"code": 3, "message": "x" * 501})
        assert bytes(await second) == b'"two"'
        with pytest.raises(RequestRefused) as caught:
            await first
        assert str(caught.value) == f"The language server refused: {'x' * 500}"
        stage.say(id=1, result="too late")
        await elapse(1)
        assert stage.sent()[2:] == [], "an answered question is not cancelled"
        assert (stage.gone, stage.peer._pending) == ([], {})

    staged(life)


@pytest.mark.parametrize("way", ["late", "cancelled"])
def test_a_question_without_an_answer_is_cancelled_at_the_server(way: str) -> None:
    async def life(stage: Stage) -> None:
        asking = start(stage.peer.request("slow", {}, 2.5))
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
        assert stage.sent()[1:] == [("$/cancelRequest", None)]
        assert json.loads(bytes(stage.child.sent[1].params)) == {"id": 1}
        assert stage.peer._pending == {}

    staged(life)


@pytest.mark.parametrize(
    ("answer", "result", "code"),
    [({"a": 1}, b'{"a":1}', None), (None, b"null", None), (NotImplemented, b"null", -32601)],
)
def test_a_question_of_the_server(answer: object, result: bytes, code: int | None) -> None:
    async def life(stage: Stage) -> None:
        stage.say(method="notice")
        stage.say(method="question", id=0)
        stage.say(method="question", id="x")
        await elapse(1)
        assert stage.heard == ["notice", "question", "question"]
        replies = [(item.id, bytes(item.result), item.error and item.error.code) for item in stage.child.sent]
        assert replies == [(0, result, code), ("x", result, code)], "a notice has no reply"

    staged(life, answer)


def test_all_that_goes_over_the_wire_is_traced() -> None:
    async def life(stage: Stage) -> None:
        stage.peer.notify("m", {"a": "ä"})
        stage.say(method="n", params=[1])
        stage.say(id=5, result=2)
        stage.say(id=5, error={"code": 1, "message": "no"})
        stage.child.stderr.feed_data(b"words\xff")
        await elapse(1)
        assert sorted(stage.traced) == sorted(
            [
                ("-> m", '{"jsonrpc":"2.0","method":"m","params":{"a":"ä"}}'),
                ("<- n", "[1]"),
                ("<- answer", "2"),
                ("<- answer", "no"),
                ("<- stderr", "words\ufffd"),
            ]
        )
        assert stage.printed == ["words\ufffd"]

    staged(life)


def test_a_server_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(lsp_connection.encode_notification("m", {}))
    monkeypatch.setattr(module, "_MAX_QUEUED_BYTES", 3 * size)

    async def life(stage: Stage) -> None:
        for _ in range(10):
            stage.peer.notify("m", {})
            await elapse(1)
        assert stage.gone == [], "what was read does not count"
        stage.child.is_deaf = True
        for _ in range(3):
            stage.peer.notify("m", {})
        await elapse(1)
        assert not stage.peer.is_closed
        stage.peer.notify("m", {})
        assert (stage.peer.is_closed, stage.gone) == (True, ["It does not read what it is told."])

    staged(life)


def test_a_flood_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause comes after more messages than a burst, and the count begins anew after it."""
    monkeypatch.setattr(module, "_BURST_MESSAGES", 3)

    async def life(stage: Stage) -> None:
        for count, is_paused in ((3, False), (1, True), (3, False), (2, True), (0, False)):
            for _ in range(count):
                stage.say(method="m")
            await elapse(0.049)
            is_reading = cast("Any", stage.child.stdout)._waiter is not None
            assert is_reading == (not is_paused), count
            await elapse(0.002)
            assert cast("Any", stage.child.stdout)._waiter is not None
        assert len(stage.heard) == 9

    staged(life)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (b"", "It ended with exit code 3."),
        (b"  \n", "It ended with exit code 3."),
        (b"one\ntwo \n", "It ended with exit code 3. Its last words: two"),
        (b"Error: no such file\n  at x\n", "It ended with exit code 3. Its last words: Error: no such file"),
        (b"a\nError: x\nb", "It ended with exit code 3. Its last words: b"),
        (b"y" * 400, f"It ended with exit code 3. Its last words: {'y' * 300}"),
        (b"cannot find it\n" + b"z\n" * 1_000, "It ended with exit code 3. Its last words: z"),
    ],
)
def test_the_end_has_the_last_words(words: bytes, expected: str) -> None:
    async def life(stage: Stage) -> None:
        asking = start(stage.peer.request("a", {}, 5))
        await elapse(0.1)
        stage.child.end.set_result(3)
        await elapse(0.1)
        # What it printed may arrive after its end.
        assert stage.gone == []
        stage.child.stderr.feed_data(words)
        stage.child.stderr.feed_eof()
        with pytest.raises(ConnectionClosed):
            await asking
        assert stage.gone == [expected]
        with pytest.raises(ConnectionClosed):
            await stage.peer.request("b", {}, 5)
        stage.peer.notify("c", {})
        stage.say(method="ignored")
        await elapse(1)
        assert (stage.sent(), stage.heard, stage.gone) == ([("a", 1)], [], [expected])

    staged(life)


def test_the_last_words_are_waited_for_a_moment() -> None:
    async def life(stage: Stage) -> None:
        stage.child.end.set_result(1)
        await elapse(0.19)
        assert stage.gone == []
        await elapse(0.02)
        assert stage.gone == ["It ended with exit code 1."]

    staged(life)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"Segmentation fault\r\n\r\n", "It sent something else than messages: 'Segmentation fault'."),
        (None, "no sandbox"),
    ],
)
def test_other_ends(data: bytes | None, expected: str) -> None:
    async def life(stage: Stage) -> None:
        if data is None:
            stage.child.end.set_exception(CannotStart("no sandbox"))
        else:
            stage.child.stdout.feed_data(data)
        await elapse(0.3)
        assert stage.gone == [expected]

    staged(life)


@pytest.mark.parametrize("way", ["answers", "silent", "refuses", "over"])
def test_a_polite_end(way: str) -> None:
    async def main() -> None:
        stage = Stage()
        loop = asyncio.get_running_loop()
        if way == "over":
            stage.child.end.set_result(0)
            await elapse(1)
        began = loop.time()
        closing = start(stage.peer.close(2.0))
        await elapse(0.5)
        if way in ("answers", "refuses"):
            stage.say(id=1, **({"result": None} if way == "answers" else {"error": {"code": 1, "message": "no"}}))
        await closing
        methods = [method for method, _ in stage.sent()]
        assert methods == {"answers": ["shutdown", "exit"], "over": []}.get(way, ["shutdown"])
        assert loop.time() - began == {"answers": 2.5, "silent": 2.0, "refuses": 0.5, "over": 0.5}[way]
        assert (stage.child.steps, stage.peer.is_closed) == (["kill", "close"], True)

    in_virtual_time(main)


def test_the_errors_are_errors_of_tools() -> None:
    assert all(issubclass(kind, ToolError) for kind in (ConnectionClosed, RequestTimeout, RequestRefused))


# Bounds of messages


def framed(body: bytes, head: bytes = b"") -> bytes:
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def test_bounds_of_a_message() -> None:
    body = b'{"method":"m"}'
    assert [item.method for item in lsp_connection.FrameParser(len(body)).feed(framed(body))] == ["m"]
    with pytest.raises(lsp_connection.ProtocolError, match=r"14 bytes; at most 13 are taken\.$"):
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
        with pytest.raises(lsp_connection.ProtocolError, match="something else"):
            frames.feed(head)
        with pytest.raises(lsp_connection.ProtocolError, match="something else"):
            lsp_connection.FrameParser().feed(head + b"\r\n\r\n{}")


def test_a_body_too_deep_is_garbage() -> None:
    with pytest.raises(lsp_connection.ProtocolError, match="no JSON-RPC"):
        lsp_connection.FrameParser().feed(framed(b'{"params":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
