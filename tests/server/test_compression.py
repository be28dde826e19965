"""Large JSON responses over TCP are compressed if the client accepts it; nothing else is."""

import gzip

import pytest

from holdfast.client.server_address import ServerAddress
from holdfast.server.http.application import accepts_gzip
from server.helpers import RawResponse, RawStream, exchange, in_process_server, raw_request, server_directory

ACCEPTED = ["gzip", "GZIP", "deflate, gzip", "gzip;q=0.5", "gzip; q=0.001", "*", "br, *;q=0.1", "gzip, *;q=0"]
REFUSED = ["", "identity", "br", "gzip;q=0", "gzip; q=0.0", "gzip ;q=0.000", "*;q=0", "*, gzip;q=0", "xgzip"]
LARGE, SMALL = "/v1/openapi.json", "/v1/version"


@pytest.mark.parametrize(
    ("value", "is_accepted"), [*((item, True) for item in ACCEPTED), *((item, False) for item in REFUSED)]
)
def test_accept_encoding(value: str, is_accepted: bool) -> None:
    assert accepts_gzip([(b"accept", b"*/*"), (b"accept-encoding", value.encode())]) is is_accepted


def test_accept_encoding_in_several_headers() -> None:
    assert accepts_gzip([(b"accept-encoding", b"br"), (b"accept-encoding", b"gzip")])
    assert not accepts_gzip([])


def headers_for(address: ServerAddress, accepted: str) -> list[str]:
    lines = [f"Accept-Encoding: {accepted}"]
    if address.port:
        lines += [f"Host: 127.0.0.1:{address.port}", f"Authorization: Bearer {address.token}"]
    return lines


async def get(address: ServerAddress, path: str, accepted: str = "gzip") -> RawResponse:
    return await exchange(address, raw_request(path, headers=headers_for(address, accepted)))


async def test_large_json_over_tcp_is_compressed() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        packed = await get(server.tcp, LARGE)
        plain = await get(server.tcp, LARGE, "identity")
        assert packed.head.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.head.headers
        assert packed.head.headers["vary"] == plain.head.headers["vary"] == "accept-encoding"
        assert packed.head.headers["content-type"] == plain.head.headers["content-type"] == "application/json"
        assert len(packed.body) < len(plain.body) / 3
        assert gzip.decompress(packed.body) == plain.body
        assert "content-encoding" not in (await get(server.address, LARGE)).head.headers
        assert "content-encoding" not in (await get(server.tcp, SMALL)).head.headers


@pytest.mark.parametrize(("excess", "is_compressed"), [(0, True), (1, False)])
async def test_limit_of_compression(excess: int, is_compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        size = len((await get(server.tcp, LARGE, "identity")).body)
        monkeypatch.setattr("holdfast.server.http.application._MIN_COMPRESSED", size + excess)
        assert ("content-encoding" in (await get(server.tcp, LARGE)).head.headers) is is_compressed


async def test_event_streams_are_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.http.application._MIN_COMPRESSED", 0)
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        _, workspace = await server.open_workspace()
        path = f"/v1/workspaces/{workspace}/events"
        stream = await RawStream.open(server.tcp, path, headers_for(server.tcp, "gzip"))
        assert stream.response.head is not None
        assert "content-encoding" not in stream.response.head.headers
        stream.writer.transport.abort()
