"""The life of a server of tools in virtual time: when it is started, tried again, tested, given up and closed.

After every test there is no task left, and every program that was started is killed and closed.
"""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from extensions.mcp.in_memory import Program, Site, ends, hangs, in_virtual_time, now, play, refuses, tool
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


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
            servers = await site.mcp.manager()
            await servers.wait_lists("s")
        elif hurry == "tried":
            await site.mcp.wait_attempts(5.0)
        else:
            await site.mcp.wait_settled()
        assert site.state().state == "connected"
        assert now() == 0.0

    play(tmp_path, story, pause=9.0)


def test_one_that_is_remembered_is_known_at_once_and_its_call_waits_for_it(tmp_path: Path) -> None:
    async def first(site: Site) -> None:
        await site.stands("connected")
        await elapse(1)

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
        await elapse(1)
        assert site.state().tools == (), "with other settings it may be another server"

    (tmp_path / "three/data").mkdir(parents=True)
    (tmp_path / "three/data/mcp.json").write_bytes(data)
    play(tmp_path / "three", changed, pause=9.0, s={"command": "x", "args": ["other"]})


def test_no_more_than_three_start_at_a_time_and_one_that_hangs_gives_way(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = lambda program, message: None
        await site.until(lambda: len(site.programs) == 3)
        await elapse(2.9)
        assert len(site.programs) == 3
        await site.until(lambda: len(site.programs) == 4)
        assert now() == 3.6

    slow: Json = {"command": "x", "timeout": 30}
    play(tmp_path, story, a=slow, b=slow, c=slow, d=slow)


# Each step of the start fails


def _no_process(site: Site) -> None:
    site.cannot_spawn = "no such program"


def _cannot_run(site: Site) -> None:
    site.cannot_run = "x could not be started: No such file or directory."
    site.methods["initialize"] = ends


def _at(method: str, how: Callable[[Program, Json], Json | None]) -> Callable[[Site], None]:
    def set_up(site: Site) -> None:
        site.methods[method] = how

    return set_up


FAULTS: dict[str, tuple[Callable[[Site], None], str, float, bool]] = {
    # how, the reason, seconds until it is told, whether it is tried again by itself
    "it cannot be spawned": (_no_process, "no such program", 0.0, False),
    "it never ran": (_cannot_run, "could not be started", 0.0, False),
    "it ends in the handshake": (_at("initialize", ends), "It ended with exit code 3. It said: last words", 0.0, True),
    "it refuses the handshake": (_at("initialize", refuses), "It refused the handshake: not today.", 0.0, True),
    "it hangs in the handshake": (_at("initialize", hangs), "It did not answer within 10 seconds.", 10.0, True),
    "it hangs at its list": (_at("tools/list", hangs), "It did not list its tools within 10 seconds.", 10.0, True),
    "it ends at its list": (_at("tools/list", ends), "Connection closed.", 0.0, True),
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
        await elapse(0.4)
        assert len(site.programs) == tries
        await elapse(0.2)
        assert len(site.programs) == tries + is_retried
        site.methods = Site(tmp_path / "sound").methods
        site.cannot_spawn = site.cannot_run = ""
        assert (await (await site.mcp.manager())._get("s").connection()) is not None
        await site.stands("connected")

    play(tmp_path, story)


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
def test_a_list_that_is_refused_is_empty_and_the_rest_can_be_used(tmp_path: Path, what: str) -> None:
    async def story(site: Site) -> None:
        site.items = {"tools": [tool("go")], "prompts": [{"name": "p"}], "resources": [{"uri": "r://1", "name": "r"}]}
        site.methods[f"{what}/list"] = refuses
        found = await site.stands("connected")
        counts = {"tools": found.tool_count, "prompts": found.prompt_count, "resources": found.resource_count}
        assert counts == {**dict.fromkeys(counts, 1), what: 0}
        assert f"[{what} cannot be listed: not today]" in (await site.mcp.manager()).log("s")

    play(tmp_path, story)


def test_it_is_tried_later_each_time_and_left_alone_after_eight(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = refuses
        await elapse(3600)
        begun = [program.began_at for program in site.programs]
        assert [round(b - a, 3) for a, b in pairwise(begun)] == [0.5, 1, 2, 4, 8, 16, 32]
        site.methods = Site(tmp_path / "sound").methods
        assert site.mcp.tools() == () or site.state().state == "error"
        assert (await (await site.mcp.manager())._get("s").connection()) is not None
        assert len(site.programs) == 9, "a call has it tried at once"

    play(tmp_path, story)


# Connections that end


@pytest.mark.parametrize(("lasts", "delay"), [(1.0, 1.0), (29.9, 1.0), (30.0, 0.5), (3600.0, 0.5)])
def test_a_connection_that_lasted_makes_up_for_failures(tmp_path: Path, lasts: float, delay: float) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = refuses
        await site.stands("error")
        site.methods = Site(tmp_path / "sound").methods
        await site.stands("connected")
        await elapse(lasts)
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
        await elapse(idle)
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
        await elapse(100)
        site.methods["ping"] = hangs
        began = now()
        assert (await site.call()).content == "done"
        first, second = site.programs
        assert second.began_at == pytest.approx(began + waits, abs=2)
        assert second.began_at >= began + waits
        assert first.count("tools/call") == 0
        assert first.killed_at is not None

    play(tmp_path, story, s={"command": "x", "timeout": timeout})


# Closing


def test_one_that_never_ends_is_dropped_with_its_settings(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.is_stubborn = site.is_undying = True
        site.configure()
        site.mcp.refresh()
        await elapse(5)
        assert site.last.is_closed
        assert site.last.stops == [0.5], "its input ends, it is asked to go, it is killed"
        site.last.end(137)

    play(tmp_path, story)


def test_nothing_begins_after_a_workspace_without_servers_was_closed(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path)
        site.mcp.start()
        await site.mcp.close()
        site.configure(s={"command": "x"})
        site.mcp.refresh()
        await elapse(10)
        assert site.programs == []

    in_virtual_time(main)


def test_who_asks_while_it_starts_does_not_shorten_a_later_pause(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        greet = site.methods["initialize"]

        def slowly(program: Program, message: Json) -> None:
            answer = greet(program, message)
            assert answer is not None
            asyncio.get_running_loop().call_later(2.0, lambda: program.say(id=message["id"], **answer))

        site.methods["initialize"] = slowly
        await site.until(lambda: site.programs and site.last.count("initialize"))
        await (await site.mcp.manager())._get("s").connection()
        await elapse(1)
        site.last.end(1)
        ended = now()
        await site.until(lambda: len(site.programs) == 2)
        assert site.last.began_at == pytest.approx(ended + 0.5)

    play(tmp_path, story)


def test_the_last_words_are_those_of_the_last_try(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = ends
        assert "It said: last words" in (await site.stands("error")).error
        site.methods["initialize"] = lambda program, _: program.end(4)
        await site.until(lambda: "exit code 4" in site.state().error)
        assert site.state().error == "It ended with exit code 4."

    play(tmp_path, story)


def test_lists_that_were_to_be_read_again_are_read_once_after_a_new_start(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.last.end(1)
        await site.stands("error")
        (await site.mcp.manager()).refresh_list("s", "tools")
        await site.stands("connected")
        await elapse(5)
        assert site.last.count("tools/list") == 1

    play(tmp_path, story)


@pytest.mark.parametrize("moment", ["waiting", "handshake", "connected", "call", "list", "error"])
@pytest.mark.parametrize("kind", ["willing", "stubborn", "undying"])
def test_a_workspace_is_closed_whatever_its_servers_do(tmp_path: Path, moment: str, kind: str) -> None:
    async def story(site: Site) -> None:
        site.is_stubborn = kind != "willing"
        site.is_undying = kind == "undying"
        if moment in ("handshake", "list"):
            site.methods["initialize" if moment == "handshake" else "tools/list"] = hangs
        if moment == "call":
            site.methods["tools/call"] = hangs
        if moment == "error":
            site.methods["initialize"] = refuses
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
        await elapse(100)
        assert len(site.programs) == count
        assert len(site.events) == told

    play(tmp_path, story)


def test_what_is_remembered_is_written_for_the_servers_of_now_only(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        file = site.place.data / "mcp.json"
        await site.stands("connected", name="s")
        await site.stands("connected", name="t")
        await elapse(1)
        assert set(json.loads(file.read_text())) == {"s", "t"}
        assert file.stat().st_mode & 0o777 == 0o600
        site.items["tools"] = [tool("other")]
        site.configure(s={"command": "x", "args": ["n"]})
        site.mcp.refresh()
        await site.until(lambda: site.state("s").tools == ("mcp_s_other",))
        await elapse(1)
        assert set(json.loads(file.read_text())) == {"s"}

    play(tmp_path, story, s={"command": "x"}, t={"command": "y"})
