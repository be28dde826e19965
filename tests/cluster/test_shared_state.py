"""State that all servers of a cluster share: two real servers on one PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from cluster.node_servers import Nodes, NodeServer, nodes
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.harness import FixedModels

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
            await asyncio.sleep(0.02)


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
    assert await shown(a) == 77, "read your writes"

    async def at_b() -> bool:
        return await shown(b) == 77

    await eventually(at_b)
    await b.client.config_remove(workspace, "options.ask_timeout", scope=scope)

    async def gone_at_a() -> bool:
        return await shown(a) != 77

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
            return (await server.client.get_config(workspace)).get("env", {}).keys() == set(names)

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
    assert (Path(cluster.project) / "made").exists()


async def test_project_that_is_trusted_at_one_node_is_trusted_at_all(
    cluster: Nodes, pair: tuple[NodeServer, NodeServer]
) -> None:
    (Path(cluster.project) / "holdfast.toml").write_text("[mcp.m]\ncommand = 'true'\ndisabled = true\n")
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
