"""Admission over TCP and at the web page's port: each clause decides once by itself, in every spelling of a header.

A row changes one property of an admitted request. `<host>` and `<token>` are those of the port.
"""

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.server_address import ServerAddress
from holdfast.server.http import listen, token_auth
from holdfast.server.web import web_app
from server.helpers import Server, exchange, in_process_server, open_raw, server_directory

HOST, TOKEN, JSON = "Host: <host>", "Authorization: Bearer <token>", "Content-Type: application/json"
BODY = '{"command":"shutdown"}'
"""The server itself refuses it with 409, so a client that receives this status was admitted."""
ADMITTED = 409

# Description, method, header lines, body, status. A body without a length line gets one.
Row = tuple[str, str, tuple[str, ...], str, int]

HEADERS: list[Row] = [
    ("as it should be", "POST", (HOST, TOKEN, JSON), BODY, ADMITTED),
    ("no host", "POST", (TOKEN, JSON), BODY, 403),
    ("an empty host", "POST", ("Host:", TOKEN, JSON), BODY, 403),
    ("another host", "POST", ("Host: evil.example", TOKEN, JSON), BODY, 403),
    ("another port", "POST", ("Host: 127.0.0.1:1", TOKEN, JSON), BODY, 403),
    ("localhost", "POST", ("Host: localhost:<port>", TOKEN, JSON), BODY, ADMITTED),
    ("localhost in capitals", "POST", ("Host: LOCALHOST:<port>", TOKEN, JSON), BODY, ADMITTED),
    ("no token", "POST", (HOST, JSON), BODY, 401),
    ("no scheme", "POST", (HOST, "Authorization: <token>", JSON), BODY, 401),
    ("another scheme", "POST", (HOST, "Authorization: Basic <token>", JSON), BODY, 401),
    ("a scheme in capitals", "POST", (HOST, "Authorization: BEARER <token>", JSON), BODY, ADMITTED),
    ("a scheme in small letters", "POST", (HOST, "Authorization: bearer <token>", JSON), BODY, ADMITTED),
    ("two spaces before the token", "POST", (HOST, "Authorization: Bearer  <token>", JSON), BODY, ADMITTED),
    ("a tab before the token", "POST", (HOST, "Authorization: Bearer\t<token>", JSON), BODY, 401),
    ("the right scheme, another token", "POST", (HOST, "Authorization: Bearer " + "x" * 43, JSON), BODY, 401),
    ("the beginning of the token", "POST", (HOST, "Authorization: Bearer <cut>", JSON), BODY, 401),
    ("more than the token", "POST", (HOST, "Authorization: Bearer <token>0", JSON), BODY, 401),
    ("no body, no type", "POST", (HOST, TOKEN), "", 400),
    ("a length of 0, no type", "POST", (HOST, TOKEN, "Content-Length: 0"), "", 400),
    ("no body, another type", "POST", (HOST, TOKEN, "Content-Type: text/plain"), "", 400),
    ("a body without a type", "POST", (HOST, TOKEN), BODY, 415),
    ("a body of another type", "POST", (HOST, TOKEN, "Content-Type: text/plain"), BODY, 415),
    ("a type with a charset", "POST", (HOST, TOKEN, f"{JSON}; charset=utf-8"), BODY, ADMITTED),
    ("a type in capitals", "POST", (HOST, TOKEN, "Content-Type: APPLICATION/JSON"), BODY, ADMITTED),
    ("a type that begins like ours", "POST", (HOST, TOKEN, "Content-Type: application/json5"), BODY, 415),
    ("ours behind another type", "POST", (HOST, TOKEN, "Content-Type: text/plain; application/json"), BODY, 415),
    ("chunks without a type", "POST", (HOST, TOKEN, "Transfer-Encoding: chunked"), "0\r\n\r\n", 415),
    ("chunks of our type", "POST", (HOST, TOKEN, JSON, "Transfer-Encoding: chunked"), "0\r\n\r\n", 400),
    ("a put without a type", "PUT", (HOST, TOKEN), BODY, 415),
    ("a put of our type", "PUT", (HOST, TOKEN, JSON), BODY, 405),
    ("a patch without a type", "PATCH", (HOST, TOKEN), BODY, 415),
    ("a deletion without a type", "DELETE", (HOST, TOKEN), BODY, 415),
    ("a deletion without a body", "DELETE", (HOST, TOKEN), "", 405),
    ("options without a body", "OPTIONS", (HOST, TOKEN), "", 405),
    ("a get with a body of no type", "GET", (HOST, TOKEN), BODY, 405),
    ("a get without a token", "GET", (HOST,), "", 401),
    ("a head without a token", "HEAD", (HOST,), "", 401),
    ("a head of another host", "HEAD", ("Host: evil.example", TOKEN), "", 403),
    # The order of the clauses: a client without the token learns nothing beyond this.
    ("another host and no token", "POST", ("Host: evil.example", JSON), BODY, 403),
    ("another type and no token", "POST", (HOST, "Content-Type: text/plain"), BODY, 415),
]

ORIGINS: list[tuple[str, tuple[str, ...], int, int]] = [
    # Description, header lines, the status over TCP and at the web page's port.
    ("the port's own", ("Origin: http://<host>",), 403, ADMITTED),
    ("its own in capitals", ("Origin: HTTP://<host>",), 403, ADMITTED),
    ("its other name", ("Origin: http://localhost:<port>",), 403, 403),
    ("https", ("Origin: https://<host>",), 403, 403),
    ("another", ("Origin: http://evil.example",), 403, 403),
    ("null", ("Origin: null",), 403, 403),
    ("empty", ("Origin:",), 403, 403),
    ("from nowhere", ("Sec-Fetch-Site: none",), ADMITTED, ADMITTED),
    ("from the same origin", ("Sec-Fetch-Site: same-origin",), ADMITTED, ADMITTED),
    ("from the same site", ("Sec-Fetch-Site: same-site",), ADMITTED, 403),
    ("from another site", ("Sec-Fetch-Site: cross-site",), ADMITTED, 403),
    (
        "a visit that posts",
        ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
        ADMITTED,
        403,
    ),
]

REPEATED = {
    "host": (HOST, 403),
    "authorization": (TOKEN, 400),
    "origin": ("Origin: http://<host>", 400),
    "content-type": (JSON, 400),
    "content-length": (f"Content-Length: {len(BODY)}", 400),
    "transfer-encoding": ("Transfer-Encoding: chunked", 400),
    "sec-fetch-site": ("Sec-Fetch-Site: none", 400),
    "sec-fetch-mode": ("Sec-Fetch-Mode: cors", 400),
    "sec-fetch-dest": ("Sec-Fetch-Dest: empty", 400),
}


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(web_app, "BUNDLE", tmp_path)


async def port_of(server: Server, kind: str) -> ServerAddress:
    if kind == "api":
        return server.tcp
    opened = await server.application.web.open()
    token = opened.exchange(opened.link(()).code).token
    return ServerAddress(host="127.0.0.1", port=opened.app.port, token=token)


def filled(address: ServerAddress, text: str) -> str:
    text = text.replace("<host>", f"127.0.0.1:{address.port}").replace("<port>", str(address.port))
    return text.replace("<token>", address.token).replace("<cut>", address.token[:-1])


async def status_of(
    address: ServerAddress, method: str, lines: tuple[str, ...], body: str, path: str = "/v1/control"
) -> int:
    head = [filled(address, line) for line in lines]
    if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        head.append(f"Content-Length: {len(body)}")
    text = "\r\n".join([f"{method} {path} HTTP/1.1", *head, "", ""]) + body
    return (await exchange(address, text.encode())).status


def spellings(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Return the same lines, and the lines in reverse order with other letter case in their names."""
    yield lines
    parts = [line.partition(":") for line in reversed(lines)]
    changes = (str.lower, str.upper, str.swapcase)
    yield tuple(changes[place % 3](name) + colon + rest for place, (name, colon, rest) in enumerate(parts))


@pytest.mark.parametrize("kind", ["api", "page"])
async def test_each_clause_of_admission_decides_by_itself(kind: str) -> None:
    wrong = []
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        address = await port_of(server, kind)
        for name, method, lines, body, expected in HEADERS:
            for spelt in spellings(lines):
                status = await status_of(address, method, spelt, body)
                if status != expected:
                    wrong.append((name, spelt, status, expected))
        for name, more, api, page in ORIGINS:
            for spelt in spellings((HOST, TOKEN, JSON, *more)):
                status = await status_of(address, "POST", spelt, BODY)
                if status != (api if kind == "api" else page):
                    wrong.append((name, spelt, status, api if kind == "api" else page))
    assert not wrong


@pytest.mark.parametrize("kind", ["api", "page"])
async def test_repeated_admission_header_is_refused(kind: str) -> None:
    """If a header occurs twice, intermediaries could use either value."""
    assert set(REPEATED) == {name.decode() for name in token_auth._SINGLE_HEADERS}
    others = {"authorization": "Authorization: Basic x", "origin": "Origin: http://evil.example", "host": "Host: x"}
    wrong = []
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        address = await port_of(server, kind)
        for name, (line, expected) in REPEATED.items():
            rest = tuple(item for item in (HOST, TOKEN, JSON) if item != line)
            bodies = "0\r\n\r\n" if name == "transfer-encoding" else BODY
            for second in (line, others.get(name, line), line.replace(name.title(), name.upper())):
                for lines in ((*rest, line, second), (*rest, second, line), (line, *rest, second)):
                    status = await status_of(address, "POST", lines, bodies)
                    if status != expected:
                        wrong.append((name, lines, status, expected))
        assert await status_of(address, "POST", (HOST, TOKEN, JSON, "Accept: a", "Accept: b"), BODY) == ADMITTED
    assert not wrong


async def test_navigation_from_other_site_needs_all_fetch_metadata() -> None:
    site = "Sec-Fetch-Site: cross-site"
    mode, target = "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"
    rows = [
        ("GET", "/", (site, mode, target), 200),
        ("HEAD", "/", (site, mode, target), 200),
        ("GET", "/", (site, target), 403),
        ("GET", "/", (site, mode), 403),
        ("GET", "/", (site, "Sec-Fetch-Mode: no-cors", target), 403),
        ("GET", "/", (site, mode, "Sec-Fetch-Dest: iframe"), 403),
        ("GET", "/v1/health", (site, mode, target), 403),
        ("POST", "/", (site, mode, target), 403),
        ("GET", "/", (), 200),
        ("GET", "/v1/health", (), 401),
        ("GET", "/v1/health", (TOKEN,), 200),
    ]
    async with server_directory() as directory, in_process_server(directory) as server:
        address = await port_of(server, "page")
        found = [await status_of(address, method, (HOST, *lines), "", path) for method, path, lines, _ in rows]
    assert found == [expected for *_, expected in rows]


async def test_requests_of_page_without_token() -> None:
    """Three paths, with POST, by the user of this server."""
    async with server_directory() as directory, in_process_server(directory) as server:
        address = await port_of(server, "page")
        for path in ("/v1/web/exchange", "/v1/web/hello", "/v1/web/return"):
            assert await status_of(address, "POST", (HOST, JSON), "{}", path) == 400, "the body is looked at"
            for method in ("GET", "PUT", "DELETE", "PATCH"):
                assert await status_of(address, method, (HOST, JSON), "", path) == 401
        for path in ("/v1/web/page", "/v1/web/exchange/", "/v1/web/exchange?x=1/..", "/v1/web", "/V1/web/exchange"):
            expected = 400 if "?" in path else 401
            assert await status_of(address, "POST", (HOST, JSON), "{}", path) == expected, path


LINES = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0050 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     8        0 1
   1: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000     7        0 1
"""
OTHER = LINES.replace("0100007F:", "0000000000000000FFFF00000100007F:").replace("     8", "     9")


@pytest.mark.parametrize(
    ("tcp", "tcp6", "uid"),
    [(LINES, OTHER, 8), ("", OTHER, 9), ("", "", None), ("broken\n" + LINES, "", 8), (LINES[:150], "", None)],
    ids=["as it is", "as an IPv6 socket", "neither", "a strange line before it", "cut"],
)
def test_user_of_tcp_client_is_read_from_its_own_line(
    tcp: str, tcp6: str, uid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the server, which has both ends exchanged, is ignored."""
    tables = {"/proc/self/net/tcp": tcp, "/proc/self/net/tcp6": tcp6}
    monkeypatch.setattr(listen, "open", lambda path, **_: io.StringIO(tables[path]), raising=False)
    assert listen._tcp_uid(("127.0.0.1", 80), 8080) == uid


@pytest.mark.parametrize(("uid", "admitted"), [(None, True), (0, True), (1000, True), (1001, False)])
def test_admitted_users_of_page(uid: int | None, admitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "_tcp_uid", lambda *_: uid)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert listen.may_be_our_own(("127.0.0.1", 1), 2) is admitted


@pytest.mark.parametrize(("uid", "admitted"), [(None, True), (0, False), (1000, True), (1001, False), ("gone", False)])
def test_admitted_users_of_unix_socket(uid: int | str | None, admitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(_: socket.socket) -> int | None:
        if isinstance(uid, str):
            raise OSError
        return uid

    monkeypatch.setattr(listen, "peer_uid", peer)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    with socket.socket(socket.AF_UNIX) as one:
        assert listen.is_our_own(one) is admitted


@pytest.mark.parametrize(
    ("host", "exposed"),
    [("127.0.0.1", False), ("127.0.0.2", False), ("::1", False), ("::ffff:127.0.0.1", False), ("0.0.0.0", True)],
)
def test_addresses_reachable_from_other_machines(host: str, exposed: bool) -> None:
    class Listener:
        def getsockname(self) -> tuple[str, int]:
            return host, 1

    assert token_auth.is_exposed(Listener()) is exposed  # type: ignore[arg-type]


async def test_environment_of_client_is_returned_over_unix_socket_only() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        client, _ = await server.open_workspace()
        await client.create_workspace(directory.project("other"), env=("A=1",))
        page = await server.client(await port_of(server, "page"))
        for requester, expected in ((client, ("A=1",)), (await server.client(server.tcp), ()), (page, ())):
            assert [item.env for item in await requester.list_workspaces()] == [(), expected]


async def test_links_are_created_and_revoked_over_unix_socket_only() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        page = await port_of(server, "page")
        for address in (server.tcp, page):
            for method, body in (("POST", '{"port":0}'), ("DELETE", "")):
                assert await status_of(address, method, (HOST, TOKEN, JSON), body, "/v1/web") == 409
        assert await status_of(page, "GET", (HOST, TOKEN), "", "/v1/health") == 200, "it is still open"
        reader, writer = await open_raw(server.address)
        writer.write(b"DELETE /v1/web HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await open_raw(page)
