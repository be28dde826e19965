"""The terminal app against the real server, with keys pressed and the screen read."""

from rich.console import Console
from textual.widgets import OptionList

from holdfast.domain.ids import SessionId
from holdfast.domain.models import ModelInfo
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.screens.picker import Picker
from holdfast.tui.welcome import start_actions, welcome_text
from holdfast.tui.widgets.composer import Composer
from holdfast.tui.widgets.transcript import Transcript
from server.helpers import EchoModel, FeedModel, prompt
from tui.looking import looking, standing


async def test_the_first_screen_says_where_one_is_and_what_to_do() -> None:
    async with standing() as (_, server), looking(server) as screen:
        assert not screen.app.query_one(Transcript).display
        console = Console(width=100)
        with console.capture() as capture:
            console.print(welcome_text(screen.app.connection, "", 30))
        assert "Write what you want done" in capture.get()
        assert server.place.project() in capture.get()


class _Real(EchoModel):
    """Not the tour's: with that one nobody is offered a description of the project."""

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("somebody", "real")


async def test_the_door_names_the_file_that_would_be_written() -> None:
    async with standing(_Real()) as (_, server), looking(server) as screen:
        assert ("init", "Write AGENTS.md") in [door[:2] for door in start_actions(screen.app.connection)]
        client = screen.app.connection.client
        await client.config_set(screen.app.connection.workspace, "options.initialize_as", "GUIDE.md")
        options = screen.app.query_one("#start-actions", OptionList)
        await screen.until(lambda: "Write GUIDE.md" in str(options.get_option("init").prompt), "the new name")


async def test_a_prompt_is_answered() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.write("hello there")
        await screen.shows("echo: hello there")
        assert "▌ hello there" in screen.conversation()
        assert screen.app.query_one(Composer).text == ""


async def test_words_appear_as_they_come() -> None:
    model = FeedModel()
    async with standing(model) as (_, server), looking(server) as screen:
        await screen.write("go")
        await model.asked.wait()
        model.words.put_nowait("one ")
        await screen.shows("one")
        await screen.until(lambda: "Writing" in screen.line("activity"), "what it is doing")
        model.words.put_nowait("two")
        await screen.shows("one two")
        model.words.put_nowait(None)
        await screen.until(lambda: not screen.line("activity"), "the end")


async def test_two_escapes_cancel_and_what_waited_comes_back() -> None:
    model = FeedModel()
    async with standing(model) as (_, server), looking(server) as screen:
        await screen.write("go")
        await model.asked.wait()
        client = screen.app.connection.client
        assert screen.app.connection.session is not None
        await screen.write("and then this")
        await screen.until(lambda: "and then this" in screen.line("queue"), "the queue")
        await screen.pilot.press("escape")
        await screen.until(lambda: "again to cancel" in screen.line("hints"), "the warning")
        await screen.pilot.press("escape")
        await screen.shows("Cancelled")
        await screen.until(lambda: screen.app.query_one(Composer).text == "and then this", "the prompt in the editor")
        runs = await client.list_runs(screen.app.connection.workspace)
        assert {run.outcome for run in runs} == {"cancelled"}


async def test_what_others_do_appears() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.write("first")
        await screen.shows("echo: first")
        other, workspace = await server.opened()
        assert screen.app.connection.session is not None
        await prompt(other, workspace, screen.app.connection.session, "from elsewhere")
        await screen.shows("echo: from elsewhere")


async def test_a_session_can_be_chosen() -> None:
    async with standing() as (_, server):
        client, workspace = await server.opened()
        session = await client.create_session(workspace, "The old one")
        await prompt(client, workspace, session.id, "long ago")
        async with looking(server) as screen:
            await screen.until(lambda: SessionId(session.id) in screen.app.connection.view.sessions, "the session")
            await screen.pilot.press("ctrl+s")
            await screen.until(lambda: isinstance(screen.app.screen, Picker), "the list")
            await screen.pilot.press("o", "l", "d", "enter")
            await screen.shows("echo: long ago")


async def test_the_last_session_goes_on() -> None:
    async with standing() as (_, server):
        client, workspace = await server.opened()
        session = await client.create_session(workspace, "Yesterday's")
        await prompt(client, workspace, session.id, "where were we")
        async with looking(server, session="last") as screen:
            await screen.shows("echo: where were we")


async def test_help_opens_and_closes() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.pilot.press("ctrl+g")
        await screen.until(lambda: isinstance(screen.app.screen, HelpScreen), "the keys")
        await screen.pilot.press("escape")
        await screen.until(lambda: not isinstance(screen.app.screen, HelpScreen), "the conversation again")


async def test_earlier_prompts_are_within_reach() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.write("one")
        await screen.shows("echo: one")
        await screen.pilot.press("up")
        assert screen.app.query_one(Composer).text == "one"
        await screen.pilot.press("down")
        assert screen.app.query_one(Composer).text == ""


async def test_a_long_conversation_is_drawn_only_where_one_looks() -> None:
    async with standing() as (_, server):
        client, workspace = await server.opened()
        session = await client.create_session(workspace, "Long")
        for number in range(60):
            await prompt(client, workspace, session.id, f"number {number}", f"r{number}")
        async with looking(server, session="last") as screen:
            await screen.shows("echo: number 59")
            rows = screen.app.query_one(Transcript).rows.rows
            await screen.until(lambda: len(rows) == 180, "all of it")
            assert any(row.lines is None for row in rows)
            await screen.pilot.press("tab", "g")
            await screen.shows("echo: number 0")


async def test_a_narrow_screen_is_enough() -> None:
    async with standing() as (_, server), looking(server, size=(80, 24)) as screen:
        await screen.write("hello")
        await screen.shows("echo: hello")
