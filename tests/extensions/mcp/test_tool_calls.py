"""Calls, questions, prompts and resources of a server of tools, in virtual time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from extensions.mcp.in_memory import Context, Program, Site, ends, hangs, now, play
from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import BadRequest
from holdfast.extensions.mcp.mcp_types import CallFailed
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


# Calls


@pytest.mark.parametrize(("settings", "seconds"), [({}, 300.0), ({"call_timeout": 7}, 7.0)])
def test_a_call_without_a_sign_of_life_is_cancelled(tmp_path: Path, settings: Json, seconds: float) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = hangs
        await site.stands("connected")
        began = now()
        with pytest.raises(CallFailed, match=f"said nothing for {seconds:g} s"):
            await site.call()
        assert now() == pytest.approx(began + seconds, abs=0.2)
        assert site.last.count("notifications/cancelled") == 1
        await site.until(lambda: site.last.count("ping"))
        assert len(site.programs) == 1, "it answers otherwise, and stays"

    play(tmp_path, story, s={"command": "x", **settings})


def test_a_call_timeout_of_zero_is_none(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = hangs
        await site.stands("connected")
        calling = start(site.call())
        await elapse(100_000)
        assert not calling.done()
        (asked,) = (message for message in site.last.heard if message.get("method") == "tools/call")
        site.last.say(id=asked["id"], result={"content": [{"type": "text", "text": "late"}]})
        assert (await calling).content == "late"

    play(tmp_path, story, s={"command": "x", "call_timeout": 0})


def test_progress_is_a_sign_of_life_and_is_said(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = hangs
        await site.stands("connected")
        context = Context(site)
        calling = start(site.call(context=context))
        await site.until(lambda: site.last.count("tools/call"))
        (asked,) = (message for message in site.last.heard if message.get("method") == "tools/call")
        token = asked["params"]["_meta"]["progressToken"]
        for step in range(1, 6):
            await elapse(6)
            params = {"progressToken": token, "progress": step, "total": 5, "message": f"step {step}"}
            site.last.say(method="notifications/progress", params=params)
        await elapse(6)
        assert not calling.done()
        with pytest.raises(CallFailed, match="said nothing for 7 s"):
            await calling
        assert now() == pytest.approx(0.6 + 30 + 7, abs=0.2)
        assert context.said[0] == "1/5 step 1\n"
        assert len(context.said) == 5

    play(tmp_path, story, s={"command": "x", "call_timeout": 7})


def test_a_person_may_think_as_long_as_they_like(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        def asks(program: Program, message: Json) -> None:
            wanted = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}
            program.say(id="q", method="elicitation/create", params={"message": "Which?", "requestedSchema": wanted})

        async def answer(_: Any) -> tuple[QuestionAnswer, ...]:  # noqa: ANN401
            await elapse(1000)
            return (QuestionAnswer("", fill_in_text="seven"),)

        site.methods["tools/call"] = asks
        await site.stands("connected")
        calling = start(site.call(context=Context(site, answer)))
        await site.until(lambda: any(message.get("id") == "q" for message in site.last.heard))
        (given,) = (message for message in site.last.heard if message.get("id") == "q")
        assert given["result"] == {"action": "accept", "content": {"n": "seven"}}
        answered = now()
        with pytest.raises(CallFailed):
            await calling
        assert now() == pytest.approx(answered + 7, abs=0.2), "the time counts from the answer"

    play(tmp_path, story, s={"command": "x", "call_timeout": 7})


def test_a_server_that_goes_in_a_call_is_named_with_its_reason(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = ends
        await site.stands("connected")
        with pytest.raises(CallFailed) as failed:
            await site.call()
        assert "went away while go was at work. It ended with exit code 3. It said: last words" in str(failed.value)
        assert "Whether the tool did anything is not known." in str(failed.value)

    play(tmp_path, story)


def _asking(site: Site, name: str) -> Context:
    """A call whose questions are answered with a name."""

    async def answer(_: Any) -> tuple[QuestionAnswer, ...]:  # noqa: ANN401
        return (QuestionAnswer("", fill_in_text=name),)

    return Context(site, answer)


async def _asked(site: Site, id: str) -> Json:
    """What a question of the server is answered with."""
    wanted = {"type": "object", "properties": {"n": {"type": "string"}}}
    site.last.say(id=id, method="elicitation/create", params={"message": "Which?", "requestedSchema": wanted})
    await site.until(lambda: any(message.get("id") == id for message in site.last.heard))
    (given,) = (message for message in site.last.heard if message.get("id") == id and "method" not in message)
    return {key: given[key] for key in ("result", "error") if key in given}


def test_a_question_is_put_to_the_call_that_began_last_and_is_still_at_work(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = hangs
        await site.stands("connected")
        assert "error" in await _asked(site, "q0"), "no tool is at work"
        first = start(site.call(context=_asking(site, "first")))
        await site.until(lambda: site.last.count("tools/call") == 1)
        second = start(site.call(context=_asking(site, "second")))
        await site.until(lambda: site.last.count("tools/call") == 2)
        assert (await _asked(site, "q1"))["result"]["content"] == {"n": "second"}
        numbers = [message["id"] for message in site.last.heard if message.get("method") == "tools/call"]
        site.last.say(id=numbers[1], result={"content": []})
        await second
        assert (await _asked(site, "q2"))["result"]["content"] == {"n": "first"}
        site.last.say(id=numbers[0], result={"content": []})
        await first
        assert "error" in await _asked(site, "q3")

    play(tmp_path, story)


def test_a_question_ends_with_its_call(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        open_questions: list[bool] = []

        async def answer(_: Any) -> tuple[QuestionAnswer, ...]:  # noqa: ANN401
            open_questions.append(True)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                open_questions.append(False)
            raise AssertionError

        site.methods["tools/call"] = hangs
        await site.stands("connected")
        calling = start(site.call(context=Context(site, answer)))
        await site.until(lambda: site.last.count("tools/call"))
        wanted = {"type": "object", "properties": {"n": {"type": "string"}}}
        site.last.say(id="q", method="elicitation/create", params={"message": "?", "requestedSchema": wanted})
        await elapse(1)
        assert open_questions == [True]
        (number,) = (message["id"] for message in site.last.heard if message.get("method") == "tools/call")
        site.last.say(id=number, result={"content": [{"type": "text", "text": "done anyway"}]})
        assert (await calling).content == "done anyway"
        assert open_questions == [True, False]

    play(tmp_path, story)


# Prompts and resources

PROMPT: Json = {
    "name": "p",
    "description": "Asks.",
    "arguments": [{"name": "city", "required": True}, {"name": "state", "title": "State"}, {"title": "nameless"}],
}


def _prompts(site: Site) -> None:
    site.items["prompts"] = [PROMPT]
    said = [
        {"role": "user", "content": {"type": "text", "text": "Hello."}},
        {"role": "assistant", "content": {"type": "text", "text": "Hi."}},
    ]
    site.methods["prompts/get"] = lambda _, message: {"result": {"messages": said}}
    found = {"uri": "r://1", "mimeType": "text/plain", "text": "words"}
    site.methods["resources/read"] = lambda _, message: {"result": {"contents": [found]}}


def test_prompts_and_resources_are_asked_for_by_name(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        _prompts(site)
        await site.stands("connected")
        servers = await site.mcp.manager()
        (prompt,) = servers.prompts()
        assert (prompt.id, prompt.prompt_id, prompt.client_id, prompt.description) == ("s:p", "p", "s", "Asks.")
        assert [(item.id, item.title, item.required) for item in prompt.arguments] == [
            ("city", "city", True),
            ("state", "State", False),
        ]
        assert await servers.prompt("s", "p", {"city": "Oslo"}) == "Hello.\n\n[assistant] Hi."
        (asked,) = (message["params"] for message in site.last.heard if message.get("method") == "prompts/get")
        assert (asked["name"], asked["arguments"]) == ("p", {"city": "Oslo"})
        (found,) = await servers.resource("s", "r://1")
        assert (found.uri, found.text) == ("r://1", "words")
        for name, prompt_name, arguments, said in (
            ("t", "p", {}, "no MCP server called t"),
            ("s", "q", {}, "has no prompt called q"),
            ("s", "p", {}, "needs: city"),
            ("s", "p", {"city": ""}, "needs: city"),
        ):
            with pytest.raises(BadRequest, match=said):
                await servers.prompt(name, prompt_name, arguments)

    play(tmp_path, story)


@pytest.mark.parametrize("pings", [True, False])
def test_one_that_does_not_answer_in_passing_is_tested(tmp_path: Path, pings: bool) -> None:
    async def story(site: Site) -> None:
        _prompts(site)
        await site.stands("connected")
        site.methods["resources/read"] = hangs
        if not pings:
            site.methods["ping"] = hangs
        servers = await site.mcp.manager()
        began = now()
        with pytest.raises(BadRequest, match="did not answer within 7 s"):
            await servers.resource("s", "r://1")
        assert now() == pytest.approx(began + 7, abs=0.2)
        await elapse(30)
        assert len(site.programs) == (1 if pings else 2), "one that is stuck is replaced"
        assert site.programs[0].count("ping") == 1

    play(tmp_path, story, s={"command": "x", "timeout": 7})


def test_one_that_goes_while_it_is_asked_is_named_and_comes_back(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        _prompts(site)
        await site.stands("connected")
        site.methods["prompts/get"] = ends
        servers = await site.mcp.manager()
        with pytest.raises(BadRequest, match="The MCP server s went away"):
            await servers.prompt("s", "p", {"city": "Oslo"})
        await site.stands("error")
        await site.stands("connected")
        _prompts(site)
        assert await servers.prompt("s", "p", {"city": "Oslo"})

    play(tmp_path, story)


def test_an_answer_that_says_the_connection_is_closed_ends_it(tmp_path: Path) -> None:
    """Also where the program still runs."""

    async def story(site: Site) -> None:
        _prompts(site)
        await site.stands("connected")
        site.methods["resources/read"] = lambda _, message: {"error": {"code": -32000, "message": "closed"}}
        with pytest.raises(BadRequest, match="went away"):
            await (await site.mcp.manager()).resource("s", "r://1")
        await site.until(lambda: len(site.programs) == 2)
        assert site.programs[0].killed_at is not None

    play(tmp_path, story)


def test_what_servers_want_models_to_know_is_told_while_they_are_away_too(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        hello = site.methods["initialize"]

        def greet(program: Program, message: Json) -> Json:
            answer = hello(program, message)
            assert answer is not None
            return {"result": {**answer["result"], "instructions": " Be polite. "}}

        site.methods["initialize"] = greet
        assert site.mcp.notes() == ()
        await site.stands("connected")
        (note,) = site.mcp.notes()
        assert '<server name="s">\nBe polite.\n</server>' in note
        site.last.end(1)
        await site.stands("error")
        assert site.mcp.notes() == (note,)

    play(tmp_path, story)
