"""Clients of a cluster with `--host A,B`: they lose their node, continue at the other one, and receive everything once.

The first node owns the workspace. A client that loses the second one loses only its connection; one that loses the
first one also sees the takeover.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from editors.editor_client import editor_client
from holdfast.client.client import Client
from holdfast.client.errors import Unreachable
from holdfast.client.events import StreamEvent
from holdfast.domain.events import AgentEvent, MessageDeltaEvent, RunCompleteEvent, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.messages import text_of
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.gates import start
from holdfast.tui.app import HoldfastApp
from stream_servers import reserve_port
from tui.app_driver import AppDriver
from two_nodes import TIMEOUT, LossyForwarder, TwoNodes, two_nodes

TEXT = " ".join(f"word{number}" for number in range(1, 61))
LONG = "words=60 pause=20"


@pytest.fixture
async def nodes() -> AsyncIterator[TwoNodes]:
    async with two_nodes() as running:
        yield running


async def _everything(nodes: TwoNodes, run: str) -> list[StreamEvent]:
    """Return all stored events up to the end of a run, from the first node that responds."""
    found: list[StreamEvent] = []
    async with nodes.client() as client, client.events(nodes.workspace, since=0) as events, asyncio.timeout(TIMEOUT):
        async for item in events:
            found += [item] if item.number is not None else []
            if isinstance(item.event, RunCompleteEvent) and item.event.change.object.run_id == run:
                return found
    raise AssertionError("the stream ended")


def _accepted(events: list[StreamEvent], run: str) -> int:
    """Count how often a run was accepted."""
    created = (
        item.event for item in events if isinstance(item.event, RunEvent) and item.event.change.type == "created"
    )
    return sum(event.change.object.run_id == run for event in created)


@pytest.mark.parametrize("victim", ["second", "first"])
async def test_a_stream_continues_at_the_other_node_with_each_event_once(nodes: TwoNodes, victim: str) -> None:
    """R6 across nodes: numbers without a gap, and with the owner alive also the whole text."""
    lost, kept = (nodes.second, nodes.first) if victim == "second" else (nodes.first, nodes.second)
    async with nodes.client(lost, kept) as client, asyncio.timeout(TIMEOUT):
        workspace = (await client.create_workspace(str(nodes.work))).id
        session = (await client.create_session(workspace)).id
        seen: list[StreamEvent] = []
        words = 0
        async with client.events(workspace, since=0) as events:
            await client.send_prompt(workspace, AgentMessage(session, LONG, RunId("r")))
            async for item in events:
                seen.append(item)
                words += isinstance(item.event, MessageDeltaEvent)
                if words == 5 and isinstance(item.event, MessageDeltaEvent):
                    await lost.kill()
                if isinstance(item.event, AgentEvent) and item.event.change.object.session_id == session:
                    break
            # The client is attached again: the other node counts it.
            await client.set_current_session(workspace, session)
            assert (await client.get_session(workspace, session)).attached_clients == 1
        numbers = [item.number for item in seen if item.number is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        (end,) = (item.event.change.object for item in seen if isinstance(item.event, RunCompleteEvent))
        assert isinstance(seen[-1].event, AgentEvent)
        assert seen[-1].event.change.object.type == "agent_finished"
        assert client.address == kept.address
        if victim == "second":
            assert (end.outcome, end.text) == ("completed", TEXT)
        else:
            assert end.outcome == "interrupted"


@pytest.mark.parametrize("victim", ["second", "first"])
async def test_a_prompt_whose_response_was_lost_is_accepted_once(nodes: TwoNodes, victim: str) -> None:
    """The node accepts the prompt and dies before its response arrives; the prompt is sent again to the other one."""
    lost, kept = (nodes.second, nodes.first) if victim == "second" else (nodes.first, nodes.second)
    forwarder = LossyForwarder(lost, nodes.home.home / "f.sock")
    forwarder.loses = b"/agent HTTP/1.1"
    async with forwarder.running():
        code, out, errors = await nodes.call(
            "run", "--run-id", "once", "words=3", hosts=f"{forwarder.host},{kept.host}"
        )
    assert forwarder.lost.is_set()
    events = await _everything(nodes, "once")
    assert _accepted(events, "once") == 1
    assert sum(isinstance(item.event, RunCompleteEvent) for item in events) == 1
    if victim == "second":
        assert (code, out) == (0, "word1 word2 word3\n"), errors


async def test_run_follows_across_nodes_and_prints_each_event_once(nodes: TwoNodes) -> None:
    process = await nodes.start("run", "--json", "--run-id", "j", LONG, hosts=f"{nodes.second.host},{nodes.first.host}")
    assert process.stdout is not None
    lines = []
    while line := await asyncio.wait_for(process.stdout.readline(), TIMEOUT):
        lines.append(json.loads(line))
        if len(lines) == 8:
            await nodes.second.kill()
    assert await process.wait() == 0
    assert lines[-1]["type"] == "run_complete"
    assert lines[-1]["payload"]["payload"]["text"] == TEXT
    stored = [line for line in lines if line["type"] in ("run", "run_complete")]
    assert stored == [line for number, line in enumerate(stored) if line not in stored[:number]], "each once"
    assert _accepted(await _everything(nodes, "j"), "j") == 1


async def test_a_detached_run_is_awaited_across_nodes() -> None:
    """Over TCP: all nodes accept the token of the client's data directory."""
    with reserve_port() as first, reserve_port() as second:
        async with two_nodes((first, second)) as nodes:
            await _await_detached(nodes)


async def _await_detached(nodes: TwoNodes) -> None:
    code, _, errors = await nodes.call("run", "--detach", "--run-id", "d", LONG)
    assert code == 0, errors
    order = f"{nodes.second.host},{nodes.first.host}"
    process = await nodes.start("runs", "wait", "--stream", "d", hosts=order)
    assert process.stdout is not None
    text = await asyncio.wait_for(process.stdout.read(40), TIMEOUT)
    await nodes.second.kill()
    text += await asyncio.wait_for(process.stdout.read(), TIMEOUT)
    assert text.decode() == TEXT + "\n"
    assert await process.wait() == 0
    # The next command goes to the node that is left, and a list without it names each reason.
    code, out, errors = await nodes.call("runs", "show", "d", hosts=order)
    assert (code, "completed" in out) == (0, True), errors
    await nodes.first.kill()
    code, out, errors = await nodes.call("sessions", hosts=order)
    refused = "Connection refused"
    assert (code, out, errors) == (
        4,
        "",
        f"holdfast: No Holdfast server can be used: {nodes.second.host}: {refused}; {nodes.first.host}: {refused}.\n",
    )


async def test_attach_continues_at_the_other_node(nodes: TwoNodes) -> None:
    async with nodes.client(nodes.first) as client:
        session = (await client.create_session(nodes.workspace)).id
        await client.send_prompt(nodes.workspace, AgentMessage(session, LONG, RunId("a")))
        process = await nodes.start("attach", session, hosts=f"{nodes.second.host},{nodes.first.host}")
        assert process.stdout is not None
        text = b""
        while b"word5 " not in text:
            text += await asyncio.wait_for(process.stdout.read(100), TIMEOUT)
        await nodes.second.kill()
        while b"word60" not in text:
            text += await asyncio.wait_for(process.stdout.read(100), TIMEOUT)
    assert TEXT in text.decode()
    assert text.decode().count("word5 ") == 1


async def test_terminal_app_continues_at_the_other_node(nodes: TwoNodes) -> None:
    location = nodes.location(f"{nodes.second.host},{nodes.first.host}")
    app = HoldfastApp(location, str(nodes.work))
    async with app.run_test(size=(120, 30)) as pilot:
        screen = AppDriver(app, pilot)
        await screen.wait_until(lambda: app.connection.state == "live", "the workspace is open")
        await screen.wait_until(lambda: screen.line("top-right").endswith("at b.sock"), "the node is shown")
        await screen.submit(LONG)
        await screen.wait_for_text("word5 ")
        await nodes.second.kill()
        await screen.wait_until(lambda: screen.line("top-right").endswith("at a.sock"), "the other node is shown")
        await screen.wait_for_notice("Continuing at a.sock, because b.sock is not available.")
        await screen.wait_for_text("word60")
        shown = " ".join(screen.conversation().split())
        assert TEXT in shown
        await screen.wait_until(lambda: app.connection.other_clients == 0, "the session is reported to the other node")
        await screen.submit("words=2")
        await screen.wait_until(lambda: screen.conversation().count("word2") >= 2, "a prompt to the other node")


async def test_editor_continues_at_the_other_node(nodes: TwoNodes) -> None:
    home = nodes.home
    home.environment["HOLDFAST_HOST"] = f"{nodes.second.host},{nodes.first.host}"
    async with editor_client(home) as editor:
        session = await editor.session()
        prompt = start(editor.prompt(session, LONG))
        await editor.until(lambda: "word5 " in editor.text(session))
        await nodes.second.kill()
        assert (await prompt).stop_reason == "end_turn"
        assert editor.text(session) == TEXT
        assert (await editor.prompt(session, "words=2")).stop_reason == "end_turn"
        assert editor.text(session) == f"{TEXT}word1 word2"


async def test_a_server_without_its_store_is_left(nodes: TwoNodes) -> None:
    """A node that answers 503 is skipped, and a request without a repetition is sent to the other one only."""
    await nodes.second.kill()
    async with nodes.client(nodes.second, nodes.first) as client:
        workspace = (await client.create_workspace(str(nodes.work))).id
        session = (await client.create_session(workspace, "one")).id
        assert [item.id for item in await client.list_sessions(workspace)] == [session]
        assert client.address == nodes.first.address
        await nodes.first.kill()
        with pytest.raises(Unreachable, match=r"a\.sock: .*; unix://.*b\.sock: .*\.$"):
            await client.list_sessions(workspace)
        await nodes.second.start()
        found = await client.list_sessions(workspace)
        assert [item.id for item in found] == [session]


async def test_messages_are_the_same_at_each_node(nodes: TwoNodes) -> None:
    async with nodes.client(nodes.first) as first, nodes.client(nodes.second) as second:
        session = (await first.create_session(nodes.workspace)).id
        await first.send_prompt(nodes.workspace, AgentMessage(session, "words=2", RunId("m")))
        await _everything(nodes, "m")
        texts = [
            [text_of(message) for message in await client.list_messages(nodes.workspace, session)]
            for client in (first, second)
        ]
    assert texts[0] == texts[1] == ["words=2", "word1 word2"]
    assert isinstance(first, Client)
