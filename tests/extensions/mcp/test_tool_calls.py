"""Calls, elicitation, prompts and resources of an MCP server, in virtual time."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.mcp.in_memory_mcp import Context, McpFixture, Program, ends, hangs, now, run_scenario
from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import BadRequest
from holdfast.extensions.mcp import mcp_tools
from holdfast.extensions.mcp.extension import McpCommands
from holdfast.extensions.mcp.mcp_types import CallFailed, ConnectionClosed
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


# Calls


@pytest.mark.parametrize(("settings", "seconds"), [({}, 300.0), ({"call_timeout": 7}, 7.0)])
def test_call_without_progress_times_out(tmp_path: Path, settings: Json, seconds: float) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/call"] = hangs
        await fixture.wait_for_state("connected")
        began = now()
        with pytest.raises(CallFailed, match=f"sent nothing for {seconds:g} s"):
            await fixture.call()
        assert now() == pytest.approx(began + seconds, abs=0.2)
        assert fixture.last.count("notifications/cancelled") == 1
        await fixture.wait_until(lambda: fixture.last.count("ping"))
        assert len(fixture.programs) == 1, "it answers otherwise, and stays"

    run_scenario(tmp_path, scenario, s={"command": "x", **settings})


def test_a_call_timeout_of_zero_is_none(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/call"] = hangs
        await fixture.wait_for_state("connected")
        calling = start(fixture.call())
        await elapse(100_000)
        assert not calling.done()
        (asked,) = (message for message in fixture.last.received if message.get("method") == "tools/call")
        fixture.last.send(id=asked["id"], result={"content": [{"type": "text", "text": "late"}]})
        assert (await calling).content == "late"

    run_scenario(tmp_path, scenario, s={"command": "x", "call_timeout": 0})


def test_progress_extends_call_and_is_published(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/call"] = hangs
        await fixture.wait_for_state("connected")
        context = Context(fixture)
        calling = start(fixture.call(context=context))
        await fixture.wait_until(lambda: fixture.last.count("tools/call"))
        (asked,) = (message for message in fixture.last.received if message.get("method") == "tools/call")
        token = asked["params"]["_meta"]["progressToken"]
        for step in range(1, 6):
            await elapse(6)
            params = {"progressToken": token, "progress": step, "total": 5, "message": f"step {step}"}
            fixture.last.send(method="notifications/progress", params=params)
        await elapse(6)
        assert not calling.done()
        with pytest.raises(CallFailed, match="sent nothing for 7 s"):
            await calling
        assert now() == pytest.approx(0.6 + 30 + 7, abs=0.2)
        assert context.reported[0] == "1/5 step 1\n"
        assert len(context.reported) == 5

    run_scenario(tmp_path, scenario, s={"command": "x", "call_timeout": 7})


def test_elicitation_has_no_time_limit(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        def asks(program: Program, message: Json) -> None:
            wanted = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}
            program.send(id="q", method="elicitation/create", params={"message": "Which?", "requestedSchema": wanted})

        async def answer(_: Any) -> tuple[QuestionAnswer, ...]:  # noqa: ANN401
            await elapse(1000)
            return (QuestionAnswer("", fill_in_text="seven"),)

        fixture.methods["tools/call"] = asks
        await fixture.wait_for_state("connected")
        calling = start(fixture.call(context=Context(fixture, answer)))
        await fixture.wait_until(lambda: any(message.get("id") == "q" for message in fixture.last.received))
        (given,) = (message for message in fixture.last.received if message.get("id") == "q")
        assert given["result"] == {"action": "accept", "content": {"n": "seven"}}
        wait_for_success = now()
        with pytest.raises(CallFailed):
            await calling
        assert now() == pytest.approx(wait_for_success + 7, abs=0.2), "the time counts from the answer"

    run_scenario(tmp_path, scenario, s={"command": "x", "call_timeout": 7})


def test_server_that_ends_during_call_is_named_with_reason(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/call"] = ends
        await fixture.wait_for_state("connected")
        with pytest.raises(CallFailed) as failed:
            await fixture.call()
        assert "disconnected while go was running. It ended with exit code 3. Its last output: last words" in str(
            failed.value
        )
        assert "Whether the tool had effects is not known." in str(failed.value)

    run_scenario(tmp_path, scenario)


def _call_with_answers(fixture: McpFixture, name: str) -> Context:
    """Start a call whose questions are answered with a name."""

    async def answer(_: Any) -> tuple[QuestionAnswer, ...]:  # noqa: ANN401
        return (QuestionAnswer("", fill_in_text=name),)

    return Context(fixture, answer)


async def _elicit(fixture: McpFixture, id: str) -> Json:
    """Send an elicitation request. Returns its result."""
    wanted = {"type": "object", "properties": {"n": {"type": "string"}}}
    fixture.last.send(id=id, method="elicitation/create", params={"message": "Which?", "requestedSchema": wanted})
    await fixture.wait_until(lambda: any(message.get("id") == id for message in fixture.last.received))
    (given,) = (message for message in fixture.last.received if message.get("id") == id and "method" not in message)
    return {key: given[key] for key in ("result", "error") if key in given}


def test_elicitation_belongs_to_newest_active_call(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/call"] = hangs
        await fixture.wait_for_state("connected")
        assert "error" in await _elicit(fixture, "q0"), "no tool is at work"
        first = start(fixture.call(context=_call_with_answers(fixture, "first")))
        await fixture.wait_until(lambda: fixture.last.count("tools/call") == 1)
        second = start(fixture.call(context=_call_with_answers(fixture, "second")))
        await fixture.wait_until(lambda: fixture.last.count("tools/call") == 2)
        assert (await _elicit(fixture, "q1"))["result"]["content"] == {"n": "second"}
        numbers = [message["id"] for message in fixture.last.received if message.get("method") == "tools/call"]
        fixture.last.send(id=numbers[1], result={"content": []})
        await second
        assert (await _elicit(fixture, "q2"))["result"]["content"] == {"n": "first"}
        fixture.last.send(id=numbers[0], result={"content": []})
        await first
        assert "error" in await _elicit(fixture, "q3")

    run_scenario(tmp_path, scenario)


def test_elicitation_ends_with_its_call(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        open_questions: list[bool] = []

        async def answer(_: Any) -> tuple[QuestionAnswer, ...]:  # noqa: ANN401
            open_questions.append(True)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                open_questions.append(False)
            raise AssertionError

        fixture.methods["tools/call"] = hangs
        await fixture.wait_for_state("connected")
        calling = start(fixture.call(context=Context(fixture, answer)))
        await fixture.wait_until(lambda: fixture.last.count("tools/call"))
        wanted = {"type": "object", "properties": {"n": {"type": "string"}}}
        fixture.last.send(id="q", method="elicitation/create", params={"message": "?", "requestedSchema": wanted})
        await elapse(1)
        assert open_questions == [True]
        (number,) = (message["id"] for message in fixture.last.received if message.get("method") == "tools/call")
        fixture.last.send(id=number, result={"content": [{"type": "text", "text": "done anyway"}]})
        assert (await calling).content == "done anyway"
        assert open_questions == [True, False]

    run_scenario(tmp_path, scenario)


# Prompts and resources

PROMPT: Json = {
    "name": "p",
    "description": "Asks.",
    "arguments": [{"name": "city", "required": True}, {"name": "state", "title": "State"}, {"title": "nameless"}],
}


def _prompts(fixture: McpFixture) -> None:
    fixture.items["prompts"] = [PROMPT]
    reported = [
        {"role": "user", "content": {"type": "text", "text": "Hello."}},
        {"role": "assistant", "content": {"type": "text", "text": "Hi."}},
    ]
    fixture.methods["prompts/get"] = lambda _, message: {"result": {"messages": reported}}
    found = {"uri": "r://1", "mimeType": "text/plain", "text": "words"}
    fixture.methods["resources/read"] = lambda _, message: {"result": {"contents": [found]}}


def test_prompts_and_resources_are_requested_by_name(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        _prompts(fixture)
        await fixture.wait_for_state("connected")
        servers = await fixture.mcp.manager()
        (prompt,) = servers.prompts()
        assert (prompt.id, prompt.prompt_id, prompt.client_id, prompt.description) == ("s:p", "p", "s", "Asks.")
        assert [(item.id, item.title, item.required) for item in prompt.arguments] == [
            ("city", "city", True),
            ("state", "State", False),
        ]
        assert await servers.prompt("s", "p", {"city": "Oslo"}) == "Hello.\n\n[assistant] Hi."
        (asked,) = (message["params"] for message in fixture.last.received if message.get("method") == "prompts/get")
        assert (asked["name"], asked["arguments"]) == ("p", {"city": "Oslo"})
        (found,) = await servers.resource("s", "r://1")
        assert (found.uri, found.text) == ("r://1", "words")
        for name, prompt_name, arguments, reported in (
            ("t", "p", {}, "no MCP server called t"),
            ("s", "q", {}, "has no prompt called q"),
            ("s", "p", {}, "needs: city"),
            ("s", "p", {"city": ""}, "needs: city"),
        ):
            with pytest.raises(BadRequest, match=reported):
                await servers.prompt(name, prompt_name, arguments)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("pings", [True, False])
def test_unanswered_request_triggers_ping(tmp_path: Path, pings: bool) -> None:
    async def scenario(fixture: McpFixture) -> None:
        _prompts(fixture)
        await fixture.wait_for_state("connected")
        fixture.methods["resources/read"] = hangs
        if not pings:
            fixture.methods["ping"] = hangs
        servers = await fixture.mcp.manager()
        began = now()
        with pytest.raises(BadRequest, match="did not answer within 7 s"):
            await servers.resource("s", "r://1")
        assert now() == pytest.approx(began + 7, abs=0.2)
        await elapse(30)
        assert len(fixture.programs) == (1 if pings else 2), "one that is stuck is replaced"
        assert fixture.programs[0].count("ping") == 1

    run_scenario(tmp_path, scenario, s={"command": "x", "timeout": 7})


def test_server_that_ends_during_request_is_named_and_restarts(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        _prompts(fixture)
        await fixture.wait_for_state("connected")
        fixture.methods["prompts/get"] = ends
        servers = await fixture.mcp.manager()
        with pytest.raises(BadRequest, match="The MCP server s disconnected"):
            await servers.prompt("s", "p", {"city": "Oslo"})
        await fixture.wait_for_state("error")
        await fixture.wait_for_state("connected")
        _prompts(fixture)
        assert await servers.prompt("s", "p", {"city": "Oslo"})

    run_scenario(tmp_path, scenario)


def test_closed_connection_error_ends_connection(tmp_path: Path) -> None:
    """Even if the program is still running."""

    async def scenario(fixture: McpFixture) -> None:
        _prompts(fixture)
        await fixture.wait_for_state("connected")
        fixture.methods["resources/read"] = lambda _, message: {"error": {"code": -32000, "message": "closed"}}
        with pytest.raises(BadRequest, match="disconnected"):
            await (await fixture.mcp.manager()).resource("s", "r://1")
        await fixture.wait_until(lambda: len(fixture.programs) == 2)
        assert fixture.programs[0].killed_at is not None

    run_scenario(tmp_path, scenario)


def test_instructions_remain_while_server_is_disconnected(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        hello = fixture.methods["initialize"]

        def greet(program: Program, message: Json) -> Json:
            answer = hello(program, message)
            assert answer is not None
            return {"result": {**answer["result"], "instructions": " Be polite. "}}

        fixture.methods["initialize"] = greet
        assert fixture.mcp.notes() == ()
        await fixture.wait_for_state("connected")
        (note,) = fixture.mcp.notes()
        assert '<server name="s">\nBe polite.\n</server>' in note
        fixture.last.end(1)
        await fixture.wait_for_state("error")
        assert fixture.mcp.notes() == (note,)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(
    ("is_ended", "state", "reason", "own_reason", "expected"),
    [
        (False, "connected", "", "", "broke off its answer to go. It is gone. Whether"),
        (True, "connected", "", "It ended.", "disconnected while go was running. It ended. It is started"),
        (False, "error", "It said no.", "It ended.", "disconnected while go was running. It said no. It is started"),
        (True, "error", "", "", "disconnected while go was running. It is gone. It is started"),
    ],
)
async def test_the_reason_of_a_lost_connection(
    is_ended: bool, state: str, reason: str, own_reason: str, expected: str
) -> None:
    """One that still runs has only broken off this answer; otherwise the most exact known reason is named."""

    async def wait_disconnected() -> None:
        return

    server: Any = SimpleNamespace(
        name="s", status=SimpleNamespace(state=state, reason=reason), wait_disconnected=wait_disconnected
    )
    connection: Any = SimpleNamespace(ended=asyncio.Event(), reason=own_reason)
    if is_ended:
        connection.ended.set()
    message = await mcp_tools._lost_connection_message(server, connection, "go", ConnectionClosed("It is gone."))
    assert message.startswith(f"The MCP server s {expected}")
    assert message.endswith("Whether the tool had effects is not known.")


def test_prompts_are_commands(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.items["prompts"] = [
            {
                "name": "tell",
                "description": "Tells.",
                "arguments": [{"name": "city", "required": True}, {"name": "day"}],
            }
        ]
        asked: list[Json] = []

        def get(_: Program, message: Json) -> Json:
            asked.append(message["params"])
            content = {"type": "text", "text": "Tell me."}
            return {"result": {"messages": [{"role": "user", "content": content}]}}

        fixture.methods["prompts/get"] = get
        await fixture.wait_for_state("connected")
        commands = McpCommands(fixture.mcp)
        assert [(item.name, item.source, item.hint) for item in commands.commands()] == [
            ("s:tell", "mcp", "<city> [day]"),
        ]  # fmt: skip
        assert await commands.expand("s:tell", "Oslo", {"day": "today"}) == "Tell me."
        assert [(item["name"], item["arguments"]) for item in asked] == [("tell", {"city": "Oslo", "day": "today"})]
        for name in ("tell", "s", "s:", "s:other", "t:tell", ":tell"):
            assert await commands.expand(name, "Oslo", {}) is None, name
        assert len(asked) == 1

    run_scenario(tmp_path, scenario)
