"""One session in several clients, a killed server, NO_COLOR, and a user who looks at another window."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from rich.segment import Segment

from holdfast.client.errors import ClientError, Unreachable
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import AgentEvent, AgentNotice, Change
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.protocol.bodies import SnapshotBody
from holdfast.tui.app import HoldfastApp
from holdfast.tui.screens.picker import Picker
from holdfast.tui.widgets.approval_panel import ApprovalPanel, RequestPanel
from holdfast.tui.widgets.question_panel import QuestionPanel
from server.helpers import FeedModel, send_prompt, server_directory, server_process
from tui.app_driver import AppDriver, drawn, open_app, running_server


async def test_two_clients_show_the_same_conversation() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as one:
        await one.submit("go")
        await model.asked.wait()
        async with open_app(server, session="last") as two:
            model.words.put_nowait("hello ")
            await one.wait_for_text("hello")
            await two.wait_for_text("hello")
            await two.pilot.press("escape", "escape")
            await one.wait_for_text("Cancelled")
            await two.wait_for_text("Cancelled")
            await one.wait_until(lambda: "2 clients" in one.line("top-right"), "the other client is shown")
            await two.wait_until(lambda: "2 clients" in two.line("top-right"), "the earlier client is shown")
        await one.wait_until(lambda: "here" not in one.line("top-right"), "the other one has left")


async def test_app_survives_a_killed_server() -> None:
    """The conversation stays on the screen while the connection is lost, and nothing is missing afterwards."""
    async with server_directory() as directory:
        directory.project()
        app = HoldfastApp(
            ServerLocation(directory.address, str(directory.data), can_be_started=False), directory.project()
        )
        async with server_process(directory) as first, app.run_test(size=(100, 30)) as pilot:
            screen = AppDriver(app, pilot)
            await screen.wait_until(lambda: app.connection.state == "live", "the workspace is open")
            await screen.submit("words=3")
            await screen.wait_for_text("word3")
            await screen.submit("words=5000 pause=50")
            await screen.wait_for_text("word2 ")
            before = screen.conversation()
            os.kill(first.process.pid, signal.SIGKILL)
            await first.process.wait()
            await screen.wait_until(lambda: "reconnecting" in screen.line("top-right"), "the quiet notice")
            assert before.splitlines()[0] in screen.conversation()
            async with server_process(directory):
                await screen.wait_until(lambda: app.connection.state == "live", "the line is back")
                await screen.wait_until(lambda: not screen.app.connection.runs(), "what was cut has its end")
                await screen.submit("words=4")
                await screen.wait_for_text("word4")
                assert screen.conversation().count("▌ words=3") == 1
                await pilot.press("ctrl+c")
                await screen.wait_until(lambda: not app.is_running, "the app has ended")


@pytest.mark.parametrize(
    ("prompt", "panel"),
    [
        ('tool=write {"file_path": "x", "content": "1"}', ApprovalPanel),
        ('tool=question {"questions": [{"type": "yes_no", "question": "?", "description": "!"}]}', QuestionPanel),
    ],
)
async def test_requests_of_a_killed_server_are_closed(prompt: str, panel: type[RequestPanel]) -> None:
    """R10: the dialog closes with its run, and the next prompt is not an answer to it."""
    async with server_directory() as directory:
        app = HoldfastApp(
            ServerLocation(directory.address, str(directory.data), can_be_started=False), directory.project()
        )
        async with server_process(directory) as first, app.run_test(size=(100, 30)) as pilot:
            screen = AppDriver(app, pilot)
            await screen.wait_until(lambda: app.connection.state == "live", "the workspace is open")
            await screen.submit(prompt)
            await screen.wait_for_panel(panel)
            os.kill(first.process.pid, signal.SIGKILL)
            await first.process.wait()
            await screen.wait_until(lambda: app.connection.state != "live", "the line is cut")
            async with server_process(directory):
                await screen.wait_for_no_panel()
                await screen.submit("words=4")
                await screen.wait_for_text("word4")
                assert not (directory.root / "project" / "x").exists()
                await pilot.press("ctrl+c")
                await screen.wait_until(lambda: not app.is_running, "the app has ended")


async def test_reconnecting_yolo_client_does_not_change_the_workspace_mode() -> None:
    async with server_directory() as directory:
        address = ServerLocation(directory.address, str(directory.data), can_be_started=False)
        other, mine = HoldfastApp(address, directory.project()), HoldfastApp(address, directory.project(), yolo=True)
        async with server_process(directory) as first, other.run_test() as theirs, mine.run_test() as pilot:
            screen = AppDriver(mine, pilot)
            await AppDriver(other, theirs).wait_until(lambda: other.connection.state == "live", "the workspace is open")
            await screen.wait_until(lambda: mine.connection.state == "live", "and open here")
            assert not (await mine.connection.client.get_skip(mine.connection.workspace)).skip
            await other.connection.close()
            os.kill(first.process.pid, signal.SIGKILL)
            await first.process.wait()
            await screen.wait_until(lambda: mine.connection.state == "broken", "the line is cut")
            async with server_process(directory):
                await screen.wait_until(lambda: mine.connection.state == "live", "the line is back")
                assert not (await mine.connection.client.get_skip(mine.connection.workspace)).skip


def colours_of(screen: AppDriver) -> list[Segment]:
    return [segment for segment in drawn(screen) if segment.style and (segment.style.color or segment.style.bgcolor)]


async def test_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("hello")
        await screen.wait_for_text("echo: hello")
        assert colours_of(screen) == []
        await screen.pilot.press("ctrl+p")
        await screen.wait_for_dialog(Picker)
        assert colours_of(screen) == []
        chosen = [segment.text for segment in drawn(screen) if segment.style and segment.style.reverse]
        assert "New session" in "".join(chosen)


async def test_away_user_is_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        written: list[str] = []
        monkeypatch.setattr(screen.app.context, "write_terminal", written.append)
        await screen.submit("go")
        await model.asked.wait()
        screen.app.notifier.is_away = True
        model.words.put_nowait(None)
        await screen.wait_until(lambda: bool(written), "a word to who is away")
        screen.app.notifier.is_away = False
        model.words.put_nowait(None)
        await screen.submit("again")
        await screen.wait_until(lambda: screen.conversation().count("◇") == 2, "the second end")
        assert len(written) == 1


@pytest.mark.parametrize("works", [True, False])
async def test_away_user_is_notified_on_the_desktop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, works: bool
) -> None:
    """With a program of the desktop; where that fails, through the terminal."""
    output = tmp_path / "said"
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {output}\n' if works else "#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    async with running_server() as (_, server), open_app(server) as screen:
        written: list[str] = []
        monkeypatch.setattr(screen.app.context, "write_terminal", written.append)
        await screen.app.connection.client.config_set(
            screen.app.connection.workspace, "options.notifications", "native"
        )
        await screen.wait_until(lambda: screen.app.context.options.get("notifications") == "native", "the setting")
        screen.app.notifier.is_away = True
        await screen.submit("go")
        if works:
            await screen.wait_until(lambda: output.exists() and "Completed" in output.read_text(), "the note")
            assert output.read_text().splitlines()[:3] == ["--app-name=Holdfast", "--", "Holdfast"]
            assert written == []
        else:
            await screen.wait_until(lambda: any("Completed" in text for text in written), "the terminal is asked")


async def test_retries_of_a_provider_are_shown() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server) as screen:
        await screen.submit("go")
        await model.asked.wait()
        session = screen.app.connection.session
        assert session is not None
        engine = server.manager.handles[0].owned.engine
        notice = AgentNotice("retrying", "The provider is busy: again in 3 s.", session_id=session)
        engine.outlet.publish_live(AgentEvent(Change("updated", notice)))
        await screen.wait_until(lambda: "The provider is busy" in screen.line("activity"), "what it waits for")
        model.words.put_nowait("here")
        await screen.wait_until(lambda: "Writing" in screen.line("activity"), "it goes on")
        instead = AgentNotice("fallback", "There is no such model.", session_id=session)
        engine.outlet.publish_live(AgentEvent(Change("updated", instead)))
        await screen.wait_for_notice("There is no such model.")


async def test_shell_commands_and_subagents_are_shown_while_running() -> None:
    """With the real server: output appears while a command runs, and the tools of a sub-agent below its call."""
    async with server_directory() as directory, server_process(directory):
        app = HoldfastApp(
            ServerLocation(directory.address, str(directory.data), can_be_started=False), directory.project(), yolo=True
        )
        async with app.run_test(size=(110, 40)) as pilot:
            screen = AppDriver(app, pilot)
            await screen.wait_until(lambda: app.connection.state == "live", "the workspace is open")
            await screen.submit("!echo from the shell")
            await screen.wait_for_text("▌ $ echo from the shell")
            await screen.submit('tool=bash {"command": "echo so far; cat fifo || sleep 60"}')
            await screen.wait_for_text("│ so far")
            assert "◐ bash" in screen.conversation()
            await screen.pilot.press("escape", "escape")
            await screen.wait_for_text("■ Cancelled")
            await screen.submit('tool=agent {"prompt": "tool=ls"}')
            await screen.wait_for_text("│ ● ls")
            await screen.wait_until(lambda: not app.connection.runs(), "the end")
            session = app.connection.session
        location = ServerLocation(directory.address, str(directory.data), can_be_started=False)
        again = HoldfastApp(location, directory.project(), session=str(session))
        async with again.run_test(size=(110, 40)) as pilot:
            await AppDriver(again, pilot).wait_for_text("│ ● ls")


async def test_events_during_opening_of_a_session_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is older than events of the stream does not undo them."""
    async with running_server() as (_, server), open_app(server) as screen:
        other, workspace = await server.open_workspace()
        session = await other.create_session(workspace, "Busy")
        take = screen.app.connection.client.snapshot

        async def late(workspace: WorkspaceId, session: SessionId | None = None) -> SnapshotBody:
            snapshot = await take(workspace, session)
            assert session is not None
            await send_prompt(other, workspace, session, "meanwhile", "r1")
            while not any(message.finish for message in await other.list_messages(workspace, session)):
                await screen.pilot.pause()
            await screen.pilot.pause()
            return snapshot

        monkeypatch.setattr(screen.app.connection.client, "snapshot", late)
        await screen.app.connection.open_session(session.id)
        await screen.wait_for_text("▌ meanwhile")
        await screen.wait_for_text("echo: meanwhile")


async def test_last_chosen_session_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of their snapshots arrives first."""
    async with running_server() as (_, server), open_app(server) as screen:
        other, workspace = await server.open_workspace()
        first, second = [(await other.create_session(workspace, title)).id for title in ("First", "Second")]
        await send_prompt(other, workspace, second, "what to see", "r1")
        while not any(message.finish for message in await other.list_messages(workspace, second)):
            await screen.pilot.pause()
        take = screen.app.connection.client.snapshot
        is_taken = asyncio.Event()

        async def turned(workspace: WorkspaceId, session: SessionId | None = None) -> SnapshotBody:
            snapshot = await take(workspace, session)
            await is_taken.wait() if session == first else is_taken.set()
            return snapshot

        monkeypatch.setattr(screen.app.connection.client, "snapshot", turned)
        await asyncio.gather(screen.app.connection.open_session(first), screen.app.connection.open_session(second))
        assert screen.app.connection.session == second
        assert [message.role for message in screen.app.connection.messages()] == ["user", "assistant"]


async def test_failed_opening_keeps_the_current_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("hello")
        await screen.wait_for_text("echo: hello")
        connection = screen.app.connection
        session = connection.session

        async def refused(*_: object) -> SnapshotBody:
            raise Unreachable("The server does not answer.")

        with monkeypatch.context() as patched:
            patched.setattr(connection.client, "snapshot", refused)
            with pytest.raises(ClientError):
                await connection.open_session(SessionId("other"))
        assert connection.session == session
        await screen.submit("and on")
        await screen.wait_for_text("echo: and on")
