"""Frames are drawn however busy the machine is."""

import pytest
from textual.timer import Timer

from server.helpers import FeedModel
from tui.app_driver import open_app, running_server


async def test_frame_does_not_depend_on_a_textual_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of Textual that is late when it begins, on a busy machine, skips its only time."""
    whole = Timer._run

    async def late(timer: Timer) -> None:
        if timer._repeat != 0:
            await whole(timer)

    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        monkeypatch.setattr(Timer, "_run", late)
        await screen.submit("go")
        await model.asked.wait()
        await screen.submit("in the next", "ctrl+q")
        await screen.wait_until(lambda: "⋯ in the next" in screen.line("queue"), "the one that waits for its turn")
