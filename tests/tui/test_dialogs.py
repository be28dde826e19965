"""Approvals, questions, lists and dialogs, answered with keys or by other clients."""

import json
from pathlib import Path
from typing import Any

from textual import events
from textual.widgets import Input

from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.model_requests import ModelRequest
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.tui.app import HoldfastApp
from holdfast.tui.screens.dialogs import Confirm, TextInput
from holdfast.tui.screens.pager import DiffScreen
from holdfast.tui.screens.picker import Picker
from holdfast.tui.terminal_text import escaped_text
from holdfast.tui.widgets.approval_panel import ApprovalPanel
from holdfast.tui.widgets.question_panel import QuestionPanel
from server.helpers import Server, send_prompt, server_directory, server_process
from tui.app_driver import AppDriver, open_app, running_server

WRITE = Call("write", json.dumps({"file_path": "made.txt", "content": "one\ntwo\n"}))
QUESTIONS: list[dict[str, Any]] = [
    {
        "type": "single_choice",
        "question": "Which database?",
        "label": "Database",
        "description": "It is hard to change later.",
        "choices": [{"id": "s", "label": "SQLite"}, {"id": "p", "label": "PostgreSQL [big]"}],
    },
    {
        "type": "multi_choice",
        "question": "Where?",
        "label": "Systems",
        "description": "Where it shall run.",
        "choices": [{"id": "l", "label": "Linux"}, {"id": "m", "label": "macOS"}],
    },
]


def made(server: Server, name: str = "made.txt") -> Path:
    return Path(server.directory.project(), name)


def acting(*calls: Call) -> ScriptedModel:
    """Return a model that calls the tools one after the other, and repeats their results."""

    def answer(request: ModelRequest) -> Step:
        done = 0
        for message in reversed(request.messages):
            if message.role == "user":
                break
            done += len(message.tool_results)
        if done < len(calls):
            return Step((calls[done],))
        results = [result.content for message in request.messages for result in message.tool_results]
        return Step((Say(f"It said: {' '.join(results)}"),))

    return ScriptedModel(answer)


async def test_tool_call_is_allowed_once() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.wait_for_picture("+one")
        await screen.wait_for_picture("Always saves: write:write(made.txt)")
        await screen.pilot.press("tab", "a")
        await screen.wait_for_text("It said")
        assert made(server).read_text() == "one\ntwo\n"
        assert "write  made.txt  +2 -0" in screen.conversation()


async def test_request_timer_may_fire_after_the_app_has_closed() -> None:
    async with running_server(acting(WRITE)) as (_, server):
        async with open_app(server) as screen:
            await screen.submit("write it")
            await screen.wait_for_panel(ApprovalPanel)
        assert not screen.app.context.is_mounted
        screen.app.approvals.tick_keyboard()


async def test_denial_has_a_reason() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.pilot.press("tab", "r", *"not now", "enter")
        await screen.wait_for_text("not now")
        assert not made(server).exists()


async def test_answer_of_another_client_closes_the_panel_with_a_notice() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        other, workspace = await server.open_workspace()
        other.via = "page"
        ask = (await screen.app.connection.client.pending_permissions(workspace))[0]
        answer = {"permission": {"id": ask.id, "params": ask.params}, "action": "allow"}
        assert (await other.grant(workspace, answer)).resolved
        await screen.wait_for_no_panel()
        await screen.wait_for_notice(f"Allowed in a page ({other.client_id[:8]}).")
        await screen.wait_for_text("It said")


async def test_cancel_closes_the_panel() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        other, workspace = await server.open_workspace()
        assert screen.app.connection.session is not None
        await other.cancel_session(workspace, screen.app.connection.session)
        await screen.wait_for_no_panel()
        await screen.wait_for_notice("its run has ended")


async def test_questions_are_answered_together() -> None:
    model = acting(Call("question", json.dumps({"questions": QUESTIONS})))
    async with running_server(model) as (_, server), open_app(server) as screen:
        await screen.submit("ask me")
        await screen.wait_for_panel(QuestionPanel)
        await screen.wait_for_picture("PostgreSQL [big]")
        await screen.pilot.press("tab", "2", "enter")
        await screen.wait_until(lambda: "Where?" in screen.picture(), "the second question")
        await screen.pilot.press("down", "space", "enter")
        await screen.wait_for_text('It said: Q1: Which database? User selected: ["p"]')
        await screen.wait_for_text('Q2: Where? User selected: ["m"]')


async def test_questions_are_dismissed() -> None:
    model = acting(Call("question", json.dumps({"questions": QUESTIONS})))
    async with running_server(model) as (_, server), open_app(server) as screen:
        await screen.submit("ask me")
        await screen.wait_for_panel(QuestionPanel)
        await screen.pilot.press("tab", "down", "down", "down", "down", "enter")
        await screen.wait_until(lambda: not screen.app.connection.runs(), "the run has ended")
        assert not screen.app.connection.view.questions


async def titled(screen: AppDriver) -> list[str]:
    sessions = await screen.app.connection.client.list_sessions(screen.app.connection.workspace)
    return sorted(session.title for session in sessions)


async def test_sessions_are_renamed_and_deleted() -> None:
    async with running_server() as (_, server):
        client, workspace = await server.open_workspace()
        for title in ("Alpha", "Beta"):
            await send_prompt(client, workspace, (await client.create_session(workspace, title)).id, "x")
        async with open_app(server) as screen:
            await screen.pilot.press("ctrl+s")
            await screen.wait_for_dialog(Picker)
            await screen.pilot.press(*"alpha", "ctrl+r")
            await screen.wait_for_dialog(TextInput)
            screen.app.screen.query_one(Input).value = "Gamma"
            await screen.pilot.press("enter")
            await screen.wait_for_dialog(Picker)
            assert await titled(screen) == ["Beta", "Gamma"]
            await screen.pilot.press(*"beta", "ctrl+x")
            await screen.wait_for_dialog(Confirm)
            await screen.pilot.press("n")
            await screen.wait_for_dialog(Picker)
            assert await titled(screen) == ["Beta", "Gamma"]
            await screen.pilot.press(*"beta", "ctrl+x")
            await screen.wait_for_dialog(Confirm)
            await screen.pilot.press("y")
            await screen.wait_for_dialog(Picker)
            assert await titled(screen) == ["Gamma"]


async def test_session_deleted_by_another_client_disappears() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("hello")
        await screen.wait_for_text("echo: hello")
        other, workspace = await server.open_workspace()
        assert screen.app.connection.session is not None
        await other.delete_session(workspace, screen.app.connection.session)
        await screen.wait_until(lambda: screen.app.connection.session is None, "no session")
        await screen.wait_until(lambda: bool(screen.app.query_one("#welcome").display), "the welcome")
        await screen.submit("again")
        await screen.wait_for_text("echo: again")


async def test_provider_key_is_stored_and_never_shown() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.pilot.press("ctrl+l")
        await screen.wait_for_dialog(Picker)
        await screen.pilot.press("tab")
        await screen.wait_until(lambda: "small model" in screen.picture(), "the small one")
        await screen.wait_for_dialog(Picker)
        await screen.pilot.press("ctrl+e")
        await screen.wait_for_dialog(TextInput)
        await screen.pilot.press(*"sk-very-secret")
        assert "secret" not in screen.picture()
        await screen.pilot.press("enter")
        await screen.wait_for_notice("The key is stored")


async def test_reasoning_effort_is_chosen() -> None:
    described = {"id": "deep", "can_reason": True, "reasoning_levels": ["low", "high"]}
    provider = {"base_url": "http://127.0.0.1:9/v1", "api_key": "none", "models": [described, {"id": "plain"}]}
    async with server_directory() as directory, server_process(directory):
        app = HoldfastApp(
            ServerLocation(directory.address, str(directory.data), can_be_started=False), directory.project()
        )
        async with app.run_test(size=(100, 30)) as pilot:
            screen = AppDriver(app, pilot)
            await screen.wait_until(lambda: app.connection.state == "live", "the workspace is open")
            await app.connection.client.config_set(app.connection.workspace, "providers.local", provider)
            for model in ("plain", "deep"):
                choice = ConfigModelRequest("large", SelectedModel(model, "local", temperature=0.5))
                await app.connection.client.config_model(app.connection.workspace, choice)
                await screen.wait_until(lambda name=model: screen.line("top-right").startswith(name), model)  # type: ignore[misc]
                await pilot.press("f2")
            await screen.wait_for_notice("plain has no adjustable reasoning effort")
            await screen.wait_for_dialog(Picker)
            await pilot.press(*"high", "enter")
            await screen.wait_until(lambda: screen.line("top-right").startswith("deep high"), "how much it thinks")
            assert app.context.config["models"]["large"]["temperature"] == 0.5


async def test_changes_of_a_session_are_shown_and_undone() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server, size=(120, 30)) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.pilot.press("tab", "s")
        await screen.wait_for_text("It said")
        await screen.submit("/changes")
        await screen.wait_for_dialog(Picker)
        await screen.wait_for_picture("made.txt  +2 -0  new")
        await screen.pilot.press("enter")
        await screen.wait_for_dialog(DiffScreen)
        await screen.wait_for_picture("+two")
        await screen.pilot.press("u")
        await screen.wait_for_notice("made.txt: removed")
        assert not made(server).exists()


async def test_runs_are_listed() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("the first thing")
        await screen.wait_for_text("echo: the first thing")
        await screen.wait_until(lambda: not screen.app.connection.runs(), "its end")
        await screen.submit("/runs")
        await screen.wait_for_dialog(Picker)
        await screen.wait_for_picture("✓ the first thing  completed")
        await screen.pilot.press("escape")
        await screen.wait_for_no_dialog()
        await screen.submit("/jobs")
        await screen.wait_for_dialog(Picker)
        await screen.wait_for_picture("There are no jobs.")


async def test_chosen_theme_is_stored() -> None:
    async with running_server() as (_, server):
        async with open_app(server) as screen:
            await screen.submit("/theme")
            await screen.wait_for_dialog(Picker)
            await screen.pilot.press(*"paper", "enter")
            await screen.wait_for_no_dialog()
            await screen.wait_until(lambda: screen.app.theme == "paper", "the theme")
        async with open_app(server) as again:
            await again.wait_until(lambda: again.app.theme == "paper", "the theme is remembered")


def test_invisible_characters_are_escaped() -> None:
    assert escaped_text("rm a\x1b[2K\u202eb\r\tc").plain == "rm a\\x1b[2K\\u202eb\\r\\tc"
    assert escaped_text("a\nb é").plain == "a\nb é"


async def test_yolo_client_joins_workspace_without_affecting_others() -> None:
    async with (
        running_server(acting(WRITE)) as (_, server),
        open_app(server) as other,
        open_app(server, yolo=True) as mine,
    ):
        await mine.wait_until(lambda: "your prompts" in mine.line("top-right"), "it is shown")
        await mine.submit("write it")
        await mine.wait_until(made(server).exists, "the file")
        await mine.wait_until(lambda: not mine.app.connection.runs(), "the end")
        assert len(mine.app.screen_stack) == 1
        made(server).unlink()
        await other.submit("write it")
        await other.wait_for_panel(ApprovalPanel)
        await other.pilot.press("tab", "d")
        await mine.pilot.press("ctrl+y")
        await mine.wait_for_notice("Tools ask for approval again")
        await mine.wait_until(lambda: "without asking" not in mine.line("top-right"), "that they ask is shown")
        assert not mine.app.connection.view.workspace or not mine.app.connection.view.workspace.yolo


async def test_settings_errors_are_shown_at_start_and_when_they_occur() -> None:
    def write(text: str) -> None:
        Path(server.directory.project(), "holdfast.toml").write_text(text)

    async with running_server(acting()) as (_, server):
        write("permissions.deny = ['bahs(x)']\n")
        async with open_app(server) as screen:
            await screen.wait_for_notice("holdfast.toml:1: permissions.deny[0]")
            write("hooks.PreToolUs = [{command = 'x'}]\n")
            await screen.submit("hello")
            await screen.wait_for_notice("did you mean PreToolUse?")


async def test_arrows_and_enter_answer_once_the_composer_is_quiet() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        screen.stop_clock()
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.pilot.press("enter", "a", "backspace", "enter")
        assert not made(server).exists()
        await screen.settle_request()
        await screen.pilot.press("right", "left", "enter")
        await screen.wait_for_text("It said")
        assert made(server).exists()


async def test_a_resumed_app_and_a_paste_answer_nothing() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.settle_request()
        screen.stop_clock()
        # `fg` and its Enter belong to the shell; the key is held.
        screen.app.app_resume_signal.publish(screen.app)
        await screen.pilot.press(*["enter"] * 5)
        assert not screen.app.approvals.keyboard.is_settled
        await screen.pilot.press("tab")
        screen.app.post_message(events.Paste("dad"))
        await screen.wait_until(lambda: screen.composer.text == "dad", "the pasted text")
        assert screen.app.connection.view.permissions
        assert not made(server).exists()


async def test_two_approvals_do_not_share_a_key_press() -> None:
    calls = tuple(Call("write", json.dumps({"file_path": name, "content": "1"})) for name in ("one.txt", "two.txt"))
    async with running_server(acting(*calls)) as (_, server), open_app(server) as screen:
        screen.stop_clock()
        await screen.submit("write both")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.pilot.press("tab", "enter")
        await screen.wait_until(lambda: "two.txt" in screen.picture(), "the second one")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.pilot.press("enter", "a", "d")
        assert screen.composer.text == "ad"
        assert not made(server, "two.txt").exists()
        await screen.pilot.press("tab", "right", "right", "enter")
        await screen.wait_for_text("It said")
        rules = await screen.app.connection.client.get_config(screen.app.connection.workspace)
        assert "two.txt" in json.dumps(rules)


async def test_a_click_on_inactive_choices_only_moves_the_focus() -> None:
    async with running_server(acting(WRITE)) as (_, server), open_app(server) as screen:
        screen.stop_clock()
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.pilot.press("x")
        await screen.pilot.click(".choice")
        assert screen.composer.has_focus, "it has just appeared under the pointer"
        screen.clock.advance(1)
        await screen.pilot.click(".choice")
        await screen.wait_until(lambda: screen.app.approvals.keyboard.is_focused, "the focus")
        assert not made(server).exists()
        await screen.pilot.click(".choice")
        await screen.wait_for_text("It said")
        assert screen.composer.text == "x"
