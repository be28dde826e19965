"""The terminal app against the real server, with keys pressed and the screen read."""

from rich.console import Console
from textual.widgets import OptionList

from holdfast.domain.ids import SessionId
from holdfast.domain.model_requests import ModelInfo
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.screens.picker import Picker
from holdfast.tui.welcome import start_actions, welcome_text
from holdfast.tui.widgets.composer import Composer
from holdfast.tui.widgets.transcript import Transcript
from server.helpers import EchoModel, FeedModel, send_prompt
from tui.app_driver import open_app, running_server


async def test_welcome_screen_shows_directory_and_instructions() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        assert not screen.app.query_one(Transcript).display
        console = Console(width=100)
        with console.capture() as capture:
            console.print(welcome_text(screen.app.connection, "", 30))
        assert "Write what you want done" in capture.get()
        assert server.directory.project() in capture.get()


class _Real(EchoModel):
    """A model that is not scripted: only then the description of the project is offered."""

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("provider", "real")


async def test_start_action_names_the_configured_guide_file() -> None:
    async with running_server(_Real()) as (_, server), open_app(server) as screen:
        assert ("init", "Write AGENTS.md") in [door[:2] for door in start_actions(screen.app.connection)]
        client = screen.app.connection.client
        await client.config_set(screen.app.connection.workspace, "options.initialize_as", "GUIDE.md")
        options = screen.app.query_one("#start-actions", OptionList)
        await screen.wait_until(lambda: "Write GUIDE.md" in str(options.get_option("init").prompt), "the new name")


async def test_a_prompt_is_answered() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("hello there")
        await screen.wait_for_text("echo: hello there")
        assert "▌ hello there" in screen.conversation()
        assert screen.app.query_one(Composer).text == ""


async def test_streamed_text_appears_piece_by_piece() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await screen.submit("go")
        await model.asked.wait()
        model.words.put_nowait("one ")
        await screen.wait_for_text("one")
        await screen.wait_until(lambda: "Writing" in screen.line("activity"), "what it is doing")
        model.words.put_nowait("two")
        await screen.wait_for_text("one two")
        model.words.put_nowait(None)
        await screen.wait_until(lambda: not screen.line("activity"), "the end")


async def test_second_escape_cancels_and_restores_queued_prompts() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await screen.submit("go")
        await model.asked.wait()
        client = screen.app.connection.client
        assert screen.app.connection.session is not None
        await screen.submit("and then this")
        await screen.wait_until(lambda: "and then this" in screen.line("queue"), "the queue")
        await screen.pilot.press("escape")
        await screen.wait_until(lambda: "again to cancel" in screen.line("hints"), "the warning")
        await screen.pilot.press("escape")
        await screen.wait_for_text("Cancelled")
        await screen.wait_until(
            lambda: screen.app.query_one(Composer).text == "and then this", "the prompt in the editor"
        )
        runs = await client.list_runs(screen.app.connection.workspace)
        assert {run.outcome for run in runs} == {"cancelled"}


async def test_prompts_of_other_clients_appear() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("first")
        await screen.wait_for_text("echo: first")
        other, workspace = await server.open_workspace()
        assert screen.app.connection.session is not None
        await send_prompt(other, workspace, screen.app.connection.session, "from elsewhere")
        await screen.wait_for_text("echo: from elsewhere")


async def test_session_is_opened_from_the_list() -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "The old one")
        await send_prompt(client, workspace, session.id, "long ago")
        async with open_app(server) as screen:
            await screen.wait_until(lambda: SessionId(session.id) in screen.app.connection.view.sessions, "the session")
            await screen.pilot.press("ctrl+s")
            await screen.wait_until(lambda: isinstance(screen.app.screen, Picker), "the list")
            await screen.pilot.press("o", "l", "d", "enter")
            await screen.wait_for_text("echo: long ago")


async def test_last_session_is_opened() -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "Yesterday's")
        await send_prompt(client, workspace, session.id, "where were we")
        async with open_app(server, session="last") as screen:
            await screen.wait_for_text("echo: where were we")


async def test_help_opens_and_closes() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.pilot.press("ctrl+g")
        await screen.wait_until(lambda: isinstance(screen.app.screen, HelpScreen), "the keys")
        await screen.pilot.press("escape")
        await screen.wait_until(lambda: not isinstance(screen.app.screen, HelpScreen), "the conversation again")


async def test_arrow_keys_recall_sent_prompts() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("one")
        await screen.wait_for_text("echo: one")
        await screen.pilot.press("up")
        assert screen.app.query_one(Composer).text == "one"
        await screen.pilot.press("down")
        assert screen.app.query_one(Composer).text == ""


async def test_long_conversation_is_rendered_only_where_visible() -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "Long")
        for number in range(60):
            await send_prompt(client, workspace, session.id, f"number {number}", f"r{number}")
        async with open_app(server, session="last") as screen:
            await screen.wait_for_text("echo: number 59")
            rows = screen.app.query_one(Transcript).rows.rows
            await screen.wait_until(lambda: len(rows) == 180, "all of it")
            assert any(row.lines is None for row in rows)
            await screen.pilot.press("tab", "g")
            await screen.wait_for_text("echo: number 0")


async def test_app_works_at_80_columns() -> None:
    async with running_server() as (_, server), open_app(server, size=(80, 24)) as screen:
        await screen.submit("hello")
        await screen.wait_for_text("echo: hello")
