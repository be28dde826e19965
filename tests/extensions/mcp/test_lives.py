"""The life of a server of tools in virtual time: when it is started, tried again, tested, given up and closed.

After every test there is no task left, and every program that was started is killed and closed.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.mcp.in_memory import Context, Program, Site, in_virtual_time, tool
from holdfast.domain.asks import QuestionAnswer
from holdfast.domain.errors import BadRequest
from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp.troubles import CallFailed
from holdfast.testing.gates import start

Json = dict[str, Any]
Story = Callable[[Site], Coroutine[Any, Any, None]]
STEADY = 60.0


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def play(top: Path, story: Story, pause: float = 0.3, **servers: Json) -> None:
    """Open the workspace, tell the story, close it, and see that nothing is left."""

    async def main() -> None:
        site = Site(top, pause, **(servers or {"s": {"command": "x"}}))
        try:
            site.mcp.start()
            await story(site)
        finally:
            site.is_undying = False
            await site.mcp.close()
        assert site.unreleased() == []

    in_virtual_time(main)


# When it is started


def test_it_starts_a_moment_after_the_workspace_opened(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        assert site.state().state == "starting"
        await site.stands("connected")
        assert site.last.began_at == 0.6

    play(tmp_path, story)


@pytest.mark.parametrize("hurry", ["settled", "servers", "tried"])
def test_who_asks_for_it_has_it_started_at_once(tmp_path: Path, hurry: str) -> None:
    async def story(site: Site) -> None:
        if hurry == "servers":
            servers = await site.mcp.servers()
            await servers.known("s")
        elif hurry == "tried":
            await site.mcp.tried(5.0)
        else:
            await site.mcp.settled()
        assert site.state().state == "connected"
        assert now() == 0.0

    play(tmp_path, story, pause=9.0)


def test_one_that_is_remembered_is_known_at_once_and_its_call_waits_for_it(tmp_path: Path) -> None:
    async def first(site: Site) -> None:
        await site.stands("connected")
        await asyncio.sleep(1)

    async def again(site: Site) -> None:
        await asyncio.sleep(0)
        await site.until(site.mcp.tools)
        assert now() == 0.0
        assert site.state().tools == ("mcp_s_go",)
        assert site.programs == []
        assert (await site.call()).content == "done"
        assert now() == 9.0, "the server still has its pause"

    play(tmp_path / "one", first)
    data = (tmp_path / "one/data/mcp.json").read_bytes()
    (tmp_path / "two/data").mkdir(parents=True)
    (tmp_path / "two/data/mcp.json").write_bytes(data)
    play(tmp_path / "two", again, pause=9.0)

    async def changed(site: Site) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert site.state().tools == (), "with other settings it may be another server"

    (tmp_path / "three/data").mkdir(parents=True)
    (tmp_path / "three/data/mcp.json").write_bytes(data)
    play(tmp_path / "three", changed, pause=9.0, s={"command": "x", "args": ["other"]})


def test_no_more_than_three_start_at_a_time_and_one_that_hangs_gives_way(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = lambda program, message: None
        await site.until(lambda: len(site.programs) == 3)
        await asyncio.sleep(2.9)
        assert len(site.programs) == 3
        await site.until(lambda: len(site.programs) == 4)
        assert now() == 3.6

    slow: Json = {"command": "x", "timeout": 30}
    play(tmp_path, story, a=slow, b=slow, c=slow, d=slow)


# Each step of the start fails


def _ends(program: Program, _: Json) -> None:
    program.print("last words\n")
    program.end(3)


def _refuses(_: Program, __: Json) -> Json:
    return {"error": {"code": -32603, "message": "not today"}}


def _hangs(_: Program, __: Json) -> None:
    return None


def _no_process(site: Site) -> None:
    site.cannot_spawn = "no such program"


def _cannot_run(site: Site) -> None:
    site.cannot_run = "x could not be started: No such file or directory."
    site.methods["initialize"] = _ends


def _at(method: str, how: Callable[[Program, Json], Json | None]) -> Callable[[Site], None]:
    def set_up(site: Site) -> None:
        site.methods[method] = how

    return set_up


FAULTS: dict[str, tuple[Callable[[Site], None], str, float, bool]] = {
    # how, the reason, seconds until it is told, whether it is tried again by itself
    "it cannot be spawned": (_no_process, "no such program", 0.0, False),
    "it never ran": (_cannot_run, "could not be started", 0.0, False),
    "it ends in the handshake": (_at("initialize", _ends), "It ended with exit code 3. It said: last words", 0.0, True),
    "it refuses the handshake": (_at("initialize", _refuses), "It refused the handshake: not today.", 0.0, True),
    "it hangs in the handshake": (_at("initialize", _hangs), "It did not answer within 10 seconds.", 10.0, True),
    "it hangs at its list": (_at("tools/list", _hangs), "It did not list its tools within 10 seconds.", 10.0, True),
    "it ends at its list": (_at("tools/list", _ends), "Connection closed.", 0.0, True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_start_that_fails_leaves_nothing_and_is_tried_again(tmp_path: Path, name: str) -> None:
    set_up, reason, seconds, is_retried = FAULTS[name]

    async def story(site: Site) -> None:
        set_up(site)
        found = await site.stands("error")
        assert reason in found.error
        assert now() == 0.6 + seconds
        assert site.unreleased() == []
        tries = len(site.programs)
        await asyncio.sleep(0.4)
        assert len(site.programs) == tries
        await asyncio.sleep(0.2)
        assert len(site.programs) == tries + is_retried
        site.methods = Site(tmp_path / "sound").methods
        site.cannot_spawn = site.cannot_run = ""
        assert (await (await site.mcp.servers())._known("s").connection()) is not None
        await site.stands("connected")

    play(tmp_path, story)


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
def test_a_list_that_is_refused_is_empty_and_the_rest_can_be_used(tmp_path: Path, what: str) -> None:
    async def story(site: Site) -> None:
        site.items = {"tools": [tool("go")], "prompts": [{"name": "p"}], "resources": [{"uri": "r://1", "name": "r"}]}
        site.methods[f"{what}/list"] = _refuses
        found = await site.stands("connected")
        counts = {"tools": found.tool_count, "prompts": found.prompt_count, "resources": found.resource_count}
        assert counts == {**dict.fromkeys(counts, 1), what: 0}
        assert f"[{what} cannot be listed: not today]" in (await site.mcp.servers()).log("s")

    play(tmp_path, story)


def test_it_is_tried_later_each_time_and_left_alone_after_eight(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _refuses
        await asyncio.sleep(3600)
        begun = [program.began_at for program in site.programs]
        assert [round(b - a, 3) for a, b in pairwise(begun)] == [0.5, 1, 2, 4, 8, 16, 32]
        site.methods = Site(tmp_path / "sound").methods
        assert site.mcp.tools() == () or site.state().state == "error"
        assert (await (await site.mcp.servers())._known("s").connection()) is not None
        assert len(site.programs) == 9, "a call has it tried at once"

    play(tmp_path, story)


# Connections that end


@pytest.mark.parametrize(("lasts", "delay"), [(1.0, 1.0), (29.9, 1.0), (30.0, 0.5), (3600.0, 0.5)])
def test_a_connection_that_lasted_makes_up_for_failures(tmp_path: Path, lasts: float, delay: float) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _refuses
        await site.stands("error")
        site.methods = Site(tmp_path / "sound").methods
        await site.stands("connected")
        await asyncio.sleep(lasts)
        site.last.end(1)
        ended = now()
        assert (await site.stands("error")).error == "It ended with exit code 1."
        await site.stands("connected")
        assert site.last.began_at == pytest.approx(ended + delay)

    play(tmp_path, story)


@pytest.mark.parametrize(("idle", "pings"), [(0.0, 0), (29.9, 0), (30.0, 1), (300.0, 1)])
def test_an_idle_connection_is_tested_before_it_is_used(tmp_path: Path, idle: float, pings: int) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        await asyncio.sleep(idle)
        assert (await site.call()).content == "done"
        assert site.last.count("ping") == pings
        assert len(site.programs) == 1

    play(tmp_path, story)


@pytest.mark.parametrize(("timeout", "waits"), [(4, 4.0), (60, 10.0)])
def test_one_that_does_not_answer_a_test_is_replaced_before_the_call(
    tmp_path: Path, timeout: int, waits: float
) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        await asyncio.sleep(100)
        site.methods["ping"] = _hangs
        began = now()
        assert (await site.call()).content == "done"
        first, second = site.programs
        assert second.began_at == pytest.approx(began + waits, abs=2)
        assert second.began_at >= began + waits
        assert first.count("tools/call") == 0
        assert first.killed_at is not None

    play(tmp_path, story, s={"command": "x", "timeout": timeout})


# Calls


@pytest.mark.parametrize(("settings", "seconds"), [({}, 300.0), ({"call_timeout": 7}, 7.0)])
def test_a_call_without_a_sign_of_life_is_cancelled(tmp_path: Path, settings: Json, seconds: float) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = _hangs
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
        site.methods["tools/call"] = _hangs
        await site.stands("connected")
        calling = start(site.call())
        await asyncio.sleep(100_000)
        assert not calling.done()
        (asked,) = (message for message in site.last.heard if message.get("method") == "tools/call")
        site.last.say(id=asked["id"], result={"content": [{"type": "text", "text": "late"}]})
        assert (await calling).content == "late"

    play(tmp_path, story, s={"command": "x", "call_timeout": 0})


def test_progress_is_a_sign_of_life_and_is_said(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/call"] = _hangs
        await site.stands("connected")
        context = Context(site)
        calling = start(site.call(context=context))
        await site.until(lambda: site.last.count("tools/call"))
        (asked,) = (message for message in site.last.heard if message.get("method") == "tools/call")
        token = asked["params"]["_meta"]["progressToken"]
        for step in range(1, 6):
            await asyncio.sleep(6)
            params = {"progressToken": token, "progress": step, "total": 5, "message": f"step {step}"}
            site.last.say(method="notifications/progress", params=params)
        await asyncio.sleep(6)
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
            await asyncio.sleep(1000)
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
        site.methods["tools/call"] = _ends
        await site.stands("connected")
        with pytest.raises(CallFailed) as failed:
            await site.call()
        assert "went away while go was at work. It ended with exit code 3. It said: last words" in str(failed.value)
        assert "Whether the tool did anything is not known." in str(failed.value)

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
        servers = await site.mcp.servers()
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
        site.methods["resources/read"] = _hangs
        if not pings:
            site.methods["ping"] = _hangs
        servers = await site.mcp.servers()
        began = now()
        with pytest.raises(BadRequest, match="did not answer within 7 s"):
            await servers.resource("s", "r://1")
        assert now() == pytest.approx(began + 7, abs=0.2)
        await asyncio.sleep(30)
        assert len(site.programs) == (1 if pings else 2), "one that is stuck is replaced"
        assert site.programs[0].count("ping") == 1

    play(tmp_path, story, s={"command": "x", "timeout": 7})


def test_one_that_goes_while_it_is_asked_is_named_and_comes_back(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        _prompts(site)
        await site.stands("connected")
        site.methods["prompts/get"] = _ends
        servers = await site.mcp.servers()
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
            await (await site.mcp.servers()).resource("s", "r://1")
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


# Lists


def test_a_list_that_has_changed_is_read_again_and_told_once(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.items["tools"] = [tool("go"), tool("more")]
        site.last.say(method="notifications/tools/list_changed")
        await site.until(lambda: site.state().tool_count == 2)
        assert site.told()[-1] == ("tools_list_changed", "connected", 2)
        notices = len(site.told())
        await asyncio.sleep(5)
        site.last.say(method="notifications/tools/list_changed")
        await site.until(lambda: site.last.count("tools/list") == 3)
        await asyncio.sleep(5)
        assert len(site.told()) == notices, "the same list is not told again"

    play(tmp_path, story)


@pytest.mark.parametrize("what", ["prompts", "resources"])
def test_other_lists_are_read_again_too(tmp_path: Path, what: str) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.items[what] = [{"name": "n", "uri": "r://n"}]
        site.last.say(method=f"notifications/{what}/list_changed")
        await site.until(lambda: site.told()[-1][0] == f"{what}_list_changed")

    play(tmp_path, story)


def test_lists_that_change_at_once_again_are_read_less_and_less_often(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        times: list[float] = []

        def restless(program: Program, _: Json) -> Json:
            times.append(now())
            program.say(method="notifications/tools/list_changed")
            return {"result": {"tools": [tool(f"t{len(times)}")]}}

        site.methods["tools/list"] = restless
        await asyncio.sleep(400)
        pauses = [round(b - a, 3) for a, b in pairwise(times)]
        assert pauses[1:10] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]

    play(tmp_path, story)


def test_one_that_hangs_while_a_list_is_read_again_is_given_up(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.methods["tools/list"] = _hangs
        site.last.say(method="notifications/tools/list_changed")
        found = await site.stands("error")
        assert found.error.startswith("It did not answer within 10 seconds.")
        assert now() == pytest.approx(10.6, abs=1.1)

    play(tmp_path, story)


@pytest.mark.parametrize(("bound", "count"), [(1, 1), (2, 2), (3, 3), (50, 3)])
def test_lists_are_read_page_by_page_up_to_a_bound(
    tmp_path: Path, bound: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(_: Program, message: Json) -> Json:
        number = int((message.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(number + 1)} if number < 2 else {}
        return {"result": {"tools": [tool(f"t{number}")], **more}}

    async def story(site: Site) -> None:
        site.methods["tools/list"] = page
        found = await site.stands("connected")
        assert found.tools == tuple(f"mcp_s_t{number}" for number in range(count))
        assert site.last.count("tools/list") == count

    monkeypatch.setattr("holdfast.extensions.mcp.wire.MOST_PAGES", bound)
    play(tmp_path, story)


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_entries_of_a_list_are_bounded(tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        site.items["tools"] = [tool(name) for name in "abc"]
        assert (await site.stands("connected")).tool_count == bound

    monkeypatch.setattr("holdfast.extensions.mcp.server._MOST", bound)
    play(tmp_path, story)


# Settings


EFFECTS: dict[str, tuple[Json, Callable[[Site], object], object]] = {
    "command": ({"command": "prog"}, lambda site: site.last.command, ("prog",)),
    "args": ({"command": "x", "args": ["a", "$HOME"]}, lambda site: site.last.command[1], "a"),
    "env": ({"command": "x", "env": {"MINE": "1"}}, lambda site: site.last.environment["MINE"], "1"),
    "disabled_tools": ({"command": "x", "disabled_tools": ["go"]}, lambda site: site.state().tools, ("mcp_s_b",)),
    "enabled_tools": ({"command": "x", "enabled_tools": ["go"]}, lambda site: site.state().tools, ("mcp_s_go",)),
    "type": ({"command": "x", "type": "stdio"}, lambda site: site.state().type, "stdio"),
}
ELSEWHERE = {
    "disabled": "test_one_that_is_switched_off_is_not_started",
    "timeout": "test_one_that_does_not_answer_a_test_is_replaced_before_the_call",
    "call_timeout": "test_a_call_without_a_sign_of_life_is_cancelled",
    "url": "test_http.py",
    "headers": "test_http.py",
    "oauth": "test_settings.py",
    "oauth_client_id": "test_settings.py",
    "oauth_client_secret": "test_settings.py",
    "oauth_callback_port": "test_settings.py",
    "oauth_token": "domain.settings: kept for other programs' files",
}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_setting_has_its_effect(tmp_path: Path, name: str) -> None:
    settings, seen, expected = EFFECTS[name]

    async def story(site: Site) -> None:
        site.items["tools"].append(tool("b"))
        await site.stands("connected")
        assert seen(site) == expected
        plain = {"GIVEN": "by the client"}
        assert site.last.environment.items() >= plain.items()
        assert "WITHHELD" not in site.last.environment

    play(tmp_path, story, s=settings)


def test_every_setting_has_a_test() -> None:
    names = {field.name for field in msgspec.structs.fields(McpSettings)}
    assert names == EFFECTS.keys() | ELSEWHERE.keys()


def test_one_that_is_switched_off_is_not_started(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await asyncio.sleep(10)
        assert site.state().state == "disabled"
        assert site.programs == []
        assert site.mcp.tools() == ()
        with pytest.raises(CallFailed, match="was switched off"):
            await (await site.mcp.servers())._known("s").connection()

    play(tmp_path, story, s={"command": "x", "disabled": True})


def test_settings_that_change_are_followed_and_others_are_left_alone(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected", name="s")
        await site.stands("connected", name="other")
        site.is_stubborn = True
        site.configure(s={"command": "x", "args": ["new"]}, other={"command": "y"})
        site.mcp.refresh()
        await site.until(lambda: len(site.programs) == 3)
        await site.stands("connected", name="s")
        first = next(program for program in site.programs if program.command == ("x",))
        assert first.killed_at is not None
        assert first.killed_at <= site.last.began_at, "both may want the same port"
        assert site.last.command == ("x", "new")
        site.configure()
        site.mcp.refresh()
        assert site.mcp.states() == {}
        await asyncio.sleep(5)
        assert site.unreleased() == []

    play(tmp_path, story, s={"command": "x"}, other={"command": "y"})


def test_a_restart_starts_it_again_with_the_same_settings(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        servers = await site.mcp.servers()
        servers.restart("s")
        assert site.state().state == "starting"
        await site.stands("connected")
        first, second = site.programs
        assert (first.is_closed, second.command) == (True, ("x",))
        with pytest.raises(BadRequest, match=r"no MCP server called t\. There is: s\."):
            servers.restart("t")

    play(tmp_path, story)


def test_who_waits_for_one_whose_settings_change_is_told(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.last.end(1)
        await site.stands("error")
        site.methods["initialize"] = _hangs
        calling = start(site.call())
        await site.stands("starting")
        site.configure()
        site.mcp.refresh()
        with pytest.raises(CallFailed, match="was switched off, or its settings were changed"):
            await calling

    play(tmp_path, story)


# What was lent


def test_what_is_lent_stands_below_the_settings_and_goes_with_its_lender(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        lent = McpSettings(command="$NOT_EXPANDED")
        site.mcp.lend("one", {"s": lent, "t": lent})
        site.mcp.lend("two", {"t": McpSettings(command="later")})
        await site.stands("connected", name="t")
        await site.stands("connected", name="s")
        commands = sorted(program.command for program in site.programs)
        assert commands == [("$NOT_EXPANDED",), ("x",)], "the settings first, then who lent first; as it stands there"
        site.mcp.lend("one", {"s": lent, "t": lent})
        await asyncio.sleep(3)
        assert len(site.programs) == 2
        site.mcp.lend("one", {})
        await site.until(lambda: site.last.command == ("later",))
        site.mcp.lend("two", {})
        assert set(site.mcp.states()) == {"s"}
        await asyncio.sleep(5)
        assert len(site.unreleased()) == 1

    play(tmp_path, story)


def test_what_was_lent_and_is_then_configured_alike_is_expanded(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.mcp.lend("one", {"t": McpSettings(command="$HOME")})
        await site.stands("connected", name="t")
        await site.stands("connected", name="s")
        assert {program.command for program in site.programs} == {("$HOME",), ("x",)}
        site.configure(s={"command": "x"}, t={"command": "$HOME"})
        site.mcp.refresh()
        await site.until(lambda: len(site.programs) == 3)
        assert site.last.command == (str(tmp_path / "home"),)

    play(tmp_path, story)


# Closing


@pytest.mark.parametrize("moment", ["waiting", "handshake", "connected", "call", "list", "error"])
@pytest.mark.parametrize("kind", ["willing", "stubborn", "undying"])
def test_a_workspace_is_closed_whatever_its_servers_do(tmp_path: Path, moment: str, kind: str) -> None:
    async def story(site: Site) -> None:
        site.is_stubborn = kind != "willing"
        site.is_undying = kind == "undying"
        if moment in ("handshake", "list"):
            site.methods["initialize" if moment == "handshake" else "tools/list"] = _hangs
        if moment == "call":
            site.methods["tools/call"] = _hangs
        if moment == "error":
            site.methods["initialize"] = _refuses
        calls = []
        if moment in ("handshake", "list"):
            method = "initialize" if moment == "handshake" else "tools/list"
            await site.until(lambda: site.programs and site.last.count(method))
        elif moment in ("connected", "call"):
            await site.stands("connected")
        elif moment == "error":
            if kind == "undying":
                return
            await site.stands("error")
        if moment == "call":
            calls.append(start(site.call()))
            await site.until(lambda: site.last.count("tools/call"))
        began = now()
        await site.mcp.close()
        assert now() - began <= 5.0
        assert [program for program in site.programs if program.killed_at is None] == []
        assert all(call.done() for call in calls)
        if kind == "undying":
            for program in site.programs:
                program.end(137)

    play(tmp_path, story)


def test_after_it_was_closed_nothing_is_started(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        await site.mcp.close()
        count, told = len(site.programs), len(site.events)
        site.configure(s={"command": "z"}, t={"command": "y"})
        site.mcp.refresh()
        await asyncio.sleep(100)
        assert len(site.programs) == count
        assert len(site.events) == told

    play(tmp_path, story)


def test_what_is_remembered_is_written_for_the_servers_of_now_only(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        file = site.place.data / "mcp.json"
        await site.stands("connected", name="s")
        await site.stands("connected", name="t")
        await asyncio.sleep(1)
        assert set(json.loads(file.read_text())) == {"s", "t"}
        assert file.stat().st_mode & 0o777 == 0o600
        site.items["tools"] = [tool("other")]
        site.configure(s={"command": "x", "args": ["n"]})
        site.mcp.refresh()
        await site.until(lambda: site.state("s").tools == ("mcp_s_other",))
        await asyncio.sleep(1)
        assert set(json.loads(file.read_text())) == {"s"}

    play(tmp_path, story, s={"command": "x"}, t={"command": "y"})
