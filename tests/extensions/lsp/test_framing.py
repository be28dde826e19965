"""Message framing with input split at any position."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.lsp import lsp_connection
from holdfast.extensions.lsp.lsp_connection import FrameParser, ProtocolError

MESSAGES = [
    lsp_connection.encode_request(1, "initialize", {"a": "ä😀"}),
    lsp_connection.encode_notification("initialized", {}),
    lsp_connection.encode_response("x", None),
    lsp_connection.encode_error(7, -32601, "no"),
]


@given(st.lists(st.integers(0, sum(map(len, MESSAGES))), max_size=12))
def test_messages_do_not_depend_on_fragmentation(cuts: list[int]) -> None:
    whole = b"".join(MESSAGES)
    edges = sorted({0, len(whole), *cuts})
    frames = FrameParser()
    received = [item for begin, end in pairwise(edges) for item in frames.feed(whole[begin:end])]
    assert [(item.method, item.id) for item in received] == [
        ("initialize", 1),
        ("initialized", None),
        ("", "x"),
        ("", 7),
    ]
    assert json.loads(bytes(received[0].params)) == {"a": "ä😀"}
    assert received[3].error == lsp_connection.RpcError(-32601, "no")


def test_byte_by_byte_and_with_other_headers() -> None:
    body = b'{"jsonrpc":"2.0","method":"m"}'
    head = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length: %d\r\n\r\n" % len(body)
    frames = FrameParser()
    received = [item for byte in head + body for item in frames.feed(bytes([byte]))]
    assert [item.method for item in received] == ["m"]


def test_incomplete_character_is_replaced() -> None:
    body = rb'{"jsonrpc":"2.0","method":"m","params":{"a":"\ud83d"}}'
    (received,) = FrameParser().feed(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert json.loads(bytes(received.params)) == {"a": "\N{REPLACEMENT CHARACTER}"}


@pytest.mark.parametrize(
    "data",
    [
        b"Segmentation fault\r\n\r\n",
        b"x" * 5_000,
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999\r\n\r\n",
        b"Content-Length: 3\r\n\r\n{]}",
        b'Content-Length: 2\r\n\r\n"a',
        b"Content-Length: 1\r\n\r\n\xff",
    ],
)
def test_invalid_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameParser().feed(data)


def test_message_above_limit_is_not_buffered() -> None:
    frames = FrameParser(max_body=100)
    with pytest.raises(ProtocolError, match="101"):
        frames.feed(b"Content-Length: 101\r\n\r\n")
    assert FrameParser(max_body=100).feed(lsp_connection.encode_notification("m", {}))
