"""Events that an editor is sent, recovery after a gap, and the messages on its pipes."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from client.every_event import TYPES, event_of
from editors.agent_fixture import (
    AVAILABLE,
    EXTENSIONS,
    LOCAL,
    NOTES,
    PROBLEM,
    AgentFixture,
    Json,
    answer,
    chunk,
    open_agent,
    open_session,
    permission,
    session,
    snapshot,
    start_request,
    words,
)
from holdfast.acp import editor_connection
from holdfast.acp.agent import HoldfastAgent
from holdfast.acp.editor_connection import EditorConnection, StdioPipes
from holdfast.acp.initialize import initialize_result
from holdfast.acp.slash_commands import BUILT_IN
from holdfast.client.errors import ClientError
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    Gap,
    GapEvent,
    MessageEvent,
    SessionEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message, Text, TextPart, ToolCall, ToolCallPart
from holdfast.domain.runs import Run
from holdfast.testing.gates import settle_down, start, until

# Events.


_PROGRESS = [("s", "tool_call_update")]
SHOWN: dict[str, list[tuple[str, str]]] = {
    "agent_event": [("s", "agent_thought_chunk")],
    "config_changed": [("s", "available_commands_update")],
    "gap": [],
    "message": [("s", "agent_thought_chunk"), ("s", "agent_message_chunk")],
    "message_delta": [("s", "agent_message_chunk")],
    "message_part": [("s", "agent_thought_chunk"), ("s", "agent_message_chunk")],
    "permission_request": _PROGRESS,
    "run_complete": _PROGRESS,
    "session": [("s", "session_info_update")],
    "tool_output": _PROGRESS,
}
"""The updates that follow each type of event, in a session with an answer and an open tool call."""


async def test_each_type_of_event_has_its_updates_in_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    call = ToolCallPart(ToolCall(cast(Any, "c"), "bash", "{}", finished=True))
    shown = snapshot(80, msgspec.structs.replace(answer(""), parts=(TextPart(Text("x" * 18)), call)))
    async with open_agent(monkeypatch, snapshot=shown) as fixture:
        for name in TYPES:
            await fixture.agent.load_session(cwd="/", session_id="s")
            await fixture.updates()
            for at, number in (("elsewhere", 90), ("s", 91)):
                await fixture.event(event_of(name, SessionId(at)).event, number)
                await settle_down()
                kinds = [(session_, update["sessionUpdate"]) for session_, update in await fixture.updates()]
                everywhere = name == "config_changed"
                assert kinds == (SHOWN.get(name, []) if at == "s" or everywhere else []), (name, at)
        assert [params["sessionId"] for params in fixture.asked] == ["s", "s"], "an approval and a question"


@pytest.mark.parametrize(
    ("type_", "at", "is_shown"),
    [("retrying", "s", True), ("fallback", "s", True), ("error", "s", False), ("re_authenticate", "s", False),
     ("agent_finished", "s", False), ("retrying", "t", False)],
)  # fmt: skip
async def test_notices(type_: Any, at: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    async with open_session(monkeypatch) as fixture:
        await fixture.event(AgentEvent(Change("created", AgentNotice(type_, "wait", session_id=SessionId(at)))))
        expected = [("s", chunk("\n\n*wait*\n\n", "agent_thought_chunk"))]
        assert await fixture.updates() == (expected if is_shown else [])


async def test_titles_newer_than_the_snapshot_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch) as fixture:
        rows: list[tuple[str, str, int | None, bool]] = [
            ("updated", "s", None, False), ("updated", "s", 5, False), ("updated", "s", 6, True),
            ("deleted", "s", 7, False), ("updated", "t", 8, False),
        ]  # fmt: skip
        for at, (change, name, number, is_shown) in enumerate(rows):
            changed = msgspec.structs.replace(session(name), title=f"T{at}")
            await fixture.event(SessionEvent(Change(change, changed)), number)  # type: ignore[arg-type]
            updates = [update for _, update in await fixture.updates() if update["sessionUpdate"] != "usage_update"]
            assert updates == ([{"sessionUpdate": "session_info_update", "title": f"T{at}"}] if is_shown else []), at


async def test_steps_and_approvals_of_sub_agents_belong_to_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tuple(ToolCallPart(ToolCall(cast(Any, id), "agent", '{"prompt":"x"}', finished=True)) for id in ("c", "d"))
    start_of = Message(calls, MessageId("m"), "assistant", SessionId("s"), "", "", 0, 0, run_id=RunId("r"))
    nested = SessionId("m$$c")
    parents = (session("s"), session(nested, parent_session_id=SessionId("s")),
               session("deep", parent_session_id=nested))  # fmt: skip
    async with open_session(monkeypatch, snapshot=snapshot(5, start_of, sessions=parents)) as fixture:
        step = Message((ToolCallPart(ToolCall(cast(Any, "x"), "grep", '{"pattern":"p"}', finished=True)),),
                       MessageId("h"), "assistant", nested, "", "", 0, 0)  # fmt: skip
        await fixture.event(MessageEvent(Change("created", step)), 6)
        ((name, update),) = await fixture.updates()
        assert (name, update["toolCallId"], update["content"][0]["content"]["text"]) == ("s", "c", "- grep p")
        bridge = fixture.agent._sessions["s"]
        rows = (("s", "s"), (nested, "s"), ("deep", "s"), ("other", "other"))
        assert [bridge.root_of(SessionId(name)) for name, _ in rows] == [root for _, root in rows]
        plain = msgspec.structs.replace(step, session_id=SessionId("deep"))
        await fixture.event(MessageEvent(Change("created", plain)), 7)
        assert await fixture.updates() == [], "its name does not contain the call"
        bridge._parents |= {SessionId("a"): SessionId("b"), SessionId("b"): SessionId("a")}
        assert bridge.root_of(SessionId("a")) in ("a", "b"), "a cycle ends"


async def test_gap_is_recovered_and_a_failed_recovery_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch, list_messages=()) as fixture:
        prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("hi")))
        await until(lambda: any(entry[0] == "send_prompt" for entry in fixture.log))
        (run,) = fixture.agent._prompts["s"]
        await settle_down()
        fixture.requests()
        ended = Run(run, SessionId("s"), "ended", "queue", 0, outcome="completed", message_id=MessageId("m"))
        active = msgspec.structs.replace(ended, state="active", outcome=None)
        fixture.results["snapshot"] = [ClientError("away"), snapshot(20, answer("one"), permissions=(permission(),)),
                                       snapshot(30, answer("one two"))]  # fmt: skip
        fixture.results["get_run"] = [active, ended]
        with pytest.raises(ClientError):
            await fixture.event(GapEvent(Gap(20, 10, 1)))
        assert fixture.requests() == [("snapshot", "s")]
        notice = AgentEvent(Change("created", AgentNotice("error", "", session_id=SessionId("t"))))
        await fixture.event(notice)
        assert fixture.requests() == [("snapshot", "s"), ("get_run", run)]
        assert await fixture.updates() == [("s", chunk("one"))]
        await until(lambda: bool(fixture.asked))
        assert not prompt.done()
        await fixture.event(notice)
        assert fixture.requests() == [], "it is complete"
        await fixture.event(MessageEvent(Change("updated", answer("one t"))), 20)
        assert await fixture.updates() == []
        await fixture.event(GapEvent(Gap(30, 20, 1)))
        assert (await prompt).stop_reason == "end_turn"
        assert await fixture.updates() == [("s", chunk(" two"))]
        assert not fixture.agent._sessions["s"].approvals._open, "an approval that is gone is withdrawn"


async def test_a_changed_configuration_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch) as fixture:
        fixture.results |= {"agent_info": ClientError("no"), "get_workspace": NOTES, "list_commands": EXTENSIONS}
        await fixture.event(event_of("config_changed", SessionId("s")).event)
        assert await fixture.updates() == [("s", AVAILABLE), ("s", PROBLEM)]
        changed = msgspec.structs.replace(session("s"), prompt_tokens=7)
        await fixture.event(SessionEvent(Change("updated", changed)), 9)
        assert await fixture.updates() == [], "without a context window its use is unknown"
        fixture.results["agent_info"] = SimpleNamespace(model=SimpleNamespace(context_window=50))
        fixture.results |= {"get_workspace": ClientError("no"), "list_commands": ClientError("no")}
        await fixture.event(event_of("config_changed", SessionId("s")).event)
        ((_, commands),) = await fixture.updates()
        assert [item["name"] for item in commands["availableCommands"]] == [*BUILT_IN]
        await fixture.event(SessionEvent(Change("updated", changed)), 10)
        ((_, usage),) = await fixture.updates()
        assert (usage["used"], usage["size"]) == (7, 50)


# The connection.


class Writer:
    """Records what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.drained = 0
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        self.drained += 1

    def close(self) -> None:
        self.is_closed = True


def pipes_of(data: bytes, limit: int = 2**16) -> tuple[StdioPipes, Writer]:
    reader, writer = asyncio.StreamReader(limit=limit), Writer()
    reader.feed_data(data)
    reader.feed_eof()
    return StdioPipes(reader, cast(asyncio.StreamWriter, writer)), writer


@pytest.mark.parametrize(
    ("data", "received"),
    [
        (b"", []),
        (b'{"id":1}\n{"id":"b"}\n', [{"id": 1}, {"id": "b"}]),
        (b'{"id":1}', [{"id": 1}]),
        (b'\n  \nnot json\n[1]\n"x"\n\xff\n{"id":1}\n', [{"id": 1}]),
        (b'{"method":1}\n{"method":"m"}\n', [{"method": "m"}]),
        (b'{"id":[]}\n{"id":1.5}\n{"id":null}\n', [{"id": None}]),
        (b'{"error":"x"}\n{"error":null}\n{"error":{}}\n', [{"error": None}, {"error": {}}]),
        (b"[" * 50_000 + b'\n{"id":1}\n', [{"id": 1}]),
        (b'{"id":1}\n{"id":"' + b"x" * 99_999 + b'"}\n{"id":2}\n', [{"id": 1}]),
    ],
)
async def test_received_lines(data: bytes, received: list[Json]) -> None:
    pipes, writer = pipes_of(data)
    pushed = {"id": "first"}
    pipes.push_back(pushed)
    assert await pipes.receive() == pushed
    for expected in received:
        assert await pipes.receive() == expected
    assert await pipes.receive() is None
    sent: list[Any] = []
    pipes.on_sent = lambda message: sent.append((message, writer.data, writer.drained))
    await pipes.send({"id": 1})
    assert sent == [({"id": 1}, b'{"id":1}\n', 1)]
    await pipes.close()
    assert writer.is_closed


@pytest.mark.parametrize(
    ("data", "forms", "response", "rest"),
    [
        (b"", False, None, None),
        (b'{"id":1,"method":"session/new","params":{}}\n', False, None, "session/new"),
        (b'{"id":1,"method":"initialize","params":{"protocolVersion":1}}\n', False, 1, None),
        (b'{"id":"a","method":"initialize","params":{"protocolVersion":9,"clientCapabilities":'
         b'{"elicitation":{"form":{}}}}}\n', True, "a", None),
        (b'{"id":2,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":null}}\n', False, 2, None),
    ],
)  # fmt: skip
async def test_first_message(data: bytes, forms: bool, response: Any, rest: str | None) -> None:  # noqa: ANN401
    pipes, writer = pipes_of(data)
    assert await editor_connection._answer_initialize(pipes) == forms
    if response is None:
        assert writer.data == b""
    else:
        expected = {"jsonrpc": "2.0", "id": response, "result": initialize_result(1)}
        assert msgspec.json.decode(writer.data) == expected
    following = await pipes.receive()
    assert (following or {}).get("method") == rest


async def test_a_served_connection_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request over the whole path, then the end of input: bridges, tasks and the output are closed."""
    lines = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'
    reader, writer = asyncio.StreamReader(), Writer()
    pipes = StdioPipes(reader, cast(asyncio.StreamWriter, writer))

    async def opened(_: int) -> StdioPipes:
        return pipes

    fixture = AgentFixture(monkeypatch)
    await fixture.editor.close()

    def make(where: ServerLocation, editor: EditorConnection) -> HoldfastAgent:
        fixture.agent = HoldfastAgent(where, editor)
        return fixture.agent

    monkeypatch.setattr(editor_connection, "_open_pipes", opened)
    monkeypatch.setattr(editor_connection, "import_module", lambda name: SimpleNamespace(HoldfastAgent=make))
    first = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":'
    reader.feed_data(first + b'{"elicitation":{"form":{}}}}}\n')
    serving = start(editor_connection._serve(LOCAL, 1))
    await until(lambda: b'"id":0' in writer.data)
    reader.feed_data(lines)
    await until(lambda: b"available_commands_update" in writer.data)
    assert fixture.agent.supports_forms
    messages = [msgspec.json.decode(line) for line in writer.data.splitlines()]
    assert messages[1]["result"]["sessionId"] == "new"
    assert messages[2]["params"]["sessionId"] == "new"
    reader.feed_eof()
    await serving
    assert fixture.requests()[-1] == ("leave", "/")
    assert writer.is_closed
    assert not [task for task in asyncio.all_tasks() if task.get_name() in ("editor updates", "events", "open")]
