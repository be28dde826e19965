"""Invalid input: a clear error, never a 5xx, nothing stored, nothing echoed."""

import asyncio
import contextlib
import gc
import json
from types import FrameType
from urllib.parse import quote

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import SessionId
from holdfast.protocol.routes import ROUTES, Route
from server.helpers import (
    RawResponse,
    Server,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
)

_CANARY = "c4n4ry-7f3a"
_CLIENT = "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"


def filled(route: Route, workspace: str, name: str = "nothing") -> str:
    path = route.full_path.replace("{id}", workspace).replace("{client_id}", _CLIENT)
    for part in ("{sid}", "{run_id}"):
        path = path.replace(part, quote(name, safe=""))
    query = [f"{item.name}={_CLIENT if item.name == 'client_id' else '1'}" for item in route.query if item.is_required]
    return path + ("?" + "&".join(query) if query else "")


def check(answer: RawResponse, statuses: set[int]) -> None:
    """Check that a response is a 4xx in the common error format and does not contain the input."""
    assert answer.status in statuses, (answer.status, answer.body[:200])
    assert _CANARY.encode() not in answer.body
    if answer.head.headers.get("content-type", "").startswith("application/json"):
        assert list(answer.json) == ["message"]
        assert answer.json["message"]


async def stored(server: Server, workspace: str) -> list[object]:
    """Return the stored state that an invalid request must not change."""
    paths = (f"/v1/workspaces/{workspace}", f"/v1/workspaces/{workspace}/snapshot", "/v1/workspaces")
    return [(await exchange(server.address, raw_request(path))).json for path in paths]


_NAMES = ("session_id", "prompt", "run_id", "path", "title", "key", "skip", "command", "model", "scope", "position")

_BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "cut": b'{"session_id":"c4n4ry-7f3a","prompt":"c4n4',
    "no json": b"c4n4ry-7f3a",
    "a list": b'["c4n4ry-7f3a"]',
    "a number": b"12",
    "null": b"null",
    "a string": b'"c4n4ry-7f3a"',
    "not utf-8": b'{"prompt":"\xff\xfe","path":"\xff","key":"\xff","c4n4ry-7f3a":"\xc3\x28"}',
    "half a character": b'{"prompt":"\\ud800","path":"\\ud800","title":"\\ud800","key":"\\ud800","command":"\\ud800"}',
    "two values": b'{"prompt":"c4n4ry-7f3a"}{"prompt":"c4n4ry-7f3a"}',
    "wrong types": json.dumps({name: {"c4n4ry-7f3a": [1]} for name in _NAMES}).encode(),
    "numbers for text": json.dumps(dict.fromkeys(_NAMES, 7)).encode(),
    "nested": b'{"session_id":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "nested anything": b'{"key":"a","value":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
}

_TAKES_ANY_OBJECT = {
    "grant", "answer_question", "start_lsps",
}  # fmt: skip


@pytest.mark.parametrize("kind", _BODIES)
async def test_body_of_wrong_type_is_refused(kind: str) -> None:
    body = _BODIES[kind]
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        before = await stored(server, workspace)
        for route in ROUTES:
            if route.request is None:
                continue
            answer = await exchange(server.address, raw_request(filled(route, workspace), route.method, body))
            if answer.status < 300:
                # Some of these bodies are valid for some routes, for example an object without fields where none is
                # required.
                assert route.name in _TAKES_ANY_OBJECT | {"init_agent"}, (route.name, kind)
            else:
                check(answer, {400, 404, 409})
        assert await stored(server, workspace) == before


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/workspaces", b"{}", "path is required"),
        ("/v1/workspaces", b'{"path":"/"}', "invalid client_id"),
        ("/v1/workspaces", b'{"path":{"c4n4ry-7f3a":1}}', "expected `str`, got `object` - at `$.path`"),
        ("config/set", b'{"scope":0,"value":"c4n4ry-7f3a"}', "object missing required field `key`"),
        ("config/set", b'{"scope":"c4n4ry-7f3a","key":"a","value":1}', "expected `int`, got `str` - at `$.scope`"),
        ("agent", b'{"session_id":"s","prompt":"p","delivery":"c4n4ry-7f3a"}', "not known - at `$.delivery`"),
        ("agent", b'{"session_id":"s","prompt":"p","delivery":" - at c4n4ry-7f3a"}', "not known - at `$.delivery`"),
        ("config/provider-key", b'{"provider_id":"x","kind":"c4n4ry-7f3a","api_key":"k"}', "unsupported api key kind"),
    ],
)
async def test_error_names_invalid_field_of_body(path: str, body: bytes, message: str) -> None:
    """The message names the position and the expected type."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        target = path if path.startswith("/") else f"/v1/workspaces/{workspace}/{path}"
        answer = await exchange(server.address, raw_request(target, "POST", body))
        check(answer, {400})
        assert message in answer.json["message"]


async def test_body_above_limit_is_413() -> None:
    """33 MiB: 413, read or not, with a length or in chunks; the server continues."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        path = f"/v1/workspaces/{workspace}/agent"
        body = b'{"session_id":"%s","prompt":"%s"}' % (session.encode(), b"x" * (33 * 1024 * 1024))
        check(await exchange(server.address, raw_request(path, "POST", body)), {413})
        announced = raw_request(path, "POST", headers=["Content-Length: 34603008"])
        check(await exchange(server.address, announced), {413})
        chunked = raw_request(path, "POST", headers=["Transfer-Encoding: chunked"])
        chunked += b"".join(b"100000\r\n" + b"x" * 0x100000 + b"\r\n" for _ in range(33)) + b"0\r\n\r\n"
        check(await exchange(server.address, chunked), {413})
        assert await client.list_runs(workspace) == ()
        under = b'{"session_id":"%s","prompt":" %s"}' % (session.encode(), b" " * (1024 * 1024))
        check(await exchange(server.address, raw_request(path, "POST", under)), {400})


async def test_wrong_method_is_405_and_unknown_path_404() -> None:
    """405 and 404, in plain text as stock clients expect them."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        methods: dict[str, set[str]] = {}
        for route in ROUTES:
            methods.setdefault(route.full_path, set()).add(route.method)
        for route in ROUTES:
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - methods[route.full_path]:
                answer = await exchange(server.address, raw_request(filled(route, workspace), method))
                assert answer.status == 405, (method, route.path)
                assert set(answer.head.headers["allow"].split(", ")) >= methods[route.full_path]
        for path in (
            "/",
            "/v1",
            "/v2/health",
            "/v1/health/x",
            f"/v1/{_CANARY}",
            "/v1/workspaces//",
            "/v1/../etc/passwd",
        ):
            answer = await exchange(server.address, raw_request(path))
            check(answer, {404})
        head = await exchange(server.address, raw_request("/v1/health", "HEAD"))
        assert head.status in (200, 405)


@pytest.mark.parametrize(
    "name",
    ["%2e%2e", "%00", "a%2Fb", "%ff%fe", "%F0%9F%92%A9", "a" * 5000, "%27%3B--", "-1", "%25", "$$child", _CANARY, "%"],
)
async def test_unusual_ids_are_4xx_or_empty(name: str) -> None:
    """As a workspace 404; as a session or a run a 4xx or an empty result."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        before = await stored(server, workspace)
        for route in ROUTES:
            if "{id}" not in route.path:
                continue
            path = filled(route, "@", "x").replace("@", name)
            body = b"{}" if route.request is not None else None
            if not route.streams and 404 in route.errors and route.request is None:
                check(await exchange(server.address, raw_request(path, route.method, body)), {404})
            if "{sid}" in route.path or "{run_id}" in route.path:
                path = filled(route, workspace, "@").replace("%40", name)
                answer = await exchange(server.address, raw_request(path, route.method, body))
                if answer.status != 200:
                    check(answer, {400, 404, 409})
        assert await stored(server, workspace) == before


@pytest.mark.parametrize("value", ["-1", "x", "", "1.5", "1e3", "%31%00", "9" * 19, "9" * 400, "٣", "+1", " 1"])
async def test_invalid_numbers_are_refused(value: str) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        base = f"/v1/workspaces/{workspace}"
        given = quote(value, safe="%")
        for path in (f"/runs?limit={given}", f"/runs?before={given}", f"/events?since={given}"):
            check(await exchange(server.address, raw_request(base + path)), {400})
        is_header = value.strip() == value and value.isascii() and "%" not in value
        header = [f"Last-Event-ID: {value}" if is_header else "Last-Event-ID: x"]
        check(await exchange(server.address, raw_request(base + "/events", headers=header)), {400})


@pytest.mark.parametrize(
    "path",
    [
        "",
        "relative",
        "\0",
        "/nowhere/c4n4ry-7f3a",
        "/etc/passwd",
        "/" + "x" * 300,
        "/" + "x/" * 5000,
        "~",
        "/proc/1/cwd",
        "\ud800",
    ],
)
async def test_invalid_directories_are_refused(path: str) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        for env in ([], ["PWD=relative"], ["PWD"], ["=", "PWD=/nowhere/c4n4ry-7f3a"]):
            body = json.dumps({"id": "", "path": path, "client_id": _CLIENT, "env": env}).encode()
            check(await exchange(server.address, raw_request("/v1/workspaces", "POST", body)), {400})
        assert server.manager.handles == []


@pytest.mark.parametrize("client", ["", "x", "0" * 31, _CANARY, "{}", "\0"])
async def test_invalid_client_ids_are_refused(client: str) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        body = json.dumps({"id": "", "path": directory.project("other"), "client_id": client}).encode()
        check(await exchange(server.address, raw_request("/v1/workspaces", "POST", body)), {400})
        given = quote(client, safe="")
        base = f"/v1/workspaces/{workspace}"
        check(await exchange(server.address, raw_request(f"{base}?client_id={given}", "DELETE")), {400})
        check(
            await exchange(server.address, raw_request(f"{base}/current-session?client_id={given}", "POST", b"{}")),
            {400},
        )
        if client:
            check(await exchange(server.address, raw_request(f"{base}/events?client_id={given}")), {400})
            check(await exchange(server.address, raw_request(f"/v1/clients/{given}", "DELETE")), {400})
        assert len(server.manager.handles) == 1


async def test_unusual_configuration_keeps_response_format() -> None:
    """Responses keep the form that clients require, whatever is configured."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        values: list[object] = [
            5,
            None,
            "x",
            [],
            {},
            [{"api_key": _CANARY}],
            {"a": 1, "b": {"api_key": _CANARY}},
            10**30,
        ]
        for key in ("providers", "options", "options.tui", "models", "models.large", "providers.demo", "a.b.c"):
            for value in values:
                body = json.dumps({"key": key, "value": value, "scope": 1}).encode()
                answer = await exchange(
                    server.address, raw_request(f"/v1/workspaces/{workspace}/config/set", "POST", body)
                )
                assert answer.status in (200, 400)
                for path in ("", "/config", "/providers", "/snapshot"):
                    shown = await exchange(server.address, raw_request(f"/v1/workspaces/{workspace}{path}"))
                    assert shown.status == 200, (key, value, path)
                    assert _CANARY.encode() not in shown.body
                config = await client.get_config(workspace)
                assert isinstance(config["providers"], dict)
                assert isinstance(config["options"]["tui"], dict)
            await client.config_remove(workspace, key, scope=1)
        for key in ("", ".", "a..b", "a.", "x" * 600):
            check(
                await exchange(
                    server.address,
                    raw_request(f"/v1/workspaces/{workspace}/config/set", "POST", json.dumps({"key": key}).encode()),
                ),
                {400},
            )


async def test_non_http_input_is_refused() -> None:
    """Noise gets a 400 or a closed connection; large heads are cut off; the server continues."""
    async with server_directory() as directory, in_process_server(directory) as server:
        for noise in (
            b"\0" * 100,
            b"HELO\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\n",
        ):
            reader, writer = await open_raw(server.address)
            writer.write(noise)
            writer.write_eof()
            async with asyncio.timeout(10):
                answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
            writer.close()
        for huge in (b"GET /" + b"x" * 200_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 40_000):
            reader, writer = await open_raw(server.address)
            writer.write(huge)
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.transport.abort()
        absolute = b"GET http://api.crush.localhost/v1/health HTTP/1.1\r\nHost: api.crush.localhost\r\n\r\n"
        assert (await exchange(server.address, absolute)).status == 200


async def test_r11_refused_body_is_freed_at_once() -> None:
    """R11: a refused body is freed at once, however large; the garbage collector counts it as one object of many."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client = await server.client()
        workspace = await client.create_workspace(directory.project())
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            with pytest.raises(ServerProblem, match="no such session"):
                await send_prompt(client, workspace.id, SessionId("none"), "x" * 1_000_000)
            gc.collect()
            frames = [found.f_code.co_qualname for found in gc.garbage if isinstance(found, FrameType)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert "Inputs.submit" not in frames
