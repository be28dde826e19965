"""The launches of a language server in virtual time: when it is started, tried again, given up and closed.

After every test there is no task left, and every program that was started is killed and closed.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.lsp.in_memory import SILENT, Program, Site
from extensions.mcp.in_memory import in_virtual_time
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import LspState
from holdfast.domain.settings import LspSettings
from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE, ON_REQUEST, ON_VIEW, WaitLimits
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]
READY, ERROR, STARTING, STOPPED = LspState.READY, LspState.ERROR, LspState.STARTING, LspState.STOPPED


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def play(top: Path, story: Callable[[Site], Coroutine[Any, Any, None]], **more: Any) -> None:  # noqa: ANN401
    async def main() -> None:
        site = Site(top, **more)
        try:
            await story(site)
        finally:
            await site.fleet.close()
        assert [program for program in site.programs if program.killed_at is None or not program.is_closed] == []

    in_virtual_time(main)


def test_it_is_started_by_the_first_file_of_its_kind(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        other = site.place.project / "b.other"
        other.write_text("x")
        assert await site.fleet.servers_for(str(other)) == []
        assert site.info().state == LspState.UNSTARTED
        assert await site.fleet.servers_for("/etc/hosts.txt") == [], "it lies outside"
        assert site.programs == []
        await site.want()
        await site.stands(READY)
        assert site.last.params("initialize")[0]["rootUri"] == file_uri(str(site.place.project))
        await site.until(lambda: site.last.count("textDocument/didOpen"))
        (opened,) = site.last.params("textDocument/didOpen")
        assert opened["textDocument"]["text"] == "one\n"
        assert site.told()[:2] == [("state_changed", STARTING, 0), ("state_changed", READY, 0)]

    play(tmp_path, story)


def _hangs(_: Program, __: Json) -> object:
    return SILENT


def _ends(program: Program, _: Json) -> object:
    program.end(3, "chatter\nerror: it broke here\nend of a stack\n")
    return SILENT


def _refuses(_: Program, __: Json) -> Json:
    return {"error": {"code": -1, "message": "not today"}}


def _babbles(program: Program, _: Json) -> object:
    program.give(b"Hello, I am no server\r\n\r\n")
    return SILENT


def _at(how: Callable[[Program, Json], object]) -> Callable[[Site], None]:
    def set_up(site: Site) -> None:
        site.methods["initialize"] = how

    return set_up


def _no_process(site: Site) -> None:
    site.cannot_spawn = OSError(2, "no such thing")


def _refused_process(site: Site) -> None:
    site.cannot_spawn = ToolError("there is no room")


def _never_ran(site: Site) -> None:
    site.cannot_run = "tongue could not be started."


def _unwritable_trace(site: Site) -> None:
    site.configure(options={"debug_lsp": True})
    site.place.write(site.place.data / "lsp", "a file")


FAULTS: dict[str, tuple[Callable[[Site], None], str, float]] = {
    "it cannot be spawned": (_no_process, "no such thing", 0.0),
    "spawning is refused": (_refused_process, "there is no room", 0.0),
    "it never ran": (_never_ran, "tongue could not be started.", 0.0),
    "it hangs": (_at(_hangs), "It did not start: The language server did not answer within 30 s (initialize).", 30.0),
    "it ends": (_at(_ends), "It ended with exit code 3. Its last words: error: it broke here", 0.0),
    "it refuses": (_at(_refuses), "It did not start: The language server refused: not today", 0.0),
    "it babbles": (_at(_babbles), "It sent ", 0.0),
    "its trace cannot be written": (_unwritable_trace, "It did not start:", 0.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_start_that_fails_leaves_nothing_and_is_tried_again(tmp_path: Path, name: str) -> None:
    set_up, reason, seconds = FAULTS[name]

    async def story(site: Site) -> None:
        set_up(site)
        await site.want()
        found = await site.stands(ERROR)
        assert reason in found.error
        assert now() == pytest.approx(seconds, abs=0.3)
        failed = now()
        await elapse(0.7)
        assert [program for program in site.programs if not program.is_closed] == [], "nothing of it is left"
        assert site.info().state == ERROR
        site.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        site.cannot_spawn, site.cannot_run = None, ""
        (site.place.data / "lsp").unlink(missing_ok=True)
        await site.stands(READY)
        assert site.last.began_at == pytest.approx(failed + 1.0)
        assert site.info().error == ""

    play(tmp_path, story)


def test_it_is_tried_later_each_time_and_left_alone_after_five(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _refuses
        await site.want()
        await elapse(1000)
        begun = [program.began_at for program in site.programs]
        assert begun == pytest.approx([0.0, 1.0, 3.0, 7.0, 15.0])
        assert "It was started 5 times and is not started again" in site.info().error
        await site.want()
        await elapse(10)
        assert len(site.programs) == 5, "a file does not bring it back"
        site.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        assert site.fleet.restart() == ["tongue"]
        await site.stands(READY)

    play(tmp_path, story)


@pytest.mark.parametrize(("lasts", "pause"), [(1.0, 2.0), (59.0, 2.0), (60.0, 1.0), (3600.0, 1.0)])
def test_one_that_worked_long_enough_has_not_failed_before(tmp_path: Path, lasts: float, pause: float) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _refuses
        await site.want()
        await site.stands(ERROR)
        site.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        await site.stands(READY)
        await elapse(lasts)
        site.last.end(1)
        await site.stands(ERROR)
        failed = now()
        await site.stands(READY)
        assert site.last.began_at == pytest.approx(failed + pause, abs=0.01)

    play(tmp_path, story)


def test_a_program_that_is_not_there_is_looked_for_again_after_a_while(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.program.rename(site.program.with_name("away"))
        await site.want()
        assert site.info().state in (LspState.UNSTARTED, ERROR, STARTING)
        await elapse(1)
        assert site.programs == []
        site.program.with_name("away").rename(site.program)
        await site.want()
        await elapse(1)
        assert site.programs == [], "it is believed for a while"
        await elapse(30)
        await site.want()
        await site.stands(READY)

    play(tmp_path, story)


@pytest.mark.parametrize("when", ["starting", "ready", "error"])
def test_all_rest_until_a_file_is_touched_again(tmp_path: Path, when: str) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = {"starting": _hangs, "error": _refuses}.get(when, site.methods["initialize"])
        await site.want()
        await site.until(lambda: site.info().state == LspState[when.upper()] and site.programs)
        site.fleet.stop()
        assert site.info().state == STOPPED
        await elapse(100)
        assert len(site.programs) == 1, "no timer brings it back"
        site.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        await site.want()
        await site.stands(READY)

    play(tmp_path, story)


def test_a_restart_opens_what_was_open(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.want()
        await site.until(lambda: site.programs and site.last.count("textDocument/didOpen"))
        assert site.fleet.restart("tongue") == ["tongue"]
        await site.until(lambda: len(site.programs) == 2 and site.last.count("textDocument/didOpen"))
        first = site.programs[0]
        assert first.count("shutdown") == 1
        with pytest.raises(ToolError, match="There is no language server other"):
            site.fleet.restart("other")

    play(tmp_path, story)


@pytest.mark.parametrize("how", ["stop", "restart"])
def test_one_that_is_not_wanted_any_more_when_its_program_runs_is_closed(tmp_path: Path, how: str) -> None:
    async def story(site: Site) -> None:
        site.holds_spawns = asyncio.Event()
        await site.want()
        await elapse(1)
        if how == "stop":
            site.fleet.stop()
        else:
            site.fleet.restart("tongue")
        site.holds_spawns.set()
        await elapse(1)
        living = [program for program in site.programs if not program.is_closed]
        assert len(living) == (how == "restart")
        assert site.programs[0].count("initialize") == 0
        assert site.info().state == (STOPPED if how == "stop" else READY)

    play(tmp_path, story)


def test_what_is_not_waited_for_any_more_is_cancelled(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _hangs
        await site.want()
        await site.stands(ERROR)
        await elapse(0.5)
        (asked,) = (message for message in site.last.heard if message.get("method") == "initialize")
        assert site.last.params("$/cancelRequest") == [{"id": asked["id"]}]

    play(tmp_path, story)


def test_trust_in_the_project_starts_them_again(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.want()
        await site.stands(READY)
        site.place.trust(site.configuration)
        site.fleet.refresh()
        await site.want()
        await site.until(lambda: len(site.programs) == 2)
        await elapse(1)
        assert site.programs[0].is_closed

    play(tmp_path, story)


def test_one_that_was_silent_is_waited_for_after_a_restart(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        path = str(site.file)
        await site.want()
        await site.stands(READY)
        await elapse(10)
        for text in ("a", "b"):
            site.file.write_text(text)
            await site.fleet.request_diagnostics(path, AFTER_CHANGE)
        site.fleet.restart()
        await site.until(lambda: len(site.programs) == 2)
        await site.stands(READY)
        await elapse(10)
        site.file.write_text("c")
        began = now()
        await site.fleet.request_diagnostics(path, AFTER_CHANGE)
        assert now() - began == pytest.approx(1.0)

    play(tmp_path, story)


def test_files_that_changed_are_told_before_somebody_asks(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        watchers = [{"globPattern": "**/*.cfg"}]
        await site.want()
        await site.stands(READY)
        registration = {
            "id": "1",
            "method": "workspace/didChangeWatchedFiles",
            "registerOptions": {"watchers": watchers},
        }
        site.last.say(id=9, method="client/registerCapability", params={"registrations": [registration]})
        await elapse(1)
        new = site.place.project / "new.cfg"
        new.write_text("x")
        (site.place.project / "new.other").write_text("x")
        await site.fleet.request_diagnostics(str(site.file), ON_VIEW)
        assert site.last.params("workspace/didChangeWatchedFiles") == [], "a glance does not look"
        await site.fleet.request_diagnostics(str(site.file), AFTER_CHANGE)
        assert site.last.params("workspace/didChangeWatchedFiles") == [
            {"changes": [{"uri": file_uri(str(new)), "type": 1}]}
        ]

    play(tmp_path, story)


def test_a_look_that_took_long_does_not_undo_what_a_later_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at the disk overlap, and may end in another order than they began in."""

    async def story(site: Site) -> None:
        await site.want()
        await site.stands(READY)
        watching = {"registerOptions": {"watchers": [{"globPattern": "**/*.cfg"}]}}
        registration = {"id": "1", "method": "workspace/didChangeWatchedFiles", **watching}
        site.last.say(id=9, method="client/registerCapability", params={"registrations": [registration]})
        await elapse(1)
        held = asyncio.Event()
        looks: list[object] = []
        in_thread = asyncio.to_thread

        async def slowly(work: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - whatever the work gives
            found = await in_thread(work, *args)
            if args and args[0] == site.fleet.root:
                looks.append(found)
                if len(looks) == 1:
                    await held.wait()
            return found

        monkeypatch.setattr("asyncio.to_thread", slowly)
        first = start(site.fleet.sync_file_changes())
        await elapse(1)
        assert len(looks) == 1
        new = site.place.project / "new.cfg"
        new.write_text("x")
        await site.fleet.sync_file_changes()
        held.set()
        await first
        await site.fleet.sync_file_changes()
        await elapse(1)
        told = site.last.params("workspace/didChangeWatchedFiles")
        assert told == [{"changes": [{"uri": file_uri(str(new)), "type": 1}]}]

    play(tmp_path, story)


@pytest.mark.parametrize("how", ["settings", "trust"])
@pytest.mark.parametrize("when", ["ready", "error"])
def test_one_that_was_replaced_is_gone_when_the_workspace_is(tmp_path: Path, how: str, when: str) -> None:
    """Its program, also where it does not answer that it shall end; and the timer that would start it again."""

    async def story(site: Site) -> None:
        site.methods["shutdown"] = _hangs
        if when == "error":
            site.methods["initialize"] = _refuses
        await site.want()
        await site.stands(READY if when == "ready" else ERROR)
        if how == "trust":
            site.place.trust(site.configuration)
        else:
            site.configure(args=["-x"])
        site.fleet.refresh()
        await site.fleet.close()
        assert site.last.is_closed
        await elapse(60)
        assert len(site.programs) == 1

    play(tmp_path, story)


@pytest.mark.parametrize(("name", "is_told"), [("tongue", True), ("pyright", False), ("basedpyright", False)])
def test_options_are_told_to_those_that_do_not_ask_for_them(tmp_path: Path, name: str, is_told: bool) -> None:
    async def story(site: Site) -> None:
        _set_options(site, {"python": {"mode": 1}})
        await site.want()
        await site.stands(READY)
        await elapse(0.1)
        assert bool(site.last.params("workspace/didChangeConfiguration")) is is_told
        asked = {"items": [{"section": "python"}, {}, {"section": "x"}]}
        site.last.say(id=7, method="workspace/configuration", params=asked)
        await site.until(lambda: [item for item in site.last.heard if item.get("id") == 7])
        (answer,) = (item for item in site.last.heard if item.get("id") == 7)
        assert answer["result"][0]["mode"] == 1
        assert answer["result"][1]["python"]["mode"] == 1
        assert answer["result"][2] is None

    play(tmp_path, story, name=name)


# Settings


SETTINGS: dict[str, tuple[Json, Callable[[Site], object], object]] = {
    "command": ({}, lambda site: site.last.command[0], "{program}"),
    "args": ({"args": ["-x", "y"]}, lambda site: site.last.command[1:], ("-x", "y")),
    "env": ({"env": {"MINE": "1"}}, lambda site: site.last.environment["MINE"], "1"),
    "filetypes": ({"filetypes": ["txt", "x"]}, lambda site: site.fleet.supports("/b.x"), True),
    "root_markers": ({"root_markers": ["a.txt"]}, lambda site: site.last.root, "{project}"),
    "init_options": (
        {"init_options": {"a": 1}},
        lambda site: site.last.params("initialize")[0]["initializationOptions"],
        {"a": 1},
    ),
    "options": (
        {"options_": {"b": 2}},
        lambda site: site.last.params("workspace/didChangeConfiguration"),
        [{"settings": {"b": 2}}],
    ),
}
ELSEWHERE = {
    "timeout": "test_how_long_it_has_to_start",
    "disabled": "test_one_that_is_switched_off_is_not_started",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_has_its_effect(tmp_path: Path, name: str) -> None:
    given, seen, expected = SETTINGS[name]

    async def story(site: Site) -> None:
        if "options_" in given:
            _set_options(site, given["options_"])
        await site.want()
        await site.stands(READY)
        await elapse(0.1)
        wanted = expected
        if isinstance(wanted, str):
            wanted = wanted.format(program=site.program, project=site.place.project)
        assert seen(site) == wanted
        assert site.last.environment["GIVEN"] == "by the client"
        assert "WITHHELD" not in site.last.environment

    play(tmp_path, story, **{key: value for key, value in given.items() if key != "options_"})


def _set_options(site: Site, options: Json) -> None:
    """`options` of a server; the keyword of the helper is that of the table of the same name."""
    path = site.place.data / "config.json"
    tree = json.loads(path.read_text())
    tree["lsp"][site.name]["options"] = options
    path.write_text(json.dumps(tree))
    site.configuration.current()
    site.fleet.refresh()


def test_every_setting_has_a_test() -> None:
    assert {field.name for field in msgspec.structs.fields(LspSettings)} == SETTINGS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize(("given", "seconds"), [({}, 30.0), ({"timeout": 4}, 4.0), ({"timeout": 0}, 30.0)])
def test_how_long_it_has_to_start(tmp_path: Path, given: Json, seconds: float) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _hangs
        await site.want()
        await site.stands(ERROR)
        assert now() == pytest.approx(seconds, abs=0.01)

    play(tmp_path, story, **given)


def test_one_that_is_switched_off_is_not_started(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.want()
        await elapse(10)
        assert (site.info().state, site.programs) == (LspState.DISABLED, [])
        assert not site.fleet.supports(str(site.file))
        site.configure()
        site.fleet.refresh()
        await site.want()
        await site.stands(READY)
        site.fleet.refresh()
        assert len(site.programs) == 1, "the same settings change nothing"
        site.configure(disabled=True)
        site.fleet.refresh()
        await elapse(5)
        assert site.programs[0].is_closed
        assert site.info().state == LspState.DISABLED

    play(tmp_path, story, disabled=True)


# What it says


@pytest.mark.parametrize(
    ("times", "seconds"), [(ON_VIEW, 0.0), (AFTER_CHANGE, 5.0), (ON_REQUEST, 5.0), (WaitLimits(9.0, 2.0, 1.0), 2.0)]
)
def test_nobody_waits_longer_than_they_said_for_one_that_does_not_start(
    tmp_path: Path, times: WaitLimits, seconds: float
) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = _hangs
        answered = await site.fleet.request_diagnostics(str(site.file), times)
        assert list(answered.values()) == [False]
        assert now() == pytest.approx(seconds, abs=0.01)
        report = site.fleet.format_report(str(site.file), answered, is_brief=True)
        assert "tongue has not answered yet" in report

    play(tmp_path, story)


def test_an_answer_is_waited_for_and_counted_once(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.want()
        await site.stands(READY)
        path = str(site.file)
        asking = start(site.fleet.request_diagnostics(path, AFTER_CHANGE))
        await site.until(lambda: site.last.count("textDocument/didOpen"))
        began = now()
        site.last.publish(path, "wrong", "worse")
        answered = await asking
        assert list(answered.values()) == [True]
        assert now() == pytest.approx(began + 0.3, abs=0.05), "a moment after the last word it is over"
        assert site.info().diagnostic_count == 2
        assert [item for item in site.told() if item[0] == "diagnostics_changed"] == [("diagnostics_changed", READY, 2)]
        assert "wrong" in site.fleet.format_report(path, answered, is_brief=True)
        site.last.publish(path)
        await elapse(1)
        assert site.told()[-1] == ("diagnostics_changed", READY, 0)

    play(tmp_path, story)


def test_one_that_is_silent_twice_is_not_waited_for_until_it_speaks(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        path = str(site.file)
        await site.want()
        await site.stands(READY)
        await elapse(10)
        site.last.publish(path)
        await elapse(1)
        waits: list[float] = []
        for text in ("a", "b", "c"):
            site.file.write_text(text)
            began = now()
            await site.fleet.request_diagnostics(path, AFTER_CHANGE)
            waits.append(round(now() - began, 2))
        assert waits == [1.0, 1.0, 0.0]
        site.last.publish(path, "again")
        await elapse(1)
        site.file.write_text("d")
        began = now()
        await site.fleet.request_diagnostics(path, AFTER_CHANGE)
        assert now() - began == pytest.approx(1.0)

    play(tmp_path, story)


def test_one_that_ends_while_it_is_asked_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.want()
        await site.stands(READY)
        asking = start(site.fleet.request_diagnostics(str(site.file), ON_REQUEST))
        await site.until(lambda: site.last.count("textDocument/didOpen"))
        began = now()
        site.last.end(1)
        assert list((await asking).values()) == [False]
        assert now() - began < 0.5

    play(tmp_path, story)


# Closing


@pytest.mark.parametrize("when", ["never", "starting", "ready", "error", "asked", "deaf"])
@pytest.mark.parametrize("shutdown", ["answers", "hangs"])
def test_it_is_closed_whatever_it_does(tmp_path: Path, when: str, shutdown: str) -> None:
    async def story(site: Site) -> None:
        if shutdown == "hangs":
            site.methods["shutdown"] = _hangs
        site.is_deaf = when == "deaf"
        if when in ("starting", "error", "deaf"):
            site.methods["initialize"] = _refuses if when == "error" else _hangs
        asking = None
        if when != "never":
            await site.want()
            await site.until(lambda: site.programs)
        if when in ("ready", "error", "asked"):
            await site.stands(ERROR if when == "error" else READY)
        if when == "asked":
            asking = start(site.fleet.request_diagnostics(str(site.file), ON_REQUEST))
            await site.until(lambda: site.last.count("textDocument/didOpen"))
        began = now()
        await site.fleet.close()
        assert now() - began <= 1.0
        assert all(program.is_closed for program in site.programs)
        if asking is not None:
            await asking
        assert await site.fleet.servers_for(str(site.file)) == [], "after that none is started"

    play(tmp_path, story)
