"""Tools act without asking only after a confirmation, and every screen shows it."""

from holdfast.tui.screens.dialogs import AutoApprove
from tui.looking import looking, standing


async def test_auto_approve_takes_a_confirmation_and_is_shown_on_every_screen() -> None:
    """ctrl+y may be a slip of the fingers: letters and Enter do not confirm it."""
    async with standing() as (_, server), looking(server, size=(40, 16)) as screen:
        connection = screen.app.connection
        for keys, is_on in (((*"yes", "enter"), False), (("escape",), False), (("right", "enter"), True)):
            await screen.pilot.press("ctrl+y")
            await screen.opens(AutoApprove)
            await screen.pilot.press(*keys)
            await screen.closes()
            await screen.until(lambda: not screen.app.workers, "it is stored")
            assert (await connection.client.get_skip(connection.workspace)).skip is is_on
        await screen.until(lambda: "acts without asking" in screen.picture(), "it is shown")
        for key in ("ctrl+p", "ctrl+g", "ctrl+s"):
            await screen.pilot.press(key)
            await screen.until(lambda: len(screen.app.screen_stack) > 1, key)
            assert "acts without asking" in screen.picture()
            await screen.pilot.press("escape")
            await screen.closes()
        await screen.pilot.press("ctrl+y")
        await screen.said("Tools ask for approval again")
