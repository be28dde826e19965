"""R12 at the page's port: a link admits one page and no other; after a restart the same pages reconnect."""

import json
import logging
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.errors import ClientError, ServerProblem
from holdfast.client.server_address import ServerAddress
from holdfast.http11.client_messages import ConnectionBroken
from holdfast.server.http import listen
from holdfast.server.web import web_app, web_auth
from holdfast.testing.gates import until
from server.foreign_requests import attempts, with_origin
from server.helpers import (
    RawResponse,
    RawStream,
    Server,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    server_directory,
)

_JSON = "Content-Type: application/json"
_CLIENT = "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small page, so that these tests do not need the built one."""
    place = tmp_path / "bundle"
    (place / "assets").mkdir(parents=True)
    (place / "index.html").write_text("<!doctype html><title>Holdfast</title>")
    (place / "assets" / "main-abc.js").write_text("// " + "long " * 1000)
    (place / "icon.svg").write_text("<svg/>")
    (place / "notes.md").write_text("not served")
    monkeypatch.setattr(web_app, "BUNDLE", place)
    return place


async def linked(server: Server, env: Sequence[str] = ()) -> tuple[ServerAddress, str]:
    """Open the page's port. Returns its address and a code."""
    body = json.dumps({"port": 0, "env": list(env)}).encode()
    made = (await exchange(server.address, raw_request("/v1/web", "POST", body))).json
    return ServerAddress(host="127.0.0.1", port=int(made["url"].rpartition(":")[2].strip("/"))), made["code"]


async def send_as_page(
    address: ServerAddress, path: str, body: object = None, *headers: str, method: str = ""
) -> RawResponse:
    """Send a request as the script of the page does."""
    lines = [f"Host: {address.host}:{address.port}", f"Origin: http://{address.host}:{address.port}"]
    lines += [f"Authorization: Bearer {address.token}"] if address.token else []
    raw = None if body is None else json.dumps(body).encode()
    lines += [_JSON] if body is not None else []
    return await exchange(
        address, raw_request(path, method or ("GET" if raw is None else "POST"), raw, [*lines, *headers])
    )


async def entered(server: Server, env: Sequence[str] = ()) -> tuple[ServerAddress, dict[str, str]]:
    """Enter as a page. Returns its address with the token, and the response."""
    address, code = await linked(server, env)
    entry: dict[str, str] = (await send_as_page(address, "/v1/web/exchange", {"code": code})).json
    return ServerAddress(host=address.host, port=address.port, token=entry["token"]), entry


async def test_files_are_public_and_nothing_else() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, _ = await linked(server)
        whole = await send_as_page(address, "/")
        assert (whole.status, whole.body) == (200, b"<!doctype html><title>Holdfast</title>")
        assert whole.head.headers["content-type"] == "text/html; charset=utf-8"
        assert whole.head.headers["cache-control"] == "no-store"
        script = await send_as_page(address, "/assets/main-abc.js", None, "Accept-Encoding: gzip, br")
        assert script.head.headers["content-encoding"] == "gzip"
        assert len(script.body) < 200
        assert "immutable" in script.head.headers["cache-control"]
        assert (await send_as_page(address, "/assets/main-abc.js")).body.startswith(b"// long")
        assert (await send_as_page(address, "/", method="HEAD")).body == b""
        missing = (
            "/notes.md",
            "/index.html",
            "/assets/../../house.py",
            "/assets/%2e%2e/index.html",
            "/x",
            "//",
            "/v1/health",
        )
        for path in (*missing, "/v1/workspaces", "/v1/docs/", "/v1/openapi.json", "/v1/web/page", "/v1/web/exchange"):
            assert (await send_as_page(address, path)).status == 401, path
        assert (await send_as_page(address, "/", {})).status == 401


async def test_page_loads_no_external_resource() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, _ = await linked(server)
        headers = (await send_as_page(address, "/")).head.headers
        policy = dict(item.strip().partition(" ")[::2] for item in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy["script-src"], policy["style-src"], policy["connect-src"]} == {"'self'"}
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert not any(word in headers["content-security-policy"] for word in ("unsafe", "http:", "https:", "*"))
        for path in ("/", "/assets/main-abc.js", "/icon.svg", "/missing"):
            headers = (await send_as_page(address, path)).head.headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert "set-cookie" not in headers
            assert not any(name.startswith("access-control") for name in headers)


async def test_link_is_valid_once() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, code = await linked(server)
        first = await send_as_page(address, "/v1/web/exchange", {"code": code})
        assert (first.status, sorted(first.json)) == (200, ["key", "page", "token"])
        again = await send_as_page(address, "/v1/web/exchange", {"code": code})
        assert (again.status, again.json["message"]) == (400, str(web_app.CodeRefused()))
        assert "holdfast web" in again.json["message"]
        never = await send_as_page(address, "/v1/web/exchange", {"code": "x" * 32})
        assert (never.status, never.body) == (again.status, again.body)


async def test_link_expires() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, code = await linked(server)
        assert server.application.web.sessions is not None
        server.application.web.sessions._clock = lambda: time.time() + web_auth.CODE_SECONDS
        assert (await send_as_page(address, "/v1/web/exchange", {"code": code})).status == 400


async def test_page_has_client_permissions_and_environment_of_its_link() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, _ = await entered(server, ["HOLDFAST_TEST=1", "PATH=/bin"])
        asked = {"id": "", "path": directory.project(), "client_id": _CLIENT}
        opened = (await send_as_page(address, "/v1/workspaces", asked)).json
        assert "env" not in opened or not opened["env"]
        assert server.manager.handles[0].env == ("HOLDFAST_TEST=1", "PATH=/bin")
        base = f"/v1/workspaces/{opened['id']}"
        session = (await send_as_page(address, f"{base}/sessions", {"title": "s"})).json["id"]
        sent = await send_as_page(address, f"{base}/agent", {"session_id": session, "prompt": "hi", "run_id": "r1"})
        assert sent.status == 202
        lines = [f"Host: localhost:{address.port}", f"Authorization: Bearer {address.token}"]
        stream = await RawStream.open(address, f"{base}/events?since=0&client_id={_CLIENT}", lines)
        await stream.until(lambda event: b'"run_complete"' in event.data)
        stream.close()


async def test_links_are_created_over_unix_socket_only() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        address, _ = await entered(server)
        for method in ("POST", "DELETE"):
            for path in ("/v1/web", "/v1/w%65b"):
                refused = await send_as_page(address, path, {"port": 0} if method == "POST" else None, method=method)
                assert refused.status == 409
                assert "holdfast web" in refused.json["message"]
        with pytest.raises(ServerProblem):
            await (await server.client(server.tcp)).open_web()
        assert (await send_as_page(address, "/v1/version")).status == 200


async def test_r12_unauthorised_requests_to_page_port_have_no_effect() -> None:
    """R12: another origin, another name for this host, no token, a token in the wrong place."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        address, _ = await entered(server)
        before = await client.snapshot(workspace)
        tried = attempts(address, workspace, session)
        host, bearer = f"Host: 127.0.0.1:{address.port}", f"Authorization: Bearer {address.token}"
        get = f"/v1/workspaces/{workspace}/snapshot"
        for site in ("cross-site", "same-site", "evil"):
            tried[f"fetch from {site}"] = raw_request(get, headers=[host, bearer, f"Sec-Fetch-Site: {site}"])
            script = [host, f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"]
            tried[f"script from {site}"] = raw_request("/assets/main-abc.js", headers=script)
            frame = [host, f"Sec-Fetch-Site: {site}", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"]
            tried[f"frame from {site}"] = raw_request("/", headers=frame)
        rebound = [f"Host: rebind.example:{address.port}"]
        tried["rebound page"] = raw_request("/", headers=rebound)
        tried["rebound exchange"] = raw_request("/v1/web/exchange", "POST", b'{"code":"x"}', [*rebound, _JSON])
        tried["token in the query"] = raw_request(f"{get}?token={address.token}", headers=[host])
        tried["code as form"] = raw_request("/v1/web/exchange", "POST", b"code=x", [host])
        for name, request in tried.items():
            answer = await exchange(address, request)
            assert 400 <= answer.status < 500, name
            assert not any(header.startswith("access-control") for header in answer.head.headers), name
            assert address.token.encode() not in answer.body, name
            assert workspace.encode() not in answer.body, name
        assert await client.snapshot(workspace) == before
        own = with_origin(address, workspace, session, f"http://127.0.0.1:{address.port}")
        assert (await exchange(address, own)).status == 202


async def test_navigation_from_other_site_gets_page_without_data() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, _ = await linked(server)
        visit = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"]
        lines = [f"Host: 127.0.0.1:{address.port}", *visit]
        assert (await exchange(address, raw_request("/", headers=lines))).status == 200
        assert (await exchange(address, raw_request("/v1/version", headers=lines))).status == 403


async def test_link_is_refused_for_other_user_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users may see a link on the command line of a browser: the kernel reports the user of a connection."""
    async with server_directory() as directory, in_process_server(directory) as server:
        address, code = await linked(server)
        _, writer = await open_raw(address)
        name = writer.get_extra_info("sockname")
        assert listen._tcp_uid((name[0], name[1]), address.port) == os.getuid()
        writer.close()
        monkeypatch.setattr(listen, "_tcp_uid", lambda *_: os.getuid() + 1)
        assert (await send_as_page(address, "/v1/web/exchange", {"code": code})).status == 403
        monkeypatch.undo()
        assert (await send_as_page(address, "/v1/web/exchange", {"code": code})).status in (200, 400)


async def test_secrets_are_not_in_logs_or_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with server_directory() as directory, in_process_server(directory) as server:
        address, code = await linked(server)
        entry = (await send_as_page(address, "/v1/web/exchange", {"code": code})).json
        secrets = [code, *(value for name, value in entry.items() if name != "page")]
        for secret in secrets:
            for path in (f"/?token={secret}", f"/v1/version?token={secret}", f"/v1/{secret}", f"/assets/{secret}"):
                answer = await send_as_page(address, path)
                assert secret.encode() not in answer.body
            answer = await send_as_page(address, "/v1/web/exchange", {"code": secret})
            assert answer.status == 400
            assert secret.encode() not in answer.body
    assert not any(secret in caplog.text for secret in secrets)


async def test_reloaded_page_gets_new_token() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, entry = await entered(server)
        assert (await send_as_page(address, "/v1/web/page")).status == 405, "a GET changes nothing"
        again = (await send_as_page(address, "/v1/web/page", {})).json
        assert (again["page"], again["key"]) == (entry["page"], entry["key"])
        assert (await send_as_page(address, "/v1/version")).status == 401
        fresh = ServerAddress(host=address.host, port=address.port, token=again["token"])
        assert (await send_as_page(fresh, "/v1/version")).status == 200


async def reconnect(address: ServerAddress, entry: dict[str, str], port: int | None = None) -> RawResponse:
    """Reconnect as the page does; a response without a valid proof is rejected."""
    asked = {"page": entry["page"], "nonce": "0123456789abcdef"}
    hello: dict[str, Any] = (await send_as_page(address, "/v1/web/hello", asked)).json
    directory = address.port if port is None else port
    assert hello["proof"] == web_auth.proof(entry["key"], "server", address.port, asked["nonce"], hello["nonce"])
    proof = web_auth.proof(entry["key"], "page", directory, asked["nonce"], hello["nonce"])
    return await send_as_page(address, "/v1/web/return", {"page": entry["page"], "proof": proof})


async def test_pages_reconnect_to_next_server_at_same_port() -> None:
    """A token is not valid there: a process that holds the port between two servers learns nothing useful."""
    async with server_directory() as directory:
        async with in_process_server(directory) as server:
            address, entry = await entered(server)
            note = directory.data / "web.json"
            assert stat.S_IMODE(note.stat().st_mode) == 0o600
            assert entry["token"] not in note.read_text()
        async with in_process_server(directory) as server:
            await (await server.client()).health()
            await until(lambda: server.application.web.sessions is not None)
            assert (await send_as_page(address, "/v1/version")).status == 401
            plain = ServerAddress(host=address.host, port=address.port)
            assert (await reconnect(plain, entry, port=address.port + 1)).status == 400
            assert (await reconnect(plain, {**entry, "key": entry["key"]})).status == 200
            back = (await reconnect(plain, entry)).json
            fresh = ServerAddress(host=address.host, port=address.port, token=back["token"])
            assert (await send_as_page(fresh, "/v1/version")).status == 200
            unknown = {"page": "0" * 32, "nonce": "0123456789abcdef"}
            assert (await send_as_page(plain, "/v1/web/hello", unknown)).status == 400


@pytest.mark.parametrize("spoil", ["taken", "torn", "open", "old", "wrong"])
async def test_server_starts_although_pages_cannot_reconnect(spoil: str) -> None:
    async with server_directory() as directory:
        async with in_process_server(directory) as server:
            address, _ = await entered(server)
        note = directory.data / "web.json"
        with socket.socket() as other:
            if spoil == "taken":
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", address.port))
                other.listen()
            elif spoil == "torn":
                note.write_text(note.read_text()[:40])
            elif spoil == "open":
                note.chmod(0o644)
            elif spoil == "wrong":
                note.write_text(note.read_text().replace(str(address.port), "99999"))
            else:
                old = json.loads(note.read_text())
                old["pages"][0]["seen"] -= web_auth.PAGE_SECONDS
                note.write_text(json.dumps(old))
            async with in_process_server(directory) as server:
                await (await server.client()).health()
                await until(lambda: not note.exists())
                assert server.application.web.sessions is None
                assert (await linked(server))[0].port > 0


async def test_close_disconnects_all_pages() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        address, _ = await entered(server)
        client, workspace = await server.open_workspace()
        lines = [f"Host: 127.0.0.1:{address.port}", f"Authorization: Bearer {address.token}"]
        stream = await RawStream.open(address, f"/v1/workspaces/{workspace}/events?since=0", lines)
        await client.close_web()
        try:
            while not stream.is_over:
                await stream.more()
        except (ConnectionError, ClientError, ConnectionBroken):
            pass
        stream.close()
        assert not (directory.data / "web.json").exists()
        with pytest.raises(ConnectionRefusedError):
            await send_as_page(address, "/")
        await client.health()


async def test_open_port_is_reused() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        first, _ = await linked(server)
        assert (await linked(server))[0] == first
        same = await exchange(server.address, raw_request("/v1/web", "POST", b'{"port":%d}' % first.port))
        assert same.status == 200
        other = await exchange(server.address, raw_request("/v1/web", "POST", b'{"port":1}'))
        assert (other.status, str(first.port) in other.json["message"]) == (409, True)
        for port in (b"-1", b"65536", b'"x"'):
            assert (await exchange(server.address, raw_request("/v1/web", "POST", b'{"port":%s}' % port))).status == 400


async def test_occupied_port_is_reported() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        with socket.create_server(("127.0.0.1", 0)) as other:
            asked = b'{"port":%d}' % other.getsockname()[1]
            answer = await exchange(server.address, raw_request("/v1/web", "POST", asked))
            assert answer.status == 409
            assert "cannot be used" in answer.json["message"]
        assert server.application.web.sessions is None


async def test_missing_page_build_is_reported(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_app, "BUNDLE", bundle / "nothing")
    async with server_directory() as directory, in_process_server(directory) as server:
        address, _ = await linked(server)
        answer = await send_as_page(address, "/")
        assert (answer.status, "without its page" in answer.json["message"]) == (404, True)


def test_server_without_page_requests_does_not_load_page_modules() -> None:
    script = "import sys, holdfast.server.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "holdfast.server.web.web_app",
        "holdfast.server.web.web_auth",
        "gzip",
    }


def test_content_security_policy_names_no_other_origin() -> None:
    assert web_app.POLICY.isascii()
    assert "//" not in web_app.POLICY
