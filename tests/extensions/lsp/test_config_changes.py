"""Events for clients when the settings of a language server or the trust in the project change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extensions.lsp.in_memory_lsp import LspFixture, run_scenario
from extensions.mcp.in_memory_mcp import in_virtual_time
from holdfast.domain.extensions import LspState
from holdfast.testing.seeded_loop import elapse

# The change and the state of the server afterwards; None if it is unchanged.
REPLACED: dict[str, tuple[Callable[[LspFixture], None], LspState | None]] = {
    "arguments": (lambda fixture: fixture.configure(args=["-x"]), LspState.UNSTARTED),
    "timeout": (lambda fixture: fixture.configure(timeout=4), LspState.UNSTARTED),
    "switched off": (lambda fixture: fixture.configure(disabled=True), LspState.DISABLED),
    "trust": (lambda fixture: fixture.place.trust(fixture.configuration), LspState.UNSTARTED),
    "another option": (lambda fixture: fixture.configure(options={"debug": True}), None),
    "nothing": (lambda fixture: None, None),
}


@pytest.mark.parametrize("was", [LspState.UNSTARTED, LspState.READY, LspState.ERROR])
@pytest.mark.parametrize("name", REPLACED)
def test_replaced_server_is_published(tmp_path: Path, name: str, was: LspState) -> None:
    """Without the event they show the state of a program that has ended."""
    change, becomes = REPLACED[name]

    async def scenario(fixture: LspFixture) -> None:
        if was == LspState.ERROR:
            fixture.methods["initialize"] = lambda *_: {"error": {"code": -1, "message": "not today"}}
        if was != LspState.UNSTARTED:
            await fixture.touch_file()
            await fixture.wait_for_state(was)
        await elapse(0.1)
        before = len(fixture.published())
        assert bool(before) is (was != LspState.UNSTARTED), "one that replaces nothing is not told of"
        change(fixture)
        fixture.manager.refresh()
        await elapse(0.1)
        published = fixture.published()[before:]
        assert fixture.info().state == (was if becomes is None else becomes)
        if becomes is None:
            assert published == []
        else:
            assert published, "nobody was told"
            assert published[-1] == ("state_changed", becomes, 0)

    async def main() -> None:
        fixture = LspFixture(tmp_path)
        try:
            await scenario(fixture)
        finally:
            await fixture.manager.close()

    in_virtual_time(main)


# Settings, and the root of the server of `part/a.txt` with them; None if it has no server.
MATCHED: dict[str, tuple[dict[str, Any], str | None]] = {
    "as before": ({}, "."),
    "another file type": ({"filetypes": ["md"]}, None),
    "a marker below": ({"root_markers": ["marker"]}, "part"),
    "no marker": ({"root_markers": ["absent"]}, None),
    "switched off": ({"disabled": True}, None),
}


@pytest.mark.parametrize("before", MATCHED)
@pytest.mark.parametrize("after", MATCHED)
def test_files_are_assigned_by_the_settings_of_the_moment(tmp_path: Path, before: str, after: str) -> None:
    """The assignment is cached by directory and file type, but not beyond a change."""

    async def scenario(fixture: LspFixture) -> None:
        folder = fixture.place.project / "part"
        folder.mkdir()
        for name in ("a.txt", "marker"):
            (folder / name).write_text("one\n")
        for settings, root in (MATCHED[before], MATCHED[after]):
            fixture.configure(**settings)
            fixture.manager.refresh()
            found = await fixture.manager.servers_for(str(folder / "a.txt"))
            expected = [] if root is None else [str(fixture.place.project / root)]
            assert [server.root for server in found] == expected

    run_scenario(tmp_path, scenario)
