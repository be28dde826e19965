"""The port for relayed requests: its options and TLS, a real owner that is suspended or killed, secrets, readiness."""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from cluster.relay_nodes import CLIENT, execute, node, query
from cluster.test_relay import assert_unavailable
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import locate
from holdfast.cluster.ports import RelayTarget
from holdfast.cluster.postgres_cluster import PostgresCluster, application_name
from holdfast.domain.errors import StoreMisconfigured
from holdfast.domain.ids import NodeId
from holdfast.server.relay.relay_address import RelayOptions, parse_address
from holdfast.server.relay.relay_listener import bind_relay
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.open_store import open_pool
from holdfast.storage.postgres.store_address import StoreAddress
from holdfast.testing.gates import until
from postgres_server import new_database, postgres_server
from server.helpers import exchange, raw_request, server_directory, server_process


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    async with new_database() as made:
        yield made


WRONG_OPTIONS = (
    (RelayOptions("127.0.0.1:7440"), "is not an address of a server"),
    (RelayOptions("tcp://127.0.0.1:7440"), "is not an address of a server"),
    (RelayOptions("unix:///tmp/s"), "is not an address of a server"),
    (RelayOptions("http://127.0.0.1:7440/path"), "is not an address of a server"),
    (RelayOptions("http://user:secret@127.0.0.1:7440"), "is not an address of a server"),
    (RelayOptions("http://0.0.0.0:7440"), "also give --advertise http://NAME:PORT"),
    (RelayOptions("http://[::]:7440"), "also give --advertise http://NAME:PORT"),
    (RelayOptions("http://0.0.0.0:7440", "http://0.0.0.0:7440"), "cannot connect to --advertise"),
    (RelayOptions("http://0.0.0.0:7440", "http://name:0"), "cannot connect to --advertise"),
    (RelayOptions("http://0.0.0.0:7440", "name:7440"), "--advertise 'name:7440' is not an address"),
    (RelayOptions(advertise="http://name:7440"), "--advertise needs --relay"),
    (RelayOptions(cert="/c"), "--relay-cert needs --relay"),
    (RelayOptions(key="/k"), "--relay-key needs --relay"),
    (RelayOptions("http://127.0.0.1:0", cert="/c"), "--relay-cert needs --relay https://"),
    (RelayOptions("http://127.0.0.1:0", key="/k"), "--relay-key needs --relay-cert"),
    (RelayOptions("https://127.0.0.1:0"), "needs --relay-cert FILE"),
    (RelayOptions("https://127.0.0.1:0", "http://name:7440", cert="/c"), "also write --advertise as https"),
    (RelayOptions("https://127.0.0.1:0", cert="/nowhere"), "/nowhere of --relay-cert cannot be used: no such file"),
    (RelayOptions("https://127.0.0.1:0", cert="{junk}"), "of --relay-cert cannot be used"),
    (RelayOptions(ca="/nowhere"), "/nowhere of --relay-ca cannot be used: no such file"),
    (RelayOptions(ca="{junk}"), "of --relay-ca cannot be used"),
)


def test_wrong_options_are_one_sentence_with_a_remedy(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for options, part in WRONG_OPTIONS:
        filled = RelayOptions(*(getattr(options, name).format(junk=junk) for name in options.__struct_fields__))
        with ExitStack() as stack, pytest.raises(StoreMisconfigured) as refused:
            bind_relay(filled, str(tmp_path / "s"), stack)
        assert part in str(refused.value), options


def test_what_is_advertised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = _certificate(tmp_path / "tls", "IP:127.0.0.1")
    cases = (
        (RelayOptions(), f"unix://{tmp_path}/s.relay", 0),
        (RelayOptions("http://127.0.0.1:0"), "http://127.0.0.1:", 0),
        (RelayOptions("http://0.0.0.0:0", "http://node1.example:7440"), "http://node1.example:7440", 1),
        (RelayOptions("http://127.0.0.1:0", "https://node1.example"), "https://node1.example", 0),
        (RelayOptions("https://0.0.0.0:0", "https://node1.example:1", certificate, key), "https://node1.example:1", 0),
    )
    for options, address, warnings in cases:
        caplog.clear()
        with ExitStack() as stack:
            relayed = bind_relay(options, str(tmp_path / "s"), stack)
        assert relayed.address.startswith(address), options
        assert len([item for item in caplog.records if item.levelno == logging.WARNING]) == warnings, options


def test_addresses_are_read_as_they_are_written() -> None:
    for text in ("http://a:1", "https://a.example", "http://[::1]:80", "unix:///a/b", "http://10.0.0.1:65535"):
        address = parse_address(text)
        assert address is not None
        assert parse_address(address.url) == address
    exposed = {
        text: getattr(parse_address(text), "is_exposed", None)
        for text in ("http://a:1", "https://a", "http://127.0.0.9:1")
    }
    assert exposed == {"http://a:1": True, "https://a": False, "http://127.0.0.9:1": False}


def _certificate(folder: Path, name: str) -> tuple[str, str]:
    """Return the files of a certificate for a name (`IP:...` or `DNS:...`) that is its own authority, and its key."""
    folder.mkdir()
    certificate, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-days", "2", "-subj", "/CN=node", "-addext", f"subjectAltName={name}"]
    subprocess.run([*command, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    return certificate, key


async def test_relay_with_tls_verifies_the_certificate(dsn: str, tmp_path: Path) -> None:
    good, key = await asyncio.to_thread(_certificate, tmp_path / "good", "IP:127.0.0.1")
    wrong_name, other_key = await asyncio.to_thread(_certificate, tmp_path / "other", "DNS:node.example")
    for certificate, its_key, authority, status in (
        (good, key, good, 200),
        (good, key, wrong_name, 503),
        (good, key, "", 503),
        (wrong_name, other_key, wrong_name, 503),
    ):
        secure = RelayOptions("https://127.0.0.1:0", "", certificate, its_key)
        async with node(dsn, secure) as owner, node(dsn, RelayOptions(ca=authority)) as other:
            path = f"/workspaces/{await owner.open()}"
            (owner.directory.root / "project/a.txt").write_text("x" * 200_000)
            response = await other.call("GET", f"{path}/files/read?path=a.txt")
            assert response.status == status
            if status == 503:
                assert_unavailable(response, "is not trusted: start this one with --relay-ca")
            else:
                assert len(response.body) > 200_000
                assert (await other.call("POST", f"{path}/lsps/stop")).status == 200
                port = int(owner.relay_address.rpartition(":")[2])
                # Without encryption nothing is answered.
                with pytest.raises(OSError, match=r"reset|closed|not HTTP"):
                    await exchange(ServerAddress(host="127.0.0.1", port=port), raw_request("/v1/version"))


async def test_an_owner_that_is_suspended_or_killed(dsn: str, tmp_path: Path) -> None:
    """With the real lease times. The other node does not have the disk of its place, so it cannot take over."""
    certificate, key = await asyncio.to_thread(_certificate, tmp_path / "tls", "IP:127.0.0.1")
    async with server_directory() as directory, node(dsn, RelayOptions(ca=certificate)) as other:
        files = ("--relay-cert", certificate, "--relay-key", key)
        options = ("--store", dsn, "--relay", "https://127.0.0.1:0", *files, "--verbose")
        async with server_process(directory, *options) as process:
            project = {"path": directory.project(), "client_id": CLIENT}
            environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory.root), "HOLDFAST_HOST": ""}
            address = locate(None, str(directory.data), environment).address
            opened = await other.call("POST", "/workspaces", project, address=address)
            path = f"/workspaces/{opened.json['id']}"

            async def is_relayed() -> bool:
                return (await other.call("GET", f"{path}/files")).status == 200

            assert await is_relayed()
            token = await query(dsn, "SELECT relay_token FROM holdfast.nodes WHERE address LIKE 'https:%'")
            loop = asyncio.get_running_loop()
            process.process.send_signal(signal.SIGSTOP)
            begin = loop.time()
            assert_unavailable(await other.call("GET", f"{path}/files"), "The server that owns")
            assert loop.time() - begin < 10
            assert (await other.call("GET", f"{path}/config")).status == 200
            process.process.send_signal(signal.SIGCONT)
            # It joins again, under a new token, and owns its place.
            async with asyncio.timeout(20):
                while not await is_relayed():
                    pass
            renewed = await query(dsn, "SELECT relay_token FROM holdfast.nodes WHERE address LIKE 'https:%'")
            assert renewed != token
            process.process.kill()
            await process.wait()
            begin = loop.time()
            assert (await other.call("GET", f"{path}/files")).status == 503
            assert loop.time() - begin < 6
            log = process.log.read_text()
            assert token not in log
            assert renewed not in log


# Secrets


async def test_no_token_is_shown(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = RelayOptions("http://127.0.0.1:0")
    async with node(dsn, options) as owner, node(dsn) as other:
        path = f"/workspaces/{await owner.open()}"
        connection = await asyncpg.connect(dsn)
        tokens = [row["relay_token"] for row in await connection.fetch("SELECT relay_token FROM holdfast.nodes")]
        await connection.close()
        assert len(set(tokens)) == 2
        seen = ""
        for member in (owner, other):
            for target in (path, f"{path}/config", "/config", f"{path}/doctor", f"{path}/files", "/version"):
                seen += (await member.call("GET", target)).body.decode()
        await execute(dsn, "UPDATE holdfast.nodes SET address = $2 WHERE id = $1", owner.id, other.relay_address)
        seen += (await other.call("GET", f"{path}/files")).body.decode()
        assert other.manager.host is not None
        seen += repr(await other.manager.host.cluster.relay_target(await owner.open()))
        seen += repr(await other.manager.host.cluster.list_nodes())
    seen += caplog.text
    assert not [token for token in tokens if token in seen]
    assert "0123" not in repr(RelayTarget(NodeId("n"), "http://a:1", "0123"))


# Readiness


async def test_a_node_is_ready_while_the_store_answers_and_it_does_not_leave() -> None:
    with postgres_server() as server:
        async with new_database(server) as dsn, node(dsn) as member:
            assert (await member.call("GET", "/health")).status == 200
            assert (await member.call("GET", "/health")).body == b""
            server.stop(signal.SIGQUIT)
            loop = asyncio.get_running_loop()
            begin = loop.time()
            response = await member.call("GET", "/health")
            assert response.status == 503
            assert loop.time() - begin < 6
            assert (await member.call("GET", "/version")).status == 200, "it lives"
            server.start()
            while (await member.call("GET", "/health")).status != 200:
                pass
            member.manager.is_draining = True
            assert_unavailable(await member.call("GET", "/health"), "leaves the cluster")
            member.manager.is_draining = False


# Rights


async def test_an_ordinary_role_creates_the_schema_and_evicts_a_node() -> None:
    """Exactly the statements of docs/postgresql.md: no superuser, no further grant."""
    async with new_database(is_empty=True) as dsn:
        role = f"plain_{abs(hash(dsn)) % 10_000_000}"
        name = await query(dsn, "SELECT current_database()")
        for statement in (
            f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
            f"REVOKE ALL ON DATABASE {name} FROM PUBLIC",
            f"GRANT CONNECT ON DATABASE {name} TO {role}",
            f"CREATE SCHEMA holdfast AUTHORIZATION {role}",
        ):
            await execute(dsn, statement)
        try:
            limited = dsn.replace("user=postgres", f"user={role}")
            names = application_name("first"), application_name("second")
            pools = [await open_pool(StoreAddress(limited), 5, item) for item in names]
            # A connection of another role with the name of the dead node is not its own.
            foreign = Pool({"dsn": dsn, "server_settings": {"application_name": names[0]}})
            await foreign.open()
            first, second = PostgresCluster(pools[0]), PostgresCluster(pools[1])
            await first.join(NodeId("a"), frozenset({"p"}), "")
            await second.join(NodeId("b"), frozenset({"p"}), "")
            lost: list[bool] = []
            listener = await first.listen(NodeId("a"), lambda *_: None, lambda: lost.append(True))
            assert await second.evict(NodeId("b"), NodeId("a"), 0, by_hint=True)
            await until(lambda: lost)
            count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1"
            while await query(dsn, count, names[0]) != 1:
                pass
            assert (await foreign.fetch("SELECT 1 AS one"))[0]["one"] == 1
            await listener.close()
            for pool in (*pools, foreign):
                await pool.close()
        finally:
            await execute(dsn, "DROP SCHEMA holdfast CASCADE")
            await execute(dsn, f"DROP OWNED BY {role}")
            await execute(dsn, f"DROP ROLE {role}")
