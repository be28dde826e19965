"""A request over TCP names one served host, in its Host header and in its target alike."""

import pytest

from holdfast.lock_owner import directory_id
from server.helpers import exchange, in_process_server, raw_request, server_directory

# Target, header lines before the token, and status. HERE and PAGE are the names of the ports.
CASES: list[tuple[str, tuple[str, ...], int]] = [
    ("/v1/health", ("Host: HERE",), 200),
    ("http://HERE/v1/health", ("Host: HERE",), 200),
    ("HTTP://HERE/v1/health", ("Host: HERE",), 200),
    ("http://evil.example/v1/health", ("Host: HERE",), 403),
    ("http://evil.example:80/v1/health", ("Host: HERE",), 403),
    ("http://HERE/v1/health", ("Host: evil.example",), 403),
    ("http://HERE/v1/health", (), 403),
    ("http://HERE/v1/health", ("Host: HERE", "Host: evil.example"), 403),
    ("http://HERE/v1/health", ("Host: HERE", "Host: HERE"), 403),
    ("/v1/health", ("Host: HERE", "Host: HERE"), 403),
    ("http://evil.example@HERE/v1/health", ("Host: HERE",), 403),
    ("http://HERE.evil.example/v1/health", ("Host: HERE",), 400),
    ("http://HERE.evil.example/v1/health", ("Host: HERE",), 400),
    ("https://HERE/v1/health", ("Host: HERE",), 403),
    ("http://HERE", ("Host: HERE",), 403),
    ("http://localhost/v1/health", ("Host: HERE",), 403),
    ("//evil.example/v1/health", ("Host: HERE",), 404),
]


@pytest.fixture(params=["api", "page"])
def port(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_hosts_of_requests(port: str) -> None:
    wrong = []
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        address, token = server.tcp, server.tcp.token
        if port == "page":
            opened = await server.application.web.open()
            address = address._replace(port=opened.app.port)
            token = opened.exchange(opened.link(()).code).token
        for target, lines, expected in CASES:
            head = [f"GET {target} HTTP/1.1", *lines, f"Authorization: Bearer {token}"]
            text = "\r\n".join([*head, "Connection: close", "", ""]).replace("HERE", f"127.0.0.1:{address.port}")
            status = (await exchange(address, text.encode())).status
            if status != expected:
                wrong.append((target, lines, status, expected))
    assert not wrong


async def test_unix_socket_accepts_targets_of_any_host() -> None:
    """Third-party clients send absolute targets there. No browser can reach it."""
    async with server_directory() as directory, in_process_server(directory) as server:
        request = b"GET http://api.crush.localhost/v1/health HTTP/1.1\r\nHost: api.crush.localhost\r\n\r\n"
        assert (await exchange(server.address, request)).status == 200


async def test_a_request_for_another_data_directory_is_refused() -> None:
    """Prompts of a client that reconnects to a path never reach the store of another server."""
    async with server_directory() as directory, in_process_server(directory) as server:
        known = (await (await server.client()).version()).data_id
        assert known == directory_id(directory.data)
        for path in ("/v1/version", "/v1/workspaces"):
            for named, expected in ((known, 200), ("1-2", 421), ("", 421)):
                request = raw_request(path, headers=[f"Holdfast-Data: {named}"])
                assert (await exchange(server.address, request)).status == expected, (path, named)
