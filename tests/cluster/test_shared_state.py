"""State that all servers of a cluster share: two real servers on one PostgreSQL."""

import asyncio
import logging
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import parse_qs

import asyncpg
import msgspec
import pytest

from cluster.node_servers import POLL_SECONDS, Nodes, NodeServer, nodes
from holdfast.client.errors import ServerProblem
from holdfast.client.server_address import ServerAddress
from holdfast.config.credentials import Token
from holdfast.config.sealed_documents import KeyFile, SharedTokens
from holdfast.domain.errors import StoreMisconfigured
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.http11.client_messages import ConnectionBroken
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.server.serve import ServerOptions, serve
from holdfast.server.web import web_app, web_auth
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.shared_documents import SharedDocuments
from holdfast.testing.gates import until
from holdfast.testing.harness import FixedModels
from model_server.script import Reply
from model_server.script import Say as ModelSay
from model_server.server import ModelServer
from server.helpers import RawStream, exchange, raw_request

VISIBLE_SECONDS = 2.5
"""A notification takes milliseconds; the poll that replaces a lost one takes a second."""


@pytest.fixture
async def cluster() -> AsyncIterator[Nodes]:
    async with nodes() as made:
        yield made


@pytest.fixture
async def pair(cluster: Nodes) -> tuple[NodeServer, NodeServer]:
    return await cluster.start("a"), await cluster.start("b")


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = VISIBLE_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - a condition of another server
            # Threads need the interpreter lock that a loop without a pause would keep.
            await asyncio.sleep(POLL_SECONDS)


async def rows(cluster: Nodes) -> bytes:
    """Return everything that the documents in the database contain."""
    connection = await asyncpg.connect(cluster.dsn)
    try:
        found = await connection.fetch("SELECT name, body FROM holdfast.documents")
    finally:
        await connection.close()
    return b"\n".join(row["name"].encode() + b" " + (row["body"] or b"") for row in found)


@pytest.mark.parametrize("scope", [0, 1])
async def test_setting_of_one_node_is_seen_by_all(
    cluster: Nodes, pair: tuple[NodeServer, NodeServer], scope: int
) -> None:
    a, b = pair
    workspace = await cluster.open(a)
    assert await cluster.open(b) == workspace

    async def shown(server: NodeServer) -> Any:  # noqa: ANN401 - any JSON
        return (await server.client.get_config(workspace))["options"].get("ask_timeout")

    await a.client.config_set(workspace, "options.ask_timeout", 77, scope=scope)

    async def is_shown(server: NodeServer) -> bool:
        return bool(await shown(server) == 77)

    # The owner answers with the settings in effect, and may be the other node.
    for server in (a, b):
        await eventually(lambda server=server: is_shown(server))  # type: ignore[misc]
    await b.client.config_remove(workspace, "options.ask_timeout", scope=scope)

    async def gone_at_a() -> bool:
        return bool(await shown(a) != 77)

    await eventually(gone_at_a)
    assert not (a.directory / "data" / "config.json").exists()


async def test_concurrent_changes_at_two_nodes_are_all_kept(
    cluster: Nodes, pair: tuple[NodeServer, NodeServer]
) -> None:
    workspace = await cluster.open(pair[0])
    await cluster.open(pair[1])
    names = [f"n{number}" for number in range(12)]
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            client = pair[number % 2].client
            group.create_task(client.config_set(workspace, f"env.{name}", name))
    for server in pair:

        async def all_are_there(server: NodeServer = server) -> bool:
            return set((await server.client.get_config(workspace)).get("env", {})) == set(names)

        await eventually(all_are_there)


async def test_rule_that_a_client_of_another_node_allows_always_is_saved_once_for_all(cluster: Nodes) -> None:
    def act(request: Any) -> Step:  # noqa: ANN401 - the request of a model
        is_first = request.messages[-1].role == "user"
        return Step((Call("bash", '{"command":"touch made"}'),) if is_first else (Say("done"),))

    models = FixedModels(ScriptedModel(act))
    a, b = await cluster.start("a", models), await cluster.start("b", models)
    workspace = await cluster.open(a)
    session = await a.client.create_session(workspace, "s")
    await a.client.send_prompt(workspace, AgentMessage(session.id, "make it"))
    await cluster.open(b)

    async def asked() -> bool:
        return bool(await b.client.pending_permissions(workspace))

    await eventually(asked, 10)
    (request,) = await b.client.pending_permissions(workspace)
    await b.client.grant(workspace, {"permission": msgspec.to_builtins(request), "action": "allow_always"})

    async def saved(server: NodeServer) -> bool:
        rules = (await server.client.get_config(workspace)).get("permissions", {}).get("allow", [])
        return len(rules) == 1 and "touch made" in rules[0]

    for server in (a, b):
        await eventually(lambda server=server: saved(server), 5)  # type: ignore[misc]
    assert b"touch made" in await rows(cluster)
    await until((Path(cluster.project) / "made").exists)


async def test_project_that_is_trusted_at_one_node_is_trusted_at_all(
    cluster: Nodes, pair: tuple[NodeServer, NodeServer]
) -> None:
    write_project_settings(cluster)
    a, b = pair
    workspace = await cluster.open(a)
    await cluster.open(b)
    shown = await a.client.get_trust(workspace)
    assert not shown.trusted
    assert (await a.client.set_trust(workspace, trusted=True, digest=shown.digest)).trusted

    async def trusted_at_b() -> bool:
        return (await b.client.get_trust(workspace)).trusted

    async def untrusted_at_a() -> bool:
        return not (await a.client.get_trust(workspace)).trusted

    await eventually(trusted_at_b)
    await b.client.set_trust(workspace, trusted=False)
    await eventually(untrusted_at_a)


async def test_key_that_a_client_saves_stays_at_its_node(cluster: Nodes, pair: tuple[NodeServer, NodeServer]) -> None:
    a, b = pair
    workspace = await cluster.open(a)
    await cluster.open(b)
    body = {"provider_id": "openai", "api_key": "sk-plain-secret-1"}
    await a.client.config_provider_key(workspace, body)
    await a.client.config_set(workspace, "providers.mine", {"base_url": "http://x/", "api_key": "sk-plain-secret-2"})

    async def shown_at_b() -> bool:
        return "mine" in await providers(b)

    async def providers(server: NodeServer) -> dict[str, Any]:
        found: dict[str, Any] = (await server.client.server_config())["providers"]
        return found

    await eventually(shown_at_b)
    assert {name: "api_key" in item for name, item in (await providers(a)).items()} == {"openai": True, "mine": True}
    assert "api_key" not in (await providers(b))["mine"]
    assert b"sk-plain" not in await rows(cluster)
    file = a.directory / "data" / "provider-keys.json"
    assert file.stat().st_mode & 0o777 == 0o600
    await a.client.config_remove(workspace, "providers.mine")
    assert "mine" not in await providers(a)


# With a key file


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key file that the settings of all servers of this test name, and a small web page."""
    path = tmp_path / "key"
    path.write_text("k" * 44)
    path.chmod(0o600)
    settings = tmp_path / "config" / "holdfast" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[storage]\nkey_file = '{path}'\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(web_app, "BUNDLE", tmp_path)
    return path


async def page_request(
    port: int, path: str, body: object = None, token: str = "", method: str = "POST"
) -> tuple[int, Any]:
    """Send a request as the script of the page does. Return status and body."""
    address = ServerAddress(host="127.0.0.1", port=port)
    lines = [f"Host: 127.0.0.1:{port}", f"Origin: http://127.0.0.1:{port}", "Content-Type: application/json"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    raw = None if body is None else msgspec.json.encode(body)
    response = await exchange(address, raw_request(path, method, raw, lines))
    return response.status, response.json


async def return_at(port: int, page: dict[str, str]) -> tuple[int, Any]:
    """Return as a page that has its key but no valid token."""
    status, greeting = await page_request(port, "/v1/web/hello", {"page": page["page"], "nonce": "n" * 16})
    if status != 200:
        return status, greeting
    assert greeting["proof"] == web_auth.proof(page["key"], "server", port, "n" * 16, greeting["nonce"])
    proof = web_auth.proof(page["key"], "page", port, "n" * 16, greeting["nonce"])
    return await page_request(port, "/v1/web/return", {"page": page["page"], "proof": proof})


async def test_browser_that_signed_in_at_one_node_is_signed_in_at_all_until_it_signs_out(
    cluster: Nodes, key_file: Path
) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    links = [await server.client.open_web() for server in (a, b)]
    ports = [int(link.url.rpartition(":")[2].strip("/")) for link in links]
    status, page = await page_request(ports[0], "/v1/web/exchange", {"code": links[0].code})
    assert status == 200

    page_at_b: dict[str, str] = {}

    async def returned() -> bool:
        status, credentials = await return_at(ports[1], page)
        page_at_b.update(credentials)
        return status == 200

    await eventually(returned)
    for port, token in zip(ports, (page["token"], page_at_b["token"]), strict=True):
        assert (await page_request(port, "/v1/version", None, token, "GET"))[0] == 200
    stored = await rows(cluster)
    for secret in (page["key"], page["token"], page["page"], page_at_b["token"]):
        assert secret.encode() not in stored
    # A request of the page that is still answered when it is signed out.
    workspace = await cluster.open(b)
    lines = [f"Host: 127.0.0.1:{ports[1]}", f"Authorization: Bearer {page_at_b['token']}"]
    stream = await RawStream.open(
        ServerAddress(host="127.0.0.1", port=ports[1]), f"/v1/workspaces/{workspace}/events", lines
    )
    await a.client.close_web()

    async def signed_out() -> bool:
        try:
            return (await page_request(ports[1], "/v1/version", None, page_at_b["token"], "GET"))[0] == 401
        except (ConnectionBroken, ConnectionError):
            # Its connections were aborted at this moment.
            return False

    await eventually(signed_out)
    with suppress(ConnectionError):
        await stream.rest()
    stream.writer.close()
    assert (await return_at(ports[1], page))[0] == 400
    again = await a.client.open_web()
    assert (await return_at(int(again.url.rpartition(":")[2].strip("/")), page))[0] == 400


async def test_page_that_signed_out_elsewhere_does_not_return_to_a_restarted_node(
    cluster: Nodes, key_file: Path
) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    link = await b.client.open_web()
    port = int(link.url.rpartition(":")[2].strip("/"))
    _, page = await page_request(port, "/v1/web/exchange", {"code": link.code})
    cluster.running.remove(b)
    await b.stop()
    again = await cluster.start("b")

    async def returned() -> bool:
        try:
            return (await return_at(port, page))[0] == 200
        except ConnectionError:
            return False

    await eventually(returned)
    cluster.running.remove(again)
    await again.stop()
    await a.client.close_web()
    last = await cluster.start("b")
    link = await last.client.open_web()
    assert (await return_at(int(link.url.rpartition(":")[2].strip("/")), page))[0] == 400


async def test_token_that_is_refreshed_at_two_nodes_is_exchanged_once(cluster: Nodes, key_file: Path) -> None:
    """The token service accepts each refresh token once, as rotation requires."""
    exchanged: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))[15:])
        used = parse_qs((await reader.readexactly(length)).decode())["refresh_token"][0]
        is_new = used not in exchanged
        exchanged.append(used)
        number = len(exchanged)
        body = {"access_token": f"access-{number}", "refresh_token": f"refresh-{number}", "expires_in": 3600}
        raw = msgspec.json.encode(body if is_new else {"error": "invalid_grant"})
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
        await writer.drain()
        writer.close()

    a, b = await cluster.start("a"), await cluster.start("b")
    service = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}/token"
    pool = Pool({"dsn": cluster.dsn})
    await pool.open()
    documents = SharedDocuments(pool)
    tokens = SharedTokens(documents, KeyFile(str(key_file)))
    await documents.refresh()
    await asyncio.to_thread(tokens.update, lambda _: {"p": Token("access-0", "refresh-0", token_url=url)})
    workspace = await cluster.open(a)
    await cluster.open(b)

    async def refreshed(server: NodeServer) -> bool:
        try:
            await server.client.config_refresh_oauth(workspace, {"provider_id": "p"})
        except ServerProblem:
            # The node has not read the document yet.
            return False
        return True

    async with asyncio.TaskGroup() as group:
        for server in (a, b, a, b):
            group.create_task(eventually(lambda server=server: refreshed(server)))  # type: ignore[misc]
    await documents.refresh()
    assert exchanged == [f"refresh-{number}" for number in range(len(exchanged))], "each was valid"
    assert tokens.read()["p"].refresh_token == f"refresh-{len(exchanged)}"
    assert b"refresh-" not in await rows(cluster)
    await pool.close()
    service.close()


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.mark.parametrize("text", ["w" * 44, ""])
async def test_node_with_another_key_works_except_for_tokens_and_sign_ins(
    cluster: Nodes, key_file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    a = await cluster.start("a")
    link = await a.client.open_web()
    await page_request(int(link.url.rpartition(":")[2].strip("/")), "/v1/web/exchange", {"code": link.code})
    rewrite(key_file, text)
    b = await cluster.start("b")
    workspace = await cluster.open(b)
    with pytest.raises(ServerProblem, match=r"Use the same file on all servers|is empty"):
        await b.client.config_refresh_oauth(workspace, {"provider_id": "p"})
    await b.client.config_set(workspace, "options.ask_timeout", 5)

    async def is_shown() -> bool:
        return bool((await b.client.get_config(workspace))["options"]["ask_timeout"] == 5)

    await eventually(is_shown)
    found = await b.client.doctor(workspace, "store")
    assert [item.severity for item in found.findings if "key file" in item.what] == ["error"]
    assert len([record for record in caplog.records if "key file" in record.message]) == 1


# Outputs of commands


def output_model() -> FixedModels:
    """A model that runs a command with a long output, and views the file with it in the next prompt."""

    def act(request: Any) -> Step:  # noqa: ANN401 - the request of a model
        last = request.messages[-1]
        if last.role != "user":
            return Step((Say("done"),))
        if text_of(last) == "make":
            return Step((Call("bash", '{"command":"seq 1 20000"}'),))
        results = [result.content for message in request.messages for result in message.tool_results]
        path = re.findall(r" is in (/\S+\.txt)", " ".join(results))[-1]
        return Step((Call("view", msgspec.json.encode({"file_path": path, "limit": 3}).decode()),))

    return FixedModels(ScriptedModel(act))


async def run_prompt(server: NodeServer, workspace: WorkspaceId, session: SessionId, prompt: str) -> list[str]:
    """Send a prompt, wait for its end and return the results of all tool calls so far."""
    known = len([item for item in await server.client.list_messages(workspace, session) if text_of(item) == "done"])
    await server.client.send_prompt(workspace, AgentMessage(session, prompt, yolo=True))

    async def is_over() -> bool:
        messages = await server.client.list_messages(workspace, session)
        answers = [message for message in messages if message.role == "assistant" and text_of(message) == "done"]
        return len(answers) > known

    await eventually(is_over, 10)
    messages = await server.client.list_messages(workspace, session)
    return [result.content for message in messages for result in message.tool_results]


@pytest.mark.parametrize("is_shared", [True, False])
async def test_output_of_an_earlier_owner_is_shared_or_named_as_not_available(
    cluster: Nodes, *, is_shared: bool
) -> None:
    directory = cluster.root / "volume"
    directory.mkdir()
    options: dict[str, Any] = {"shared_dir": str(directory)} if is_shared else {}
    a = await cluster.start("a", output_model(), **options)
    workspace = await cluster.open(a)
    session = (await a.client.create_session(workspace, "s")).id
    (made,) = await run_prompt(a, workspace, session, "make")
    assert (str(directory) in made) is is_shared
    b = await cluster.start("b", output_model(), **options)
    await cluster.open(b)
    cluster.running.remove(a)
    await a.stop()
    if not is_shared:
        shutil.rmtree(a.directory)
    seen = (await run_prompt(b, workspace, session, "view"))[-1]
    if is_shared:
        assert "1|1" in seen
        assert "3|3" in seen
    else:
        assert seen.startswith("This output was stored on the disk of the server that owned the workspace before")


# Options


async def test_all_nodes_accept_one_token(cluster: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.server")
    file = private_file(tmp_path / "token", "t" * 44)
    for name in ("a", "b"):
        await cluster.start(name, token_file=str(file), tcp=("127.0.0.1", 0))
    ports = [int(port) for port in re.findall(rf"listening at 127.0.0.1:(\d+); the token is in {file}", caplog.text)]
    assert len(ports) == 2
    for port in ports:
        for token, status in (("t" * 44, 200), ("w" * 44, 401)):
            lines = [f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token}"]
            address = ServerAddress(host="127.0.0.1", port=port)
            assert (await exchange(address, raw_request("/v1/version", headers=lines))).status == status
    assert "tttt" not in caplog.text
    assert not (cluster.root / "a" / "data" / "token").exists()


def private_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"token_file": "/nowhere/token"}, "The token file /nowhere/token does not exist"),
        ({"shared_dir": "/tmp", "place": ""}, "--shared-dir is on a volume that servers share: also give --label"),
        ({"shared_dir": "/nowhere"}, "--shared-dir /nowhere is not a directory: mount its volume"),
        ({"shared_dir": "/tmp", "store": "", "place": ""}, "--shared-dir is for servers that share a store"),
    ],
)
async def test_option_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    """Before the store is connected: nothing answers at this address."""
    given: dict[str, Any] = {"store": "postgresql:///d?host=/nowhere", "place": "p", **options}
    with pytest.raises(StoreMisconfigured, match=re.escape(sentence)):
        await serve(ServerOptions(tmp_path / "data", tmp_path / "s", wait=0, **given))


# Keys


@pytest.fixture
async def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModelServer]:
    """A provider that the settings of all servers name; its key is a variable of the client."""
    async with ModelServer([Reply((ModelSay(("from the provider",)),))]) as server:
        settings = tmp_path / "config" / "holdfast" / "config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(
            f"[providers.mine]\ntype = 'openai-compat'\nbase_url = '{server.base_url()}'\n"
            "api_key = '$MINE_KEY'\nmodels = [{ id = 'm' }]\n[options]\ndisable_default_providers = true\n"
        )
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        yield server


async def outcome(server: NodeServer, workspace: WorkspaceId, run: RunId) -> str:
    found = await server.client.get_run(workspace, run)
    return found.outcome or found.state


async def wait_for_outcome(server: NodeServer, workspace: WorkspaceId, run: RunId, expected: str) -> None:
    async def is_reached() -> bool:
        return await outcome(server, workspace, run) == expected

    await eventually(is_reached, 10)


@pytest.mark.parametrize(
    ("remedy", "model"),
    [
        ("key", "chosen"),
        ("key", "open"),
        ("key", "required"),
        ("takeover", "chosen"),
        ("takeover", "open"),
        ("cancel", "open"),
    ],
)
async def test_run_waits_at_a_node_without_a_key(
    cluster: Nodes, provider: ModelServer, caplog: pytest.LogCaptureFixture, remedy: str, model: str
) -> None:
    """Without a selected model, the scripted tour does not answer in the place of the model of another node."""
    a = await cluster.start("a", selects=True)
    workspace = (await a.client.create_workspace(cluster.project, env=("MINE_KEY=k",))).id
    session = (await a.client.create_session(workspace, "s")).id
    if model == "chosen":
        await a.client.config_set(workspace, "models.large", {"model": "m", "provider": "mine"})
    first = await a.client.send_prompt(workspace, AgentMessage(session, "one"))
    await wait_for_outcome(a, workspace, first.run_id, "completed")
    cluster.running.remove(a)
    await a.stop()
    b = await cluster.start("b", selects=True)
    await b.client.create_workspace(cluster.project)
    second = await b.client.send_prompt(workspace, AgentMessage(session, "two", require_model=model == "required"))

    async def is_waiting() -> bool:
        return "The run waits until this server has a model" in caplog.text

    await eventually(is_waiting, 10)
    assert await outcome(b, workspace, second.run_id) in ("accepted", "waiting")
    assert len([item for item in caplog.records if "The run waits" in item.message]) == 1
    if remedy == "cancel":
        await b.client.cancel_run(workspace, second.run_id)
        await wait_for_outcome(b, workspace, second.run_id, "cancelled")
        return
    if remedy == "key":
        await b.client.create_workspace(cluster.project, env=("MINE_KEY=k",))
        await wait_for_outcome(b, workspace, second.run_id, "completed")
    else:
        c = await cluster.start("c", selects=True)
        await c.client.create_workspace(cluster.project, env=("MINE_KEY=k",))
        cluster.running.remove(b)
        await b.stop()
        await wait_for_outcome(c, workspace, second.run_id, "completed")
    assert [request.headers["authorization"] for request in provider.requests[:1]] == ["Bearer k"]


# Commands without a server


async def test_commands_read_and_change_what_the_cluster_shares(
    cluster: Nodes, pair: tuple[NodeServer, NodeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project_settings(cluster)
    workspace = await cluster.open(pair[0])
    await pair[0].client.config_set(workspace, "options.max_steps", 7, scope=1)
    for dsn in ("postgresql://nobody:hidden@127.0.0.1:1/none", cluster.dsn):
        monkeypatch.setenv("HOLDFAST_STORE", dsn)
        code, output = await command("config", "get", "options.max_steps", "--cwd", cluster.project)
        if "hidden" in dsn:
            assert code == 4
            assert "PostgreSQL cannot be reached (none at 127.0.0.1:1" in output
            assert "hidden" not in output
            assert "Traceback" not in output
    assert (code, output.strip()) == (0, "7")
    assert await command("trust", "--yes", cluster.project) == (0, ANY)

    async def is_trusted() -> bool:
        return (await pair[1].client.get_trust(workspace)).trusted

    await eventually(is_trusted)
    assert await command("trust", "--revoke", cluster.project) == (0, ANY)

    async def is_revoked() -> bool:
        return not await is_trusted()

    await eventually(is_revoked)


async def test_commands_list_models_and_tokens_of_the_cluster(
    cluster: Nodes, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await cluster.start("a")
    workspace = await cluster.open(server)
    await server.client.config_set(
        workspace, "providers.p", {"base_url": "http://127.0.0.1:9", "models": [{"id": "m"}]}
    )
    pool = Pool({"dsn": cluster.dsn})
    await pool.open()
    documents = SharedDocuments(pool)
    await documents.refresh()
    tokens = SharedTokens(documents, KeyFile(str(key_file)))
    await asyncio.to_thread(tokens.update, lambda _: {"p": Token("sEcret", "refresh", token_url="http://127.0.0.1:9")})
    home = tmp_path / "home"
    settings = home / ".config" / "holdfast" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[storage]\nkey_file = '{key_file}'\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HOLDFAST_STORE", cluster.dsn)
    for name in ("XDG_CONFIG_HOME", "HOLDFAST_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    code, output = await command("login", "--list", "--cwd", cluster.project)
    assert (code, [line.split() for line in output.splitlines()[1:]]) == (0, [["p", "signed", "in", "database"]]), (
        output
    )
    code, output = await command("models", "p", "--json", "--cwd", cluster.project)
    assert (code, '"m"' in output, "sEcret" in output) == (0, True, False), output
    await pool.close()


def write_project_settings(cluster: Nodes) -> None:
    (Path(cluster.project) / "holdfast.toml").write_text("[mcp.m]\ncommand = 'true'\ndisabled = true\n")


async def command(*arguments: str) -> tuple[int, str]:
    """Run a command in a process. Return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()
