"""Auto-approval requires a confirmation, and every screen shows it."""

from holdfast.tui.screens.dialogs import AutoApprove
from tui.app_driver import open_app, running_server


async def test_auto_approve_requires_confirmation_and_is_shown_on_every_screen() -> None:
    """ctrl+y may be pressed by mistake: letters and Enter do not confirm it."""
    async with running_server() as (_, server), open_app(server, size=(40, 16)) as screen:
        connection = screen.app.connection
        for keys, is_on in (((*"yes", "enter"), False), (("escape",), False), (("right", "enter"), True)):
            await screen.pilot.press("ctrl+y")
            await screen.wait_for_dialog(AutoApprove)
            await screen.pilot.press(*keys)
            await screen.wait_for_no_dialog()
            await screen.wait_until(lambda: not screen.app.workers, "it is stored")
            assert (await connection.client.get_skip(connection.workspace)).skip is is_on
        await screen.wait_until(lambda: "acts without asking" in screen.picture(), "it is shown")
        for key in ("ctrl+p", "ctrl+g", "ctrl+s"):
            await screen.pilot.press(key)
            await screen.wait_until(lambda: len(screen.app.screen_stack) > 1, key)
            await screen.wait_for_picture("acts without asking")
            await screen.pilot.press("escape")
            await screen.wait_for_no_dialog()
        await screen.pilot.press("ctrl+y")
        await screen.wait_for_notice("Tools ask for approval again")
