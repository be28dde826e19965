"""Requests to a server as bytes: each field of an address, and each part of a request."""

import pytest

from holdfast.client.server_address import ServerAddress, build_request

ADDRESSES = {
    "path": (ServerAddress(path="/run/s"), b"Host: "),
    "host": (ServerAddress(host="example.test", port=1), b"Host: example.test:1\r\n"),
    "port": (ServerAddress(host="h", port=4711), b"Host: h:4711\r\n"),
    "token": (ServerAddress(host="h", port=1, token="abc"), b"Authorization: Bearer abc\r\n"),
    "data_id": (ServerAddress(path="/s", data_id="12-ab"), b"Holdfast-Data: 12-ab\r\n"),
}


def test_every_field_of_an_address_has_a_row() -> None:
    assert {*ADDRESSES, "name"} == set(ServerAddress._fields)


def test_the_name_of_an_address_is_shown_and_not_sent() -> None:
    address = ServerAddress(path="/run/ssh-1.sock", name="ssh://ada@far")
    assert str(address) == "ssh://ada@far"
    assert b"ada" not in build_request(address, "GET", "/v1/health")


@pytest.mark.parametrize("field", ADDRESSES)
def test_a_field_of_an_address_is_sent(field: str) -> None:
    address, line = ADDRESSES[field]
    assert line in build_request(address, "GET", "/v1/health")
    bare = build_request(ServerAddress(path="/s"), "GET", "/v1/health")
    if field in ("token", "data_id"):
        assert line.split(b":")[0] not in bare


@pytest.mark.parametrize(
    ("method", "body", "lines", "absent"),
    [
        ("GET", None, [], [b"Content-Length", b"Content-Type"]),
        ("HEAD", None, [], [b"Content-Length", b"Content-Type"]),
        ("DELETE", None, [], [b"Content-Length", b"Content-Type"]),
        ("POST", None, [b"Content-Length: 0\r\n"], [b"Content-Type"]),
        ("PUT", None, [b"Content-Length: 0\r\n"], [b"Content-Type"]),
        ("POST", b"{}", [b"Content-Length: 2\r\n", b"Content-Type: application/json\r\n"], []),
        ("DELETE", b"{}", [b"Content-Length: 2\r\n", b"Content-Type: application/json\r\n"], []),
    ],
)
def test_a_body_has_a_length_and_a_type(
    method: str, body: bytes | None, lines: list[bytes], absent: list[bytes]
) -> None:
    sent = build_request(ServerAddress(path="/s"), method, "/x", body=body)
    head, _, rest = sent.partition(b"\r\n\r\n")
    assert head.startswith(f"{method} /x HTTP/1.1\r\n".encode())
    assert rest == (body or b"")
    assert all(line in sent for line in lines)
    assert not any(line in sent for line in absent)


def test_a_query_omits_none_and_encodes_the_rest() -> None:
    query = [("a", None), ("b", ""), ("c", "x&y= "), ("d", 0)]
    assert build_request(ServerAddress(path="/s"), "GET", "/x", query).startswith(
        b"GET /x?b=&c=x%26y%3D%20&d=0 HTTP/1.1\r\n"
    )
    assert build_request(ServerAddress(path="/s"), "GET", "/x", [("a", None)]).startswith(b"GET /x HTTP/1.1\r\n")


@pytest.mark.parametrize("header", [("A", "b\r\nC: d"), ("A", "\u00e9"), ("A\n", "b")])
def test_invalid_header_characters_are_rejected(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="HTTP"):
        build_request(ServerAddress(path="/s"), "GET", "/x", headers=[header])
