"""Requests and responses as bytes: the result does not depend on where the input is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.scripted_server import answer, chunk
from holdfast.client.server_address import ServerAddress, build_request, fill
from holdfast.http11.client_messages import ConnectionBroken, InvalidResponse, ResponseParser, quote

SOCKET = ServerAddress(path="/run/s")
TCP = ServerAddress(host="127.0.0.1", port=81, token="secret")

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESPONSES: dict[str, tuple[bytes, bytes, bool]] = {
    "length": (answer(b'{"a":1}\n'), b'{"a":1}\n', True),
    "empty": (answer(), b"", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    "bare newlines": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok", True),
    "chunks": (CHUNKED + chunk(b"one") + chunk(b"two, three") + b"0\r\n\r\n", b"onetwo, three", True),
    "chunk extension": (CHUNKED + b"3;x=y\r\none\r\n0\r\n\r\n", b"one", True),
    "trailer": (CHUNKED + chunk(b"x") + b"0\r\nDigest: no\r\n\r\n", b"x", True),
    "newlines in chunks": (CHUNKED + chunk(b"\r\n0\r\n\r\n") + b"0\r\n\r\n", b"\r\n0\r\n\r\n", True),
    "until the end": (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: x\n\n", b"data: x\n\n", False),
    "closing": (answer(b"x", headers="Connection: close\r\n"), b"x", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", False),
    "old but kept": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: Keep-Alive\r\n\r\nx", b"x", True),
    "old, with another option": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: x\r\n\r\nx", b"x", False),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "announced": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + answer(b"x"), b"x", True),
    "same length twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", b"x", True),
    "both framings": (CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n") + b"0\r\n\r\n", b"", False),
}

BROKEN: dict[str, bytes] = {
    "not HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "another version": b"HTTP/2 200 OK\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "long status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nA: b\r\n c: d\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "a length in words": b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "a chunk without size": CHUNKED + b"\r\n",
    "a chunk with a sign": CHUNKED + b"+1\r\nx\r\n",
    "a chunk too long": CHUNKED + b"1\r\nxy\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 201 + b"\r\n",
    "another protocol without an empty line": b"220 mail.test ESMTP\r\n",
    "an endless chunk line": CHUNKED + b"0" * 5000,
    "endless trailers": CHUNKED + b"0\r\n" + b"A: b\r\n" * 20_000,
}


def read(pieces: list[bytes]) -> tuple[int, bytes, bool, bytes]:
    reader = ResponseParser()
    body = b"".join(reader.feed(piece) for piece in pieces)
    if not reader.is_done:
        reader.end()
    assert reader.head is not None
    return reader.head.status, body, reader.can_be_kept, reader.rest


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_split_anywhere_is_the_same(name: str) -> None:
    raw, body, is_kept = RESPONSES[name]
    whole = read([raw])
    assert whole[1:] == (body, is_kept, b"")
    for place in range(len(raw) + 1):
        assert read([raw[:place], raw[place:]]) == whole
    assert read([raw[place : place + 1] for place in range(len(raw))]) == whole


@given(st.data())
def test_random_chunks_and_random_splits(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    raw = CHUNKED + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert read(pieces)[1] == b"".join(chunks)


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_responses_are_rejected(name: str) -> None:
    reader = ResponseParser()
    with pytest.raises(InvalidResponse):
        reader.feed(BROKEN[name])


@pytest.mark.parametrize("name", [name for name in RESPONSES if name != "until the end"])
def test_an_incomplete_response_is_an_error(name: str) -> None:
    raw = RESPONSES[name][0]
    for place in range(len(raw) - 1):
        reader = ResponseParser()
        reader.feed(raw[:place])
        with pytest.raises(ConnectionBroken):
            reader.end()


def test_input_after_a_response_belongs_to_the_next() -> None:
    for first in (answer(b"one"), CHUNKED + chunk(b"one") + b"0\r\n\r\n", answer()):
        reader = ResponseParser()
        reader.feed(first + answer(b"two"))
        assert reader.is_done
        assert not reader.can_be_kept
        following = ResponseParser()
        assert following.feed(reader.rest) == b"two"


def test_repeated_headers_are_joined() -> None:
    reader = ResponseParser()
    reader.feed(answer(headers="X-A: 1\r\nx-a:2 \r\n"))
    assert reader.head is not None
    assert reader.head.headers["x-a"] == "1, 2"


def test_a_head_request_has_no_body() -> None:
    reader = ResponseParser("HEAD")
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    assert reader.is_done


def test_a_request_over_the_socket() -> None:
    raw = build_request(SOCKET, "POST", "/v1/x", [("a b", "c&d"), ("n", 3), ("none", None)], b"{}", [("Accept", "x")])
    assert raw == (
        b"POST /v1/x?a%20b=c%26d&n=3 HTTP/1.1\r\nHost: holdfast.localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\nAccept: x\r\n\r\n{}"
    )


def test_a_request_over_tcp_carries_the_token() -> None:
    assert build_request(TCP, "GET", "/v1/x") == (
        b"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1:81\r\nAuthorization: Bearer secret\r\n\r\n"
    )
    assert ServerAddress(host="::1", port=2).authority == "[::1]:2"


def test_a_post_without_a_body_has_a_length_of_zero() -> None:
    assert build_request(SOCKET, "POST", "/v1/x").endswith(b"\r\nContent-Length: 0\r\n\r\n")


def test_an_address_does_not_show_its_token() -> None:
    assert "secret" not in f"{TCP} {TCP!r}"


@pytest.mark.parametrize("token", ["a\r\nX: y", "a\nb", "ä", "a\x00"])
def test_header_injection_is_rejected(token: str) -> None:
    with pytest.raises(ValueError, match="HTTP"):
        build_request(ServerAddress(host="h", port=1, token=token), "GET", "/v1/x")


def test_names_in_paths_are_quoted() -> None:
    assert fill("/v1/workspaces/{id}/sessions/{sid}", {"id": "a/b", "sid": "m$$ü ?"}) == (
        "/v1/workspaces/a%2Fb/sessions/m$$%C3%BC%20%3F"
    )


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_name_that_would_be_another_route_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="another route"):
        fill("/v1/workspaces/{id}", {"id": value})


@given(st.text())
def test_quoted_text_is_valid_in_a_path(text: str) -> None:
    quoted = quote(text)
    assert quoted.isascii()
    assert not set(quoted) & set("/?#& \r\n+")
