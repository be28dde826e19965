"""Prompts: sent, queued, steered, cancelled, restored, completed and searched; with keys, against the real server."""

import os
from pathlib import Path

import pytest
from textual import events

from holdfast.domain.ids import RunId, SessionId
from holdfast.protocol.bodies import AgentMessage, RunChange
from holdfast.tui.screens.dialogs import Form
from holdfast.tui.screens.picker import Picker
from holdfast.tui.widgets.composer import Completer
from holdfast.tui.widgets.queue_panel import QueuePanel
from server.helpers import EchoModel, FeedModel, collect_run_ends, send_prompt
from trials.hostile_commands import new_token, survivors
from tui.app_driver import AppDriver, open_app, running_server


async def busy(screen: AppDriver, model: FeedModel) -> None:
    """Start a run that continues until the test ends it."""
    await screen.submit("go")
    await model.asked.wait()


def offered(screen: AppDriver) -> list[str]:
    return [str(option.id) for option in screen.app.query_one(Completer).options]


def waiting(screen: AppDriver) -> list[str]:
    return [run.prompt for run in screen.app.connection.waiting()]


async def queued(screen: AppDriver, *texts: str) -> None:
    for number, text in enumerate(texts, 1):
        await screen.submit(text, "ctrl+q")
        await screen.wait_until(lambda number=number: len(waiting(screen)) == number, text)  # type: ignore[misc]
        await screen.wait_until(lambda text=text: text in screen.line("queue"), f"{text} is drawn")  # type: ignore[misc]


async def test_enter_steers_and_alt_enter_queues() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        await screen.submit("in this turn")
        await screen.submit("in the next", "alt+enter")
        await screen.wait_until(lambda: len(waiting(screen)) == 2, "both wait")
        assert [run.delivery for run in screen.app.connection.waiting()] == ["steer", "queue"]
        await screen.wait_until(lambda: "↳ in this turn" in screen.line("queue"), "the one that steers")
        await screen.wait_until(lambda: "⋯ in the next" in screen.line("queue"), "the one that waits for its turn")


async def test_queue_is_edited() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        await queued(screen, "one", "two", "three")
        await screen.pilot.press("ctrl+t")
        assert isinstance(screen.app.focused, QueuePanel)
        await screen.pilot.press("down", "down", "K")
        await screen.wait_until(lambda: waiting(screen) == ["one", "three", "two"], "the new order")
        await screen.pilot.press("s")
        await screen.wait_until(lambda: screen.app.connection.waiting()[1].delivery == "steer", "it is sent now")
        await screen.pilot.press("x")
        await screen.wait_until(lambda: waiting(screen) == ["one", "two"], "one is removed")
        await screen.pilot.press("up", "enter")
        await screen.wait_until(lambda: screen.composer.text == "one", "it is back in the editor")
        await screen.wait_until(lambda: waiting(screen) == ["two"], "it does not wait any more")


async def test_attachments_are_restored_with_their_prompt() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        screen.app.post_message(events.Paste("\n".join(f"line {number}" for number in range(11))))
        await screen.wait_until(lambda: "paste-1.txt" in screen.line("attachments"), "the attachment")
        await queued(screen, "with a file")
        assert not screen.app.query_one("#attachments").display
        await screen.pilot.press("ctrl+t", "enter")
        await screen.wait_until(lambda: screen.composer.text == "with a file", "it is back in the editor")
        await screen.wait_until(lambda: "paste-1.txt" in screen.line("attachments"), "and what went along")
        await screen.wait_until(lambda: not waiting(screen), "it does not wait any more")
        await screen.pilot.press("ctrl+q")
        await screen.wait_until(lambda: waiting(screen) == ["with a file"], "it is sent again")
        await screen.pilot.press("escape", "escape")
        await screen.wait_until(lambda: screen.composer.text == "with a file", "a cancel gives it back as well")
        await screen.wait_until(lambda: "paste-1.txt" in screen.line("attachments"), "with what went along")


async def test_image_is_pasted_from_the_clipboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "wl-paste"
    program.write_text("#!/bin/sh\nprintf picture\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.pilot.press("ctrl+v")
        await screen.wait_until(lambda: "image-1.png (7 B)" in screen.line("attachments"), "the picture")


async def test_queue_order_of_another_client_is_shown() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        await queued(screen, "one", "two")
        other, workspace = await server.open_workspace()
        await other.patch_run(workspace, screen.app.connection.waiting()[1].run_id, RunChange(position=0))
        await screen.wait_until(lambda: waiting(screen) == ["two", "one"], "the order the other one chose")


async def test_queued_prompts_of_other_clients_are_not_restored() -> None:
    """A cancel covers it, but its text is not restored in this editor."""
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        other, workspace = await server.open_workspace()
        session = screen.app.connection.session
        assert session is not None
        await other.send_prompt(workspace, AgentMessage(session, "theirs", RunId("r9"), client_id=other.client_id))
        await screen.wait_until(lambda: "from another client" in screen.line("queue"), "whose it is")
        await screen.pilot.press("escape", "escape")
        await screen.wait_for_text("Cancelled")
        assert screen.composer.text == ""


async def test_queued_prompt_cancelled_elsewhere_can_be_restored() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        screen.app.post_message(events.Paste("\n".join(f"line {number}" for number in range(11))))
        await screen.wait_until(lambda: "paste-1.txt" in screen.line("attachments"), "the attachment")
        await queued(screen, "one", "two")
        await screen.pilot.press("ctrl+t", "down", "x")
        await screen.wait_until(lambda: waiting(screen) == ["one"], "what is removed here is not lost")
        other, workspace = await server.open_workspace()
        assert screen.app.connection.session is not None
        await other.cancel_session(workspace, screen.app.connection.session)
        await screen.wait_for_notice("A queued prompt of yours was cancelled elsewhere")
        assert screen.composer.text == ""
        await screen.submit("/back")
        await screen.wait_until(lambda: screen.composer.text == "one", "it is back")
        await screen.wait_until(lambda: "paste-1.txt" in screen.line("attachments"), "with what went along")
        screen.composer.text = ""
        await screen.submit("/back")
        await screen.wait_for_notice("No queued prompt of yours was cancelled")


async def test_shell_command_runs_beside_a_run_and_can_be_stopped() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await busy(screen, model)
        model.words.put_nowait("thinking aloud")
        await screen.wait_for_text("thinking aloud")
        await screen.submit("!echo beside; false")
        await screen.wait_for_text("▌ $ echo beside; false   exit code 1")
        assert "Writing" in screen.line("activity")
        token = new_token()
        await screen.submit(f"!sleep 1000; : {token}")
        await screen.wait_until(lambda: bool(survivors(token)), "it runs")
        await screen.wait_until(lambda: f"$ sleep 1000; : {token}" in screen.line("shell"), "and it is shown")
        model.words.put_nowait(None)
        await screen.wait_until(lambda: not screen.app.connection.runs(), "the run has ended")
        await screen.pilot.press("escape")
        await screen.wait_until(lambda: "again to cancel" in screen.line("hints"), "the warning")
        await screen.pilot.press("escape")
        await screen.wait_for_notice("Stopped: $ sleep 1000")
        await screen.wait_until(lambda: not survivors(token), "nothing is left of it")
        await screen.wait_until(lambda: not screen.app.context.line("shell").display, "its line is gone")


async def test_sending_scrolls_to_the_end() -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "Long")
        for number in range(20):
            await send_prompt(client, workspace, session.id, f"number {number}", f"r{number}")
        async with open_app(server, session="last") as screen:
            await screen.wait_for_text("echo: number 19")
            await screen.pilot.press("pageup", "pageup")
            await screen.wait_until(lambda: "to the newest" in screen.line("hints"), "one is elsewhere")
            await screen.submit("and now")
            await screen.wait_until(lambda: "echo: and now" in screen.picture(), "it is in sight")
            await screen.wait_until(lambda: "to the newest" not in screen.line("hints"), "one is at the end")


async def test_long_pastes_become_attachments() -> None:
    model = EchoModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        screen.app.post_message(events.Paste("\n".join(f"line {number}" for number in range(11))))
        await screen.wait_until(lambda: "paste-1.txt" in screen.line("attachments"), "the attachment")
        screen.app.post_message(events.Paste("short"))
        await screen.wait_until(lambda: screen.composer.text == "short", "a short paste is text")
        await screen.pilot.press("enter")
        await screen.wait_for_text("⊞ paste-1.txt")
        assert b"line 10" in str(model.requests[-1].messages).encode()
        assert not screen.app.query_one("#attachments").display


async def test_attachments_are_removed_with_backspace(tmp_path: Path) -> None:
    picture = tmp_path / "a b.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 64)
    async with running_server() as (_, server), open_app(server) as screen:
        screen.app.post_message(events.Paste(f"'{picture}'"))
        await screen.wait_until(lambda: "a b.png" in screen.line("attachments"), "the picture")
        await screen.pilot.press("backspace")
        await screen.wait_until(lambda: not screen.app.query_one("#attachments").display, "it is gone")


async def test_mentioned_files_are_completed_and_attached() -> None:
    model = EchoModel()
    async with running_server(model) as (_, server):
        project = Path(server.directory.project())
        (project / "src").mkdir()
        (project / "src" / "parser.py").write_text("text of the parser\n")
        (project / "notes.md").write_text("notes\n")
        async with open_app(server) as screen:
            await screen.pilot.press("@", "p", "a", "r")
            await screen.wait_until(lambda: screen.app.query_one(Completer).display, "names are offered")
            await screen.pilot.press("enter")
            await screen.wait_until(lambda: screen.composer.text == "@src/parser.py ", "the whole name")
            await screen.pilot.press("enter")
            await screen.wait_for_text("⊞ src/parser.py")
            assert b"text of the parser" in str(model.requests[-1].messages).encode()


async def test_slash_completes_commands() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.pilot.press("/", "h", "e", "l")
        await screen.wait_until(lambda: screen.app.query_one(Completer).display, "commands are offered")
        await screen.pilot.press("enter")
        await screen.wait_until(lambda: len(screen.app.screen_stack) == 2, "the help")
        assert screen.composer.text == ""


async def test_extension_commands_request_their_arguments_in_a_form() -> None:
    model = EchoModel()
    async with running_server(model) as (_, server):
        folder = Path(server.directory.project(), ".holdfast/commands")
        os.makedirs(folder)
        (folder / "review.md").write_text("---\ndescription: Look at a file\n---\nReview $FILE for $TOPIC.\n")
        (folder / "greet.md").write_text("Say hello to everybody.\n")
        async with open_app(server) as screen:
            await screen.pilot.press("/", "g", "r", "e")
            await screen.wait_until(lambda: "/greet" in offered(screen), "it is offered")
            await screen.pilot.press("enter")
            await screen.wait_for_text("echo: Say hello to everybody.")
            await screen.pilot.press("ctrl+p")
            await screen.wait_for_dialog(Picker)
            await screen.pilot.press(*"look", "enter")
            await screen.wait_for_dialog(Form)
            await screen.pilot.press(*"a b.py", "enter")
            await screen.pilot.press(*"races", "enter")
            await screen.wait_for_no_dialog()
            await screen.wait_for_text("echo: Review a b.py for races.")


async def test_prompts_of_earlier_sessions_are_recalled() -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "Old")
        await send_prompt(client, workspace, session.id, "what I asked then", "r1")
        # The prompt is a message of the session only once its run has begun, and the app loads the history once.
        await collect_run_ends(client, workspace, ["r1"])
        async with open_app(server) as screen:
            await screen.wait_until(lambda: bool(screen.composer.sent_prompts), "what was sent")
            await screen.pilot.press("up")
            assert screen.composer.text == "what I asked then"
            await screen.pilot.press("ctrl+r")
            await screen.wait_for_dialog(Picker)
            await screen.pilot.press("t", "h", "e", "n", "enter")
            await screen.wait_for_no_dialog()
            assert screen.composer.text == "what I asked then"


async def test_unsent_prompt_is_restored() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("first")
        await screen.wait_for_text("echo: first")
        screen.app.connection.session = SessionId("no such session")
        await screen.submit("second")
        await screen.wait_until(lambda: screen.composer.text == "second", "the text is back")


async def test_external_editor_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the terminal cannot be handed over, nothing is lost and the reason is shown."""
    monkeypatch.setenv("EDITOR", "true")
    async with running_server() as (_, server), open_app(server) as screen:
        screen.composer.insert("half a thought")
        await screen.pilot.press("ctrl+o")
        await screen.wait_for_notice("cannot be started")
        assert screen.composer.text == "half a thought"


async def test_search_finds_every_line_of_a_long_answer() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server, size=(80, 24)) as screen:
        await busy(screen, model)
        filler = "\n".join("more" for _ in range(40))
        model.words.put_nowait(f"```\nneedle one\n{filler}\nneedle two\n{filler}\nend\n```")
        model.words.put_nowait(None)
        await screen.wait_for_text("needle two")
        await screen.pilot.press("ctrl+f", *"needle")
        await screen.wait_until(lambda: "needle two" in screen.picture(), "the newest of them")
        await screen.pilot.press("enter")
        await screen.wait_until(lambda: "needle one" in screen.picture(), "the one before, in the same block")
        await screen.pilot.press("down")
        await screen.wait_until(lambda: "needle two" in screen.picture(), "and on again")


async def test_search_and_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "Long")
        for number in range(30):
            await send_prompt(client, workspace, session.id, f"number {number} `x{number}`", f"r{number}")
        async with open_app(server, session="last", size=(80, 24)) as screen:
            await screen.wait_for_text("echo: number 29")
            copied: list[str] = []
            monkeypatch.setattr(screen.app, "copy_to_clipboard", copied.append)
            await screen.pilot.press("ctrl+f", *"number 7 ")
            await screen.wait_until(lambda: str(screen.line("find-count")) == "2 of 2", "two places")
            await screen.pilot.press("enter")
            await screen.wait_until(lambda: str(screen.line("find-count")) == "1 of 2", "the one before")
            await screen.wait_for_picture("number 7 ")
            await screen.pilot.press("escape", "y")
            await screen.wait_until(lambda: copied == ["number 7 `x7`"], "the prompt is copied")
            await screen.pilot.press("J", "y")
            await screen.wait_until(lambda: copied[1:] == ["number 8 `x8`"], "from prompt to prompt")
