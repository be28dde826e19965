"""What opens above the conversation, answered with keys; and what others answer first."""

import json
from pathlib import Path
from typing import Any

from textual import events
from textual.widgets import Input

from holdfast.client.locate import ServerLocation
from holdfast.domain.models import ModelRequest
from holdfast.protocol.bodies import ConfigModel, ModelChoice
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.tui.app import HoldfastApp
from holdfast.tui.screens.dialogs import Confirm, TextInput
from holdfast.tui.screens.pager import DiffScreen
from holdfast.tui.screens.picker import Picker
from holdfast.tui.terminal_text import escaped_text
from holdfast.tui.widgets.approval_panel import ApprovalPanel
from holdfast.tui.widgets.question_panel import QuestionPanel
from server.helpers import Server, place, process, prompt
from tui.looking import Screen, looking, standing

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
    return Path(server.place.project(), name)


def acting(*calls: Call) -> ScriptedModel:
    """Calls the tools, one after the other, and says what came of them."""

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


async def test_a_tool_may_act_once() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        assert "+one" in screen.picture()
        assert "Always saves: write:write(made.txt)" in screen.picture()
        await screen.pilot.press("tab", "a")
        await screen.shows("It said")
        assert made(server).read_text() == "one\ntwo\n"
        assert "write  made.txt  +2 -0" in screen.conversation()


async def test_the_time_of_a_request_may_be_up_when_the_app_has_closed() -> None:
    async with standing(acting(WRITE)) as (_, server):
        async with looking(server) as screen:
            await screen.write("write it")
            await screen.asks(ApprovalPanel)
        assert not screen.app.context.is_mounted
        screen.app.approvals.tick_keyboard()


async def test_a_no_can_have_a_reason() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        await screen.pilot.press("tab", "r", *"not now", "enter")
        await screen.shows("not now")
        assert not made(server).exists()


async def test_an_answer_from_elsewhere_closes_the_dialog_and_says_so() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        other, workspace = await server.opened()
        other.via = "page"
        ask = (await screen.app.connection.client.pending_permissions(workspace))[0]
        answer = {"permission": {"id": ask.id, "params": ask.params}, "action": "allow"}
        assert (await other.grant(workspace, answer)).resolved
        await screen.answered()
        await screen.said(f"Allowed in a page ({other.client_id[:8]}).")
        await screen.shows("It said")


async def test_a_cancel_closes_the_dialog() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        other, workspace = await server.opened()
        assert screen.app.connection.session is not None
        await other.cancel_session(workspace, screen.app.connection.session)
        await screen.answered()
        await screen.said("its run has ended")


async def test_questions_are_answered_together() -> None:
    model = acting(Call("question", json.dumps({"questions": QUESTIONS})))
    async with standing(model) as (_, server), looking(server) as screen:
        await screen.write("ask me")
        await screen.asks(QuestionPanel)
        assert "PostgreSQL [big]" in screen.picture()
        await screen.pilot.press("tab", "2", "enter")
        await screen.until(lambda: "Where?" in screen.picture(), "the second question")
        await screen.pilot.press("down", "space", "enter")
        await screen.shows('It said: Q1: Which database? User selected: ["p"]')
        await screen.shows('Q2: Where? User selected: ["m"]')


async def test_questions_can_be_turned_down() -> None:
    model = acting(Call("question", json.dumps({"questions": QUESTIONS})))
    async with standing(model) as (_, server), looking(server) as screen:
        await screen.write("ask me")
        await screen.asks(QuestionPanel)
        await screen.pilot.press("tab", "down", "down", "down", "down", "enter")
        await screen.until(lambda: not screen.app.connection.runs(), "the run has ended")
        assert not screen.app.connection.view.questions


async def titled(screen: Screen) -> list[str]:
    sessions = await screen.app.connection.client.list_sessions(screen.app.connection.workspace)
    return sorted(session.title for session in sessions)


async def test_sessions_are_renamed_and_deleted() -> None:
    async with standing() as (_, server):
        client, workspace = await server.opened()
        for title in ("Alpha", "Beta"):
            await prompt(client, workspace, (await client.create_session(workspace, title)).id, "x")
        async with looking(server) as screen:
            await screen.pilot.press("ctrl+s")
            await screen.opens(Picker)
            await screen.pilot.press(*"alpha", "ctrl+r")
            await screen.opens(TextInput)
            screen.app.screen.query_one(Input).value = "Gamma"
            await screen.pilot.press("enter")
            await screen.opens(Picker)
            assert await titled(screen) == ["Beta", "Gamma"]
            await screen.pilot.press(*"beta", "ctrl+x")
            await screen.opens(Confirm)
            await screen.pilot.press("n")
            await screen.opens(Picker)
            assert await titled(screen) == ["Beta", "Gamma"]
            await screen.pilot.press(*"beta", "ctrl+x")
            await screen.opens(Confirm)
            await screen.pilot.press("y")
            await screen.opens(Picker)
            assert await titled(screen) == ["Gamma"]


async def test_a_session_that_is_deleted_elsewhere_is_gone_here() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.write("hello")
        await screen.shows("echo: hello")
        other, workspace = await server.opened()
        assert screen.app.connection.session is not None
        await other.delete_session(workspace, screen.app.connection.session)
        await screen.until(lambda: screen.app.connection.session is None, "no session")
        await screen.until(lambda: bool(screen.app.query_one("#welcome").display), "the welcome")
        await screen.write("again")
        await screen.shows("echo: again")


async def test_a_key_is_written_and_never_shown() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.pilot.press("ctrl+l")
        await screen.opens(Picker)
        await screen.pilot.press("tab")
        await screen.until(lambda: "small model" in screen.picture(), "the small one")
        await screen.opens(Picker)
        await screen.pilot.press("ctrl+e")
        await screen.opens(TextInput)
        await screen.pilot.press(*"sk-very-secret")
        assert "secret" not in screen.picture()
        await screen.pilot.press("enter")
        await screen.said("The key is stored")


async def test_how_much_a_model_thinks_can_be_chosen() -> None:
    described = {"id": "deep", "can_reason": True, "reasoning_levels": ["low", "high"]}
    provider = {"base_url": "http://127.0.0.1:9/v1", "api_key": "none", "models": [described, {"id": "plain"}]}
    async with place() as where, process(where):
        app = HoldfastApp(ServerLocation(where.address, str(where.data), can_be_started=False), where.project())
        async with app.run_test(size=(100, 30)) as pilot:
            screen = Screen(app, pilot)
            await screen.until(lambda: app.connection.state == "live", "the workspace is open")
            await app.connection.client.config_set(app.connection.workspace, "providers.local", provider)
            for model in ("plain", "deep"):
                choice = ConfigModel("large", ModelChoice(model, "local", temperature=0.5))
                await app.connection.client.config_model(app.connection.workspace, choice)
                await screen.until(lambda name=model: screen.line("top-right").startswith(name), model)  # type: ignore[misc]
                await pilot.press("f2")
            await screen.said("plain has no adjustable reasoning effort")
            await screen.opens(Picker)
            await pilot.press(*"high", "enter")
            await screen.until(lambda: screen.line("top-right").startswith("deep high"), "how much it thinks")
            assert app.context.config["models"]["large"]["temperature"] == 0.5


async def test_changes_of_a_session_are_shown_and_taken_back() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server, size=(120, 30)) as screen:
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        await screen.pilot.press("tab", "s")
        await screen.shows("It said")
        await screen.write("/changes")
        await screen.opens(Picker)
        assert "made.txt  +2 -0  new" in screen.picture()
        await screen.pilot.press("enter")
        await screen.opens(DiffScreen)
        assert "+two" in screen.picture()
        await screen.pilot.press("u")
        await screen.said("made.txt: removed")
        assert not made(server).exists()


async def test_runs_are_listed() -> None:
    async with standing() as (_, server), looking(server) as screen:
        await screen.write("the first thing")
        await screen.shows("echo: the first thing")
        await screen.until(lambda: not screen.app.connection.runs(), "its end")
        await screen.write("/runs")
        await screen.opens(Picker)
        assert "✓ the first thing  completed" in screen.picture()
        await screen.pilot.press("escape")
        await screen.closes()
        await screen.write("/jobs")
        await screen.opens(Picker)
        assert "There are no jobs." in screen.picture()


async def test_a_theme_is_kept() -> None:
    async with standing() as (_, server):
        async with looking(server) as screen:
            await screen.write("/theme")
            await screen.opens(Picker)
            await screen.pilot.press(*"paper", "enter")
            await screen.closes()
            await screen.until(lambda: screen.app.theme == "paper", "the theme")
        async with looking(server) as again:
            await again.until(lambda: again.app.theme == "paper", "the theme is remembered")


def test_what_cannot_be_seen_is_shown() -> None:
    assert escaped_text("rm a\x1b[2K\u202eb\r\tc").plain == "rm a\\x1b[2K\\u202eb\\r\\tc"
    assert escaped_text("a\nb é").plain == "a\nb é"


async def test_who_comes_with_yolo_to_an_open_workspace_is_not_asked_and_others_are() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as other, looking(server, yolo=True) as mine:
        await mine.until(lambda: "your prompts" in mine.line("top-right"), "it is shown")
        await mine.write("write it")
        await mine.until(made(server).exists, "the file")
        await mine.until(lambda: not mine.app.connection.runs(), "the end")
        assert len(mine.app.screen_stack) == 1
        made(server).unlink()
        await other.write("write it")
        await other.asks(ApprovalPanel)
        await other.pilot.press("tab", "d")
        await mine.pilot.press("ctrl+y")
        await mine.said("Tools ask for approval again")
        await mine.until(lambda: "without asking" not in mine.line("top-right"), "that they ask is shown")
        assert not mine.app.connection.view.workspace or not mine.app.connection.view.workspace.yolo


async def test_errors_in_the_settings_are_shown_when_the_app_opens_and_when_they_come() -> None:
    def write(text: str) -> None:
        Path(server.place.project(), "holdfast.toml").write_text(text)

    async with standing(acting()) as (_, server):
        write("permissions.deny = ['bahs(x)']\n")
        async with looking(server) as screen:
            await screen.said("holdfast.toml:1: permissions.deny[0]")
            write("hooks.PreToolUs = [{command = 'x'}]\n")
            await screen.write("hello")
            await screen.said("did you mean PreToolUse?")


async def test_arrows_and_enter_answer_once_the_composer_is_quiet() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        screen.stop_clock()
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        await screen.pilot.press("enter", "a", "backspace", "enter")
        assert not made(server).exists()
        await screen.settles()
        await screen.pilot.press("right", "left", "enter")
        await screen.shows("It said")
        assert made(server).exists()


async def test_a_resumed_app_and_a_paste_answer_nothing() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        await screen.settles()
        screen.stop_clock()
        # `fg` and its Enter were the shell's; the key is held.
        screen.app.app_resume_signal.publish(screen.app)
        await screen.pilot.press(*["enter"] * 5)
        assert not screen.app.approvals.keyboard.is_settled
        await screen.pilot.press("tab")
        screen.app.post_message(events.Paste("dad"))
        await screen.until(lambda: screen.composer.text == "dad", "the pasted text")
        assert screen.app.connection.view.permissions
        assert not made(server).exists()


async def test_two_approvals_do_not_share_a_key_press() -> None:
    calls = tuple(Call("write", json.dumps({"file_path": name, "content": "1"})) for name in ("one.txt", "two.txt"))
    async with standing(acting(*calls)) as (_, server), looking(server) as screen:
        screen.stop_clock()
        await screen.write("write both")
        await screen.asks(ApprovalPanel)
        await screen.pilot.press("tab", "enter")
        await screen.until(lambda: "two.txt" in screen.picture(), "the second one")
        await screen.asks(ApprovalPanel)
        await screen.pilot.press("enter", "a", "d")
        assert screen.composer.text == "ad"
        assert not made(server, "two.txt").exists()
        await screen.pilot.press("tab", "right", "right", "enter")
        await screen.shows("It said")
        rules = await screen.app.connection.client.get_config(screen.app.connection.workspace)
        assert "two.txt" in json.dumps(rules)


async def test_a_click_on_inactive_choices_only_moves_the_focus() -> None:
    async with standing(acting(WRITE)) as (_, server), looking(server) as screen:
        screen.stop_clock()
        await screen.write("write it")
        await screen.asks(ApprovalPanel)
        await screen.pilot.press("x")
        await screen.pilot.click(".choice")
        assert screen.composer.has_focus, "it has just appeared under the pointer"
        screen.clock.advance(1)
        await screen.pilot.click(".choice")
        await screen.until(lambda: screen.app.approvals.keyboard.is_focused, "the focus")
        assert not made(server).exists()
        await screen.pilot.click(".choice")
        await screen.shows("It said")
        assert screen.composer.text == "x"
