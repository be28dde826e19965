"""Events for clients when the settings of a language server or the trust in the project change."""

from collections.abc import Callable
from pathlib import Path

import pytest

from extensions.lsp.in_memory_lsp import LspFixture
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
