"""What changes is drawn, however busy the machine is."""

import pytest
from textual.timer import Timer

from server.helpers import FeedModel
from tui.looking import looking, standing


async def test_a_frame_does_not_depend_on_a_timer_that_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of Textual that is late when it begins, on a busy machine, skips its only time."""
    whole = Timer._run

    async def late(timer: Timer) -> None:
        if timer._repeat != 0:
            await whole(timer)

    model = FeedModel()
    async with standing(model) as (_, server), looking(server) as screen:
        monkeypatch.setattr(Timer, "_run", late)
        await screen.write("go")
        await model.asked.wait()
        await screen.write("in the next", "ctrl+q")
        await screen.until(lambda: "⋯ in the next" in screen.line("queue"), "the one that waits for its turn")
