"""Settings of a language server with their effect, in virtual time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.lsp.in_memory_lsp import LspFixture, hangs, now, run_scenario
from holdfast.domain.extensions import LspState
from holdfast.domain.settings import LspSettings
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]
READY, ERROR, STARTING, STOPPED = LspState.READY, LspState.ERROR, LspState.STARTING, LspState.STOPPED


SETTINGS: dict[str, tuple[Json, Callable[[LspFixture], object], object]] = {
    "command": ({}, lambda fixture: fixture.last.command[0], "{program}"),
    "args": ({"args": ["-x", "y"]}, lambda fixture: fixture.last.command[1:], ("-x", "y")),
    "env": ({"env": {"MINE": "1"}}, lambda fixture: fixture.last.environment["MINE"], "1"),
    "filetypes": ({"filetypes": ["txt", "x"]}, lambda fixture: fixture.manager.supports("/b.x"), True),
    "root_markers": ({"root_markers": ["a.txt"]}, lambda fixture: fixture.last.root, "{project}"),
    "init_options": (
        {"init_options": {"a": 1}},
        lambda fixture: fixture.last.params("initialize")[0]["initializationOptions"],
        {"a": 1},
    ),
    "options": (
        {"options_": {"b": 2}},
        lambda fixture: fixture.last.params("workspace/didChangeConfiguration"),
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

    async def scenario(fixture: LspFixture) -> None:
        if "options_" in given:
            _set_options(fixture, given["options_"])
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        await elapse(0.1)
        wanted = expected
        if isinstance(wanted, str):
            wanted = wanted.format(program=fixture.program, project=fixture.place.project)
        assert seen(fixture) == wanted
        assert fixture.last.environment["GIVEN"] == "by the client"
        assert "WITHHELD" not in fixture.last.environment

    run_scenario(tmp_path, scenario, **{key: value for key, value in given.items() if key != "options_"})


def _set_options(fixture: LspFixture, options: Json) -> None:
    """Set the `options` of a server; the keyword of the helper is that of the table of the same name."""
    path = fixture.place.data / "config.json"
    tree = json.loads(path.read_text())
    tree["lsp"][fixture.name]["options"] = options
    path.write_text(json.dumps(tree))
    fixture.configuration.current()
    fixture.manager.refresh()


def test_every_setting_has_a_test() -> None:
    assert {field.name for field in msgspec.structs.fields(LspSettings)} == SETTINGS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize(("given", "seconds"), [({}, 30.0), ({"timeout": 4}, 4.0), ({"timeout": 0}, 30.0)])
def test_start_timeout(tmp_path: Path, given: Json, seconds: float) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.methods["initialize"] = hangs
        await fixture.touch_file()
        await fixture.wait_for_state(ERROR)
        assert now() == pytest.approx(seconds, abs=0.01)

    run_scenario(tmp_path, scenario, **given)


def test_disabled_server_is_not_started(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await elapse(10)
        assert (fixture.info().state, fixture.programs) == (LspState.DISABLED, [])
        assert not fixture.manager.supports(str(fixture.file))
        fixture.configure()
        fixture.manager.refresh()
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        fixture.manager.refresh()
        assert len(fixture.programs) == 1, "the same settings change nothing"
        fixture.configure(disabled=True)
        fixture.manager.refresh()
        await elapse(5)
        assert fixture.programs[0].is_closed
        assert fixture.info().state == LspState.DISABLED

    run_scenario(tmp_path, scenario, disabled=True)


@pytest.mark.parametrize(("name", "is_notified"), [("tongue", True), ("pyright", False), ("basedpyright", False)])
def test_options_are_sent_to_servers_that_do_not_request_them(tmp_path: Path, name: str, is_notified: bool) -> None:
    async def scenario(fixture: LspFixture) -> None:
        _set_options(fixture, {"python": {"mode": 1}})
        await fixture.touch_file()
        await fixture.wait_for_state(READY)
        await elapse(0.1)
        assert bool(fixture.last.params("workspace/didChangeConfiguration")) is is_notified
        asked = {"items": [{"section": "python"}, {}, {"section": "x"}]}
        fixture.last.send(id=7, method="workspace/configuration", params=asked)
        await fixture.wait_until(lambda: [item for item in fixture.last.received if item.get("id") == 7])
        (answer,) = (item for item in fixture.last.received if item.get("id") == 7)
        assert answer["result"][0]["mode"] == 1
        assert answer["result"][1]["python"]["mode"] == 1
        assert answer["result"][2] is None

    run_scenario(tmp_path, scenario, name=name)
