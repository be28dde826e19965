"""What clients learn when the settings of a language server, or the trust in the project, have changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from extensions.lsp.in_memory import Site
from extensions.mcp.in_memory import in_virtual_time
from holdfast.domain.extensions import LspState
from holdfast.testing.seeded_loop import elapse

# What changes, and how the server stands afterwards; None where it stays.
REPLACED: dict[str, tuple[Callable[[Site], None], LspState | None]] = {
    "arguments": (lambda site: site.configure(args=["-x"]), LspState.UNSTARTED),
    "timeout": (lambda site: site.configure(timeout=4), LspState.UNSTARTED),
    "switched off": (lambda site: site.configure(disabled=True), LspState.DISABLED),
    "trust": (lambda site: site.place.trust(site.configuration), LspState.UNSTARTED),
    "another option": (lambda site: site.configure(options={"debug": True}), None),
    "nothing": (lambda site: None, None),
}


@pytest.mark.parametrize("was", [LspState.UNSTARTED, LspState.READY, LspState.ERROR])
@pytest.mark.parametrize("name", REPLACED)
def test_clients_learn_that_one_was_replaced(tmp_path: Path, name: str, was: LspState) -> None:
    """Without it they show the state of a program that is gone."""
    change, becomes = REPLACED[name]

    async def story(site: Site) -> None:
        if was == LspState.ERROR:
            site.methods["initialize"] = lambda *_: {"error": {"code": -1, "message": "not today"}}
        if was != LspState.UNSTARTED:
            await site.want()
            await site.stands(was)
        await elapse(0.1)
        before = len(site.told())
        assert bool(before) is (was != LspState.UNSTARTED), "one that replaces nothing is not told of"
        change(site)
        site.fleet.refresh()
        await elapse(0.1)
        told = site.told()[before:]
        assert site.info().state == (was if becomes is None else becomes)
        if becomes is None:
            assert told == []
        else:
            assert told, "nobody was told"
            assert told[-1] == ("state_changed", becomes, 0)

    async def main() -> None:
        site = Site(tmp_path)
        try:
            await story(site)
        finally:
            await site.fleet.close()

    in_virtual_time(main)
