"""R12: no unauthorised access.

Permissions of the socket, the token, and requests that a browser can be made to send.
"""

import logging
import os
import socket
import stat
import struct
from pathlib import Path

import pytest

from holdfast.domain.errors import StoreMisconfigured
from holdfast.server.http import listen, token_auth
from holdfast.server.http.connection import Scope
from holdfast.server.http.listen import AddressTaken, UnixListener, UnsafeDirectory
from holdfast.server.http.token_auth import read_or_make_token, read_token_file
from holdfast.testing.gates import until
from server.foreign_requests import attempts, with_origin
from server.helpers import exchange, in_process_server, open_raw, raw_request, send_prompt, server_directory

_SECRET = "s3cr3t-c4n4ry-91"


async def test_socket_and_its_directory_are_private() -> None:
    async with server_directory() as directory, in_process_server(directory):
        assert stat.S_IMODE(directory.socket.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(directory.socket.stat().st_mode) == 0o600
    assert not directory.socket.exists()


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777, 0o1777])
def test_directory_accessible_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    with pytest.raises(UnsafeDirectory):
        UnixListener(tmp_path / "run" / "s")
    assert not (tmp_path / "run" / "s").exists()


def test_directory_of_other_user_or_symlink_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeDirectory):
        UnixListener(tmp_path / "link" / "s")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(UnsafeDirectory):
        UnixListener(tmp_path / "real" / "s")


def test_r8_live_server_is_not_replaced_and_stale_socket_is_removed(tmp_path: Path) -> None:
    """R8."""
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first = UnixListener(path)
    inode = path.stat().st_ino
    with pytest.raises(AddressTaken):
        UnixListener(path)
    assert path.stat().st_ino == inode
    with socket.socket(socket.AF_UNIX) as probe:
        with pytest.raises(ConnectionRefusedError):
            probe.connect(str(path))
        first.socket.listen()
        probe.connect(str(path))
    first.close()
    assert not path.exists()
    UnixListener(path).close()


def test_socket_of_another_server_at_same_path_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / "s"
    first = UnixListener(path)
    path.unlink()
    path.write_text("other")
    first.close()
    assert path.read_text() == "other"
    with pytest.raises(UnsafeDirectory, match="not a socket"):
        UnixListener(path)
    assert path.read_text() == "other"


def test_socket_path_above_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeDirectory):
        UnixListener(tmp_path / ("x" * 120))


async def test_connection_of_other_user_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The uid of the peer is read from the kernel for every connection."""
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        connection: socket.socket = writer.get_extra_info("socket")
        assert listen.peer_uid(connection) == os.getuid()
        writer.close()
        monkeypatch.setattr(listen, "peer_uid", lambda _: os.getuid() + 1)
        reader, writer = await open_raw(server.address)
        writer.write(raw_request("/v1/health"))
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
        assert answer == b""
        writer.close()
        monkeypatch.undo()
        assert (await exchange(server.address, raw_request("/v1/health"))).status == 200


def test_token_is_created_once_with_private_mode(tmp_path: Path) -> None:
    token = read_or_make_token(tmp_path)
    assert len(token) >= 43
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert read_or_make_token(tmp_path) == token
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("content", ["", "\n", "short", "ü"])
def test_incomplete_token_file_admits_no_request(tmp_path: Path, content: str) -> None:
    """A crash may leave an empty file; an empty token must not admit requests without one."""
    (tmp_path / "token").write_text(content)
    (tmp_path / "token").chmod(0o600)
    token = read_or_make_token(tmp_path)
    assert len(token) >= 43
    assert (tmp_path / "token").read_text().strip() == token


def test_token_readable_by_others_is_replaced(tmp_path: Path) -> None:
    first = read_or_make_token(tmp_path)
    (tmp_path / "token").chmod(0o644)
    assert read_or_make_token(tmp_path) != first
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


TOKEN = "t" * 43


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        (TOKEN, 0o600, ""),
        (f"\n{TOKEN}\n", 0o400, ""),
        (None, 0, r"does not exist: create it, or correct its path\."),
        ("", 0o600, r"is empty: write one with openssl rand -base64 33 > /.*token"),
        (" \n", 0o600, r"is empty: write one"),
        ("t" * 42, 0o600, r"does not contain one word of at least 43 characters: write one"),
        (f"{TOKEN} {TOKEN}", 0o600, r"one word of at least 43"),
        ("ü" * 50, 0o600, r"one word of at least 43"),
        (
            TOKEN,
            0o644,
            r"can be read or changed by other users \(mode 644\): make it yours, and use chmod 600 /",
        ),
        (TOKEN, 0o620, r"can be read or changed by other users \(mode 620\)"),
    ],
)
def test_token_file_of_a_cluster(tmp_path: Path, content: str | None, mode: int, sentence: str) -> None:
    """It is never replaced, because other servers use it too; the token is in no message."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    if not sentence:
        assert read_token_file(str(file)) == TOKEN
        return
    with pytest.raises(StoreMisconfigured, match=sentence) as caught:
        read_token_file(str(file))
    assert "ttt" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert content is None or file.read_text() == content


def test_token_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match="is not a regular file"):
        read_token_file(str(tmp_path))
    owned = tmp_path / "token"
    owned.write_text(TOKEN)
    owned.chmod(0o600)
    if os.getuid() == 0:
        os.chown(owned, 65_534, 65_534)
        with pytest.raises(StoreMisconfigured, match="make it yours"):
            read_token_file(str(owned))


def test_tokens_are_compared_in_constant_time() -> None:
    assert "compare_digest" in token_auth.TokenAuth.refusal.__code__.co_names


async def test_r12_requests_of_browsers_and_clients_without_token_have_no_effect() -> None:
    """R12: refused before anything else is processed."""
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        before = await client.snapshot(workspace)
        tried = attempts(server.tcp, workspace, session)
        own = f"http://127.0.0.1:{server.tcp.port}"
        tried["its own origin"] = with_origin(server.tcp, workspace, session, own)
        assert len(tried) >= 55
        for name, request in tried.items():
            answer = await exchange(server.tcp, request)
            assert 400 <= answer.status < 500, name
            assert "access-control-allow-origin" not in answer.head.headers, name
            assert server.tcp.token.encode() not in answer.body, name
            assert workspace.encode() not in answer.body, name
        assert await client.snapshot(workspace) == before
        assert len(server.manager.handles) == 1
        assert server.over is not None
        assert not server.over.done()


async def test_r12_connection_reset_before_admission_is_not_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R12: its peer address is gone, and it must not be taken for a client of the Unix socket."""
    refused: list[object] = []
    refusal = token_auth.TokenAuth.refusal

    def record_scope(guard: token_auth.TokenAuth, scope: Scope) -> tuple[int, bytes] | None:
        refused.append(refusal(guard, scope))
        return refusal(guard, scope)

    monkeypatch.setattr(token_auth.TokenAuth, "refusal", record_scope)
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        body = b'{"session_id":"%s","prompt":"evil"}' % session.encode()
        request = raw_request(f"/v1/workspaces/{workspace}/agent", "POST", body)
        for _ in range(20):
            with socket.create_connection((server.tcp.host, server.tcp.port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(request)
        await until(lambda: len(refused) == 20)
        await client.health()
        assert await client.list_runs(workspace) == ()
        assert None not in refused


async def test_tcp_client_with_token_is_admitted() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        client = await server.client(server.tcp)
        workspace = (await client.create_workspace(directory.project())).id
        session = (await client.create_session(workspace, "s")).id
        assert (await send_prompt(client, workspace, session, "x", "r1")).run_id == "r1"
        assert (await client.cancel_session(workspace, session)).cancelled in ((), ("r1",))


async def test_secrets_are_never_returned_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The environment of a client is not returned over TCP; keys and the token are never returned or logged."""
    caplog.set_level(logging.DEBUG)
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        client = await server.client()
        env = (f"KEY={_SECRET}-env",)
        workspace = (await client.create_workspace(directory.project(), env=env)).id
        key = f"{_SECRET}-key"
        await client.config_provider_key(workspace, {"provider_id": "demo", "api_key": key, "scope": 1})
        await client.config_set(workspace, "providers.other", {"api_key": key, "oauth": {"access_token": key}})
        await client.config_set(workspace, "mcp.x.headers", {"Authorization": key})
        base = f"/v1/workspaces/{workspace}"
        paths = ["/v1/workspaces", "/v1/config", "/v1/version", base]
        paths += [base + path for path in ("/config", "/providers", "/snapshot", "/agent", "/mcp/states", "/runs")]
        headers = [f"Host: 127.0.0.1:{server.tcp.port}", f"Authorization: Bearer {server.tcp.token}"]
        for path in paths:
            for address, given in ((server.tcp, headers), (server.address, [])):
                answer = await exchange(address, raw_request(path, headers=given))
                assert answer.status == 200, path
                assert key.encode() not in answer.body, path
                assert address.path or _SECRET.encode() not in answer.body, path
                assert server.tcp.token.encode() not in answer.body, path
        assert (await client.get_workspace(workspace)).env == env
    assert _SECRET not in caplog.text
    assert server.tcp.token not in caplog.text
