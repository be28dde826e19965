"""Launches of a language server in virtual time: start, retry, giving up and close.

After every test there is no task left, and every started program is killed and closed.
"""

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extensions.lsp.in_memory_lsp import SILENT, LspFixture, Program, hangs, now, run_scenario
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import LspState
from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE, ON_REQUEST, ON_VIEW, WaitLimits
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.extensions.lsp.server_supervisor import LanguageServer
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]
READY, ERROR, STARTING, STOPPED = LspState.READY, LspState.ERROR, LspState.STARTING, LspState.STOPPED


def test_first_file_of_its_type_starts_server(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        other = fixture.place.project / "b.other"
        other.write_text("x")
        assert await fixture.manager.servers_for(str(other)) == []
        assert fixture.info().state == LspState.UNSTARTED
        assert await fixture.manager.servers_for("/etc/hosts.txt") == [], "it lies outside"
        assert fixture.programs == []
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        assert fixture.last.params("initialize")[0]["rootUri"] == file_uri(str(fixture.place.project))
        await fixture.wait_until(lambda: fixture.last.count("textDocument/didOpen"))
        (opened,) = fixture.last.params("textDocument/didOpen")
        assert opened["textDocument"]["text"] == "one\n"
        assert fixture.published()[:2] == [("state_changed", STARTING, 0), ("state_changed", READY, 0)]

    run_scenario(tmp_path, scenario)


def _ends(program: Program, _: Json) -> object:
    program.end(3, "chatter\nerror: it broke here\nend of a stack\n")
    return SILENT


def _refuses(_: Program, __: Json) -> Json:
    return {"error": {"code": -1, "message": "not today"}}


def _sends_garbage(program: Program, _: Json) -> object:
    program.send_bytes(b"Hello, I am no server\r\n\r\n")
    return SILENT


def _at(how: Callable[[Program, Json], object]) -> Callable[[LspFixture], None]:
    def set_up(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = how

    return set_up


def _no_process(fixture: LspFixture) -> None:
    fixture.cannot_spawn = OSError(2, "no such thing")


def _refused_process(fixture: LspFixture) -> None:
    fixture.cannot_spawn = ToolError("there is no room")


def _never_ran(fixture: LspFixture) -> None:
    fixture.cannot_run = "tongue could not be started."


def _unwritable_trace(fixture: LspFixture) -> None:
    fixture.configure(options={"debug_lsp": True})
    fixture.place.write(fixture.place.data / "lsp", "a file")


FAULTS: dict[str, tuple[Callable[[LspFixture], None], str, float]] = {
    "it cannot be spawned": (_no_process, "no such thing", 0.0),
    "spawning is refused": (_refused_process, "there is no room", 0.0),
    "it never ran": (_never_ran, "tongue could not be started.", 0.0),
    "it hangs": (_at(hangs), "It did not start: The language server did not answer within 30 s (initialize).", 30.0),
    "it ends": (_at(_ends), "It ended with exit code 3. Its last output: error: it broke here", 0.0),
    "it refuses": (_at(_refuses), "It did not start: The language server refused: not today", 0.0),
    "it babbles": (_at(_sends_garbage), "It sent ", 0.0),
    "its trace cannot be written": (_unwritable_trace, "It did not start:", 0.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_failed_start_is_cleaned_up_and_retried(tmp_path: Path, name: str) -> None:
    set_up, reason, seconds = FAULTS[name]

    async def scenario(fixture: LspFixture) -> None:
        set_up(fixture)
        await fixture.touch_file()
        found = await fixture.wait_for_state(ERROR)
        assert reason in found.error
        assert now() == pytest.approx(seconds, abs=0.3)
        failed = now()
        await elapse(0.7)
        assert [program for program in fixture.programs if not program.is_closed] == [], "nothing of it is left"
        assert fixture.info().state == ERROR
        fixture.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        fixture.cannot_spawn, fixture.cannot_run = None, ""
        (fixture.place.data / "lsp").unlink(missing_ok=True)
        await fixture.wait_for_state(READY)
        assert fixture.last.began_at == pytest.approx(failed + 1.0)
        assert fixture.info().error == ""

    run_scenario(tmp_path, scenario)


def test_retries_back_off_and_stop_after_five(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = _refuses
        await fixture.touch_file()
        await elapse(1000)
        begun = [program.began_at for program in fixture.programs]
        assert begun == pytest.approx([0.0, 1.0, 3.0, 7.0, 15.0])
        assert "It was started 5 times and is not started again" in fixture.info().error
        await fixture.touch_file()
        await elapse(10)
        assert len(fixture.programs) == 5, "a file does not bring it back"
        fixture.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        assert fixture.manager.restart() == ["tongue"]
        await fixture.wait_for_state(READY)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("lasts", "pause"), [(1.0, 2.0), (59.0, 2.0), (60.0, 1.0), (3600.0, 1.0)])
def test_long_uptime_resets_failures(tmp_path: Path, lasts: float, pause: float) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = _refuses
        await fixture.touch_file()
        await fixture.wait_for_state(ERROR)
        fixture.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        await fixture.wait_for_state(READY)
        await elapse(lasts)
        fixture.last.end(1)
        await fixture.wait_for_state(ERROR)
        failed = now()
        await fixture.wait_for_state(READY)
        assert fixture.last.began_at == pytest.approx(failed + pause, abs=0.01)

    run_scenario(tmp_path, scenario)


def test_missing_program_is_looked_up_again_later(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.program.rename(fixture.program.with_name("away"))
        await fixture.touch_file()
        assert fixture.info().state in (LspState.UNSTARTED, ERROR, STARTING)
        await elapse(1)
        assert fixture.programs == []
        fixture.program.with_name("away").rename(fixture.program)
        await fixture.touch_file()
        await elapse(1)
        assert fixture.programs == [], "it is believed for a while"
        await elapse(30)
        await fixture.touch_file()
        await fixture.wait_for_state(READY)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("when", ["starting", "ready", "error"])
def test_stopped_servers_wait_for_next_file(tmp_path: Path, when: str) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = {"starting": hangs, "error": _refuses}.get(when, fixture.methods["initialize"])
        await fixture.touch_file()
        await fixture.wait_until(lambda: fixture.info().state == LspState[when.upper()] and fixture.programs)
        fixture.manager.stop()
        assert fixture.info().state == STOPPED
        await elapse(100)
        assert len(fixture.programs) == 1, "no timer brings it back"
        fixture.methods["initialize"] = lambda _, message: {"result": {"capabilities": {}}}
        await fixture.touch_file()
        await fixture.wait_for_state(READY)

    run_scenario(tmp_path, scenario)


def test_restart_reopens_files(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await fixture.wait_until(lambda: fixture.programs and fixture.last.count("textDocument/didOpen"))
        assert fixture.manager.restart("tongue") == ["tongue"]
        await fixture.wait_until(lambda: len(fixture.programs) == 2 and fixture.last.count("textDocument/didOpen"))
        first = fixture.programs[0]
        assert first.count("shutdown") == 1
        with pytest.raises(ToolError, match="There is no language server other"):
            fixture.manager.restart("other")

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("how", ["stop", "restart"])
def test_server_no_longer_needed_at_start_is_closed(tmp_path: Path, how: str) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.holds_spawns = asyncio.Event()
        await fixture.touch_file()
        await elapse(1)
        if how == "stop":
            fixture.manager.stop()
        else:
            fixture.manager.restart("tongue")
        fixture.holds_spawns.set()
        await elapse(1)
        living = [program for program in fixture.programs if not program.is_closed]
        assert len(living) == (how == "restart")
        assert fixture.programs[0].count("initialize") == 0
        assert fixture.info().state == (STOPPED if how == "stop" else READY)

    run_scenario(tmp_path, scenario)


def test_abandoned_request_is_cancelled(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = hangs
        await fixture.touch_file()
        await fixture.wait_for_state(ERROR)
        await elapse(0.5)
        (asked,) = (message for message in fixture.last.received if message.get("method") == "initialize")
        assert fixture.last.params("$/cancelRequest") == [{"id": asked["id"]}]

    run_scenario(tmp_path, scenario)


def test_trust_restarts_servers(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        fixture.place.trust(fixture.configuration)
        fixture.manager.refresh()
        await fixture.touch_file()
        await fixture.wait_until(lambda: len(fixture.programs) == 2)
        await elapse(1)
        assert fixture.programs[0].is_closed

    run_scenario(tmp_path, scenario)


def test_silent_server_is_awaited_after_restart(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        path = str(fixture.file)
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        await elapse(10)
        for text in ("a", "b"):
            fixture.file.write_text(text)
            await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
        fixture.manager.restart()
        await fixture.wait_until(lambda: len(fixture.programs) == 2)
        await fixture.wait_for_state(READY)
        await elapse(10)
        fixture.file.write_text("c")
        began = now()
        await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
        assert now() - began == pytest.approx(1.0)

    run_scenario(tmp_path, scenario)


def test_changed_files_are_sent_before_requests(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        watchers = [{"globPattern": "**/*.cfg"}]
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        registration = {
            "id": "1",
            "method": "workspace/didChangeWatchedFiles",
            "registerOptions": {"watchers": watchers},
        }
        fixture.last.send(id=9, method="client/registerCapability", params={"registrations": [registration]})
        await elapse(1)
        new = fixture.place.project / "new.cfg"
        new.write_text("x")
        (fixture.place.project / "new.other").write_text("x")
        await fixture.manager.request_diagnostics(str(fixture.file), ON_VIEW)
        assert fixture.last.params("workspace/didChangeWatchedFiles") == [], "a glance does not look"
        await fixture.manager.request_diagnostics(str(fixture.file), AFTER_CHANGE)
        assert fixture.last.params("workspace/didChangeWatchedFiles") == [
            {"changes": [{"uri": file_uri(str(new)), "type": 1}]}
        ]

    run_scenario(tmp_path, scenario)


def test_slow_scan_does_not_revert_later_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans of the disk overlap and may end in a different order than they began."""

    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        watching = {"registerOptions": {"watchers": [{"globPattern": "**/*.cfg"}]}}
        registration = {"id": "1", "method": "workspace/didChangeWatchedFiles", **watching}
        fixture.last.send(id=9, method="client/registerCapability", params={"registrations": [registration]})
        await elapse(1)
        held = asyncio.Event()
        looks: list[object] = []
        in_thread = asyncio.to_thread

        async def slowly(work: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - whatever the work gives
            found = await in_thread(work, *args)
            if args and args[0] == fixture.manager.root:
                looks.append(found)
                if len(looks) == 1:
                    await held.wait()
            return found

        monkeypatch.setattr("asyncio.to_thread", slowly)
        first = start(fixture.manager.sync_file_changes())
        await elapse(1)
        assert len(looks) == 1
        new = fixture.place.project / "new.cfg"
        new.write_text("x")
        await fixture.manager.sync_file_changes()
        held.set()
        await first
        await fixture.manager.sync_file_changes()
        await elapse(1)
        published = fixture.last.params("workspace/didChangeWatchedFiles")
        assert published == [{"changes": [{"uri": file_uri(str(new)), "type": 1}]}]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("how", ["settings", "trust"])
@pytest.mark.parametrize("when", ["ready", "error"])
def test_replaced_server_ends_with_workspace(tmp_path: Path, how: str, when: str) -> None:
    """Its program, even if it does not answer the shutdown, and the timer that would restart it."""

    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["shutdown"] = hangs
        if when == "error":
            fixture.methods["initialize"] = _refuses
        await fixture.touch_file()
        await fixture.wait_for_state(READY if when == "ready" else ERROR)
        if how == "trust":
            fixture.place.trust(fixture.configuration)
        else:
            fixture.configure(args=["-x"])
        fixture.manager.refresh()
        await fixture.manager.close()
        assert fixture.last.is_closed
        await elapse(60)
        assert len(fixture.programs) == 1

    run_scenario(tmp_path, scenario)


# Answers


@pytest.mark.parametrize(
    ("times", "seconds"), [(ON_VIEW, 0.0), (AFTER_CHANGE, 5.0), (ON_REQUEST, 5.0), (WaitLimits(9.0, 2.0, 1.0), 2.0)]
)
def test_wait_for_unstarted_server_is_bounded(tmp_path: Path, times: WaitLimits, seconds: float) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = hangs
        answered = await fixture.manager.request_diagnostics(str(fixture.file), times)
        assert list(answered.values()) == [False]
        assert now() == pytest.approx(seconds, abs=0.01)
        report = fixture.manager.format_report(str(fixture.file), answered, is_brief=True)
        assert "tongue has not answered yet" in report

    run_scenario(tmp_path, scenario)


def test_answer_is_awaited_and_counted_once(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        path = str(fixture.file)
        asking = start(fixture.manager.request_diagnostics(path, AFTER_CHANGE))
        await fixture.wait_until(lambda: fixture.last.count("textDocument/didOpen"))
        began = now()
        fixture.last.publish(path, "wrong", "worse")
        answered = await asking
        assert list(answered.values()) == [True]
        assert now() == pytest.approx(began + 0.3, abs=0.05), "a moment after the last word it is over"
        assert fixture.info().diagnostic_count == 2
        assert [item for item in fixture.published() if item[0] == "diagnostics_changed"] == [
            ("diagnostics_changed", READY, 2)
        ]
        assert "wrong" in fixture.manager.format_report(path, answered, is_brief=True)
        fixture.last.publish(path)
        await elapse(1)
        assert fixture.published()[-1] == ("diagnostics_changed", READY, 0)

    run_scenario(tmp_path, scenario)


def test_server_silent_twice_is_not_awaited_until_it_answers(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        path = str(fixture.file)
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        await elapse(10)
        fixture.last.publish(path)
        await elapse(1)
        set_wait_limits: list[float] = []
        for text in ("a", "b", "c"):
            fixture.file.write_text(text)
            began = now()
            await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
            set_wait_limits.append(round(now() - began, 2))
        assert set_wait_limits == [1.0, 1.0, 0.0]
        fixture.last.publish(path, "again")
        await elapse(1)
        fixture.file.write_text("d")
        began = now()
        await fixture.manager.request_diagnostics(path, AFTER_CHANGE)
        assert now() - began == pytest.approx(1.0)

    run_scenario(tmp_path, scenario)


def test_server_that_ends_during_request_releases_waiters(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        asking = start(fixture.manager.request_diagnostics(str(fixture.file), ON_REQUEST))
        await fixture.wait_until(lambda: fixture.last.count("textDocument/didOpen"))
        began = now()
        fixture.last.end(1)
        assert list((await asking).values()) == [False]
        assert now() - began < 0.5

    run_scenario(tmp_path, scenario)


# Close


@pytest.mark.parametrize("when", ["never", "starting", "ready", "error", "asked", "deaf"])
@pytest.mark.parametrize("shutdown", ["answers", "hangs"])
def test_close_in_every_state(tmp_path: Path, when: str, shutdown: str) -> None:
    async def scenario(fixture: LspFixture) -> None:
        if shutdown == "hangs":
            fixture.methods["shutdown"] = hangs
        fixture.is_deaf = when == "deaf"
        if when in ("starting", "error", "deaf"):
            fixture.methods["initialize"] = _refuses if when == "error" else hangs
        asking = None
        if when != "never":
            await fixture.touch_file()
            await fixture.wait_until(lambda: fixture.programs)
        if when in ("ready", "error", "asked"):
            await fixture.wait_for_state(ERROR if when == "error" else READY)
        if when == "asked":
            asking = start(fixture.manager.request_diagnostics(str(fixture.file), ON_REQUEST))
            await fixture.wait_until(lambda: fixture.last.count("textDocument/didOpen"))
        began = now()
        await fixture.manager.close()
        assert now() - began <= 1.0
        assert all(program.is_closed for program in fixture.programs)
        if asking is not None:
            await asking
        assert await fixture.manager.servers_for(str(fixture.file)) == [], "after that none is started"

    run_scenario(tmp_path, scenario)


def test_a_restarted_server_begins_like_a_new_one(tmp_path: Path) -> None:
    """What was learned about its predecessor is forgotten: silence, diagnostics, errors, open files."""

    def state(fixture: LspFixture) -> dict[str, object]:
        server = fixture.manager.servers[0]
        assert server.session is not None
        known = {**vars(server), **vars(server.session)}
        plain = {name: value for name, value in known.items() if isinstance(value, int | str | dict | set | list)}
        return {name: copy.copy(value) for name, value in plain.items() if name != "connected_at"}

    async def scenario(fixture: LspFixture) -> None:
        changes = iter(range(9))

        async def change() -> dict[LanguageServer, bool]:
            fixture.file.write_text(f"text {next(changes)}\n")
            return await fixture.manager.request_diagnostics(str(fixture.file), AFTER_CHANGE)

        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        new = state(fixture)
        fixture.last.publish(str(fixture.file), "wrong")
        await elapse(1)
        for _ in range(3):
            assert not any((await change()).values())
        begun = now()
        await change()
        assert now() == begun, "it never answers, so nothing is waited for"
        assert state(fixture) != new
        fixture.manager.restart(fixture.name)
        await fixture.wait_for_state(READY)
        assert state(fixture) == new

    run_scenario(tmp_path, scenario)
