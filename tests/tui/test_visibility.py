"""Everything that the user needs for a decision is visible: whole changes, all answers, all text of a model."""

import json
from functools import partial

import pytest
from rich.console import Console
from textual import events
from textual.color import Color
from textual.theme import Theme

from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import AgentNotice
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.line_diff import diff_lines
from holdfast.domain.messages import Text, TextPart, ToolCall, ToolCallPart
from holdfast.domain.runs import Run
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step, Think
from holdfast.tui.app import HoldfastApp
from holdfast.tui.block_render import describe_activity
from holdfast.tui.blocks import AnswerBlock, ToolBlock, output_lines
from holdfast.tui.diff_render import DiffView
from holdfast.tui.key_hints import key_hints
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.themes import DARK, LIGHT, THEMES, Palette
from holdfast.tui.widgets.approval_panel import ApprovalPanel
from holdfast.tui.widgets.composer import Composer
from holdfast.tui.widgets.question_panel import QuestionPanel
from server.helpers import FeedModel
from tui.app_driver import AppDriver, open_app, running_server
from tui.message_builders import drawn, message
from tui.test_dialogs import QUESTIONS, acting
from tui.test_prompts import busy, queued, waiting

SMALL = (80, 24)


# Words.


@pytest.mark.parametrize(
    "text",
    ["Use <Foo> and Vec<u8>, &amp; so on", "<details>\nwhat is inside\n</details>", "<!-- a remark -->", "![a](b) c"],
)
def test_html_is_shown_as_text(text: str) -> None:
    """A terminal does not render it, and without it the sentence would have another meaning."""
    words = " ".join(drawn(AnswerBlock(text), 80))
    for word in text.replace("&amp;", "&").replace("![a](b)", "!a").split():
        assert word in words


def test_answer_has_no_superfluous_blank_lines() -> None:
    lines = drawn(AnswerBlock("# Top\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"), 40)
    assert lines == ["  Top", "", "   x = 1", "", "  a  b", "  ────", "  1  2"]


@pytest.mark.parametrize("split", [True, False])
def test_wrapped_diff_shows_whole_lines(split: bool) -> None:
    """Text beyond the edge of the screen would be executed, too."""
    new = "x = 1" + " " * 100 + "; import os; os.system('evil')  # 日本語日本語日本語"
    lines = diff_lines("x = 1\n", new + "\n")
    console = Console(width=40, color_system=None)
    lines_drawn = console.render_lines(DiffView(lines, DARK, split=split, wraps=True, name="a.py"), pad=False)
    rows = ["".join(part.text for part in line) for line in lines_drawn]
    numbers = 24 if split else 6
    assert "os.system('evil')" in "".join(row[numbers:].rstrip() for row in rows)
    assert all(sum(part.cell_length for part in line) == 40 for line in lines_drawn)


@pytest.mark.parametrize("long", ["def subtract(a, b) -> int:", "0123456789" * 3])
def test_cut_line_ends_with_an_ellipsis(long: str) -> None:
    """Also where the cut falls between two pieces of it."""
    for width in range(12, 6 + len(long) + 1):
        console = Console(width=width, color_system=None)
        change = DiffView(diff_lines("", f"{long}\n"), DARK, split=False, name="a.py")
        first = console.render_lines(change, pad=False)[0]
        assert "".join(part.text for part in first).rstrip().endswith("…")


def test_question_card_shows_labels_of_the_answers() -> None:
    content = 'Q1: Which database?\nUser selected: ["s", "x"]\nNote: soon\n\nQ2: Where?\nUser skipped this question'
    card = ToolBlock("question", json.dumps({"questions": QUESTIONS}), "done", content)
    assert [line for _, line in output_lines(card)] == [
        "Which database?",
        "→ SQLite, x",
        "→ soon",
        "Where?",
        "→ skipped",
    ]


def test_subagent_result_is_rendered_as_markdown() -> None:
    card = ToolBlock(
        "agent", json.dumps({"prompt": "look"}), "done", "It is in **src/a.py**, and in no other file at all."
    )
    assert drawn(card, 40) == ["  ● agent  look", "  │ It is in src/a.py, and in no other", "  │ file at all."]


def test_retry_time_precedes_the_reason() -> None:
    """On a narrow screen only one of the two is visible."""
    runs = [Run(RunId("r1"), SessionId("s1"), "active", "queue", 1, started_at=2)]
    notice = AgentNotice("retrying", "far: no answer. Is it up? Trying again in 4 s (2 of 5).")
    assert describe_activity(runs, None, notice) == "Trying again in 4 s (2 of 5): far: no answer. Is it up?"


def test_command_keeps_its_spelling() -> None:
    call = ToolCall(ToolCallId("1"), "bash", json.dumps({"command": 'echo "a"\n\tb'}), finished=True)
    runs = [Run(RunId("r1"), SessionId("s1"), "active", "queue", 1, started_at=2)]
    last = message("assistant", TextPart(Text("x")), ToolCallPart(call))
    assert describe_activity(runs, last) == 'Running bash: echo "a" b'


@pytest.mark.parametrize(("theme", "palette"), [(THEMES[0], DARK), (THEMES[1], LIGHT)])
def test_text_has_enough_contrast(theme: Theme, palette: Palette) -> None:
    paper = Color.parse(str(theme.background))
    for name, least in (("muted", 4.5), ("faint", 3.5), ("error", 4.5), ("warning", 4.5), ("inline", 4.5)):
        assert contrast(Color.parse(getattr(palette, name)), paper) >= least, name


def test_key_descriptions_are_not_dimmed() -> None:
    """The lines are muted already; muted and dimmed text is unreadable on a light theme."""
    line = key_hints(("enter", "send"), ("tab", "read"))
    dim = [line.plain[span.start : span.end] for span in line.spans if span.style == "dim"]
    assert dim == [" · "]


def contrast(one: Color, other: Color) -> float:
    """As the guidelines for the web count it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Color) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


# Dialogs.


def _shows(screen: AppDriver, text: str) -> bool:
    return text in screen.picture()


async def test_answers_stay_visible_below_a_long_command() -> None:
    command = "touch made.txt; for i in 1; do " + " ".join(f"echo word{number};" for number in range(120)) + " done"
    call = Call("bash", json.dumps({"command": command, "description": "x"}))
    async with running_server(acting(call)) as (_, server), open_app(server, size=SMALL) as screen:
        screen.stop_clock()
        await screen.submit("run it")
        await screen.wait_for_panel(ApprovalPanel)
        for keys in ((), ("tab",), ("f",), ("f", "r")):
            await screen.pilot.press(*keys)
            wanted = "enter no, with this reason" if "r" in keys else "r no, because" if keys else "tab to answer"
            await screen.wait_until(partial(_shows, screen, wanted), wanted)
            picture = screen.picture()
            assert "wants to run a command" in picture
            assert ("Once     This session" in picture) is ("r" not in keys)
        assert "Always saves: bash(= touch made.txt;" in picture
        await screen.pilot.press("escape")
        await screen.wait_until(partial(_shows, screen, "r no, because"), "the choices again")


async def test_change_is_shown_completely_and_full_screen() -> None:
    content = f"x = 1{' ' * 90}; evil()\n" + "".join(f"line {number}\n" for number in range(60))
    call = Call("write", json.dumps({"file_path": "made.txt", "content": content}))
    async with running_server(acting(call)) as (_, server), open_app(server, size=SMALL) as screen:
        await screen.submit("write it")
        await screen.wait_for_panel(ApprovalPanel)
        await screen.wait_for_picture("; evil()")
        what = screen.app.screen.query_one("#what")
        await screen.wait_until(lambda: what.size.height > 0, "some of it")
        before = what.size.height
        await screen.pilot.press("tab", "f")
        await screen.wait_until(lambda: what.size.height >= before + 2, "more of it")
        await screen.wait_until(lambda: "▌ write it" not in screen.picture(), "nothing but it")
        await screen.wait_for_picture("esc back")


async def test_question_is_visible_with_its_answers() -> None:
    call = Call("question", json.dumps({"questions": [*QUESTIONS, *QUESTIONS]}))
    async with running_server(acting(call)) as (_, server), open_app(server, size=SMALL) as screen:
        await screen.submit("ask me")
        await screen.wait_for_panel(QuestionPanel)
        for number in range(1, 5):
            name = "Which database?" if number % 2 else "Where?"
            await screen.wait_until(lambda text=f"{name}   ({number} of 4)": text in screen.picture(), name)  # type: ignore[misc]
            await screen.wait_until(lambda: "in your own words" in screen.picture(), "the last choice")
            await screen.pilot.press(*(() if number > 1 else ("tab",)), "enter")
        await screen.wait_for_no_panel()


async def test_last_typed_letters_are_part_of_the_answer() -> None:
    call = Call("question", json.dumps({"questions": QUESTIONS[:1]}))
    async with running_server(acting(call)) as (_, server), open_app(server) as screen:
        await screen.submit("ask me")
        await screen.wait_for_panel(QuestionPanel)
        await screen.pilot.press("tab", "down", "down", "enter")
        # As from a terminal: there is no pause between two keys.
        for key in (*"another", "enter"):
            screen.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await screen.wait_for_text("User provided: another")


# Where one is.


async def test_escape_in_the_queue_does_not_count_towards_a_cancel() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server, size=SMALL) as screen:
        await busy(screen, model)
        await queued(screen, "one")
        await screen.pilot.press("ctrl+t")
        await screen.wait_until(lambda: "s send now" in screen.line("hints"), "the keys of the queue")
        await screen.wait_for_picture("esc back")
        await screen.pilot.press("escape")
        await screen.wait_until(lambda: screen.composer.has_focus, "the editor")
        await screen.pilot.press("escape")
        await screen.wait_until(lambda: "again to cancel" in screen.line("hints"), "the warning")
        assert waiting(screen) == ["one"]


async def test_matches_are_visited_after_the_search_was_closed() -> None:
    model = FeedModel()
    async with running_server(model) as (_, server), open_app(server, size=SMALL) as screen:
        await busy(screen, model)
        filler = "\n".join("more" for _ in range(40))
        model.words.put_nowait(f"```\nneedle one\n{filler}\nneedle two\n{filler}\nend\n```")
        model.words.put_nowait(None)
        await screen.wait_for_text("needle two")
        await screen.pilot.press("ctrl+f", *"needle")
        await screen.wait_until(lambda: "needle two" in screen.picture(), "the newest of them")
        await screen.wait_until(lambda: "enter, ↑ previous" in screen.line("hints"), "the keys of the search")
        await screen.pilot.press("escape", "N")
        await screen.wait_until(lambda: "needle one" in screen.picture(), "the one before")
        await screen.pilot.press("n")
        await screen.wait_until(lambda: "needle two" in screen.picture(), "and on again")
        await screen.pilot.press("tab", "tab", "N")
        await screen.pilot.pause()
        await screen.wait_for_picture("needle two")


async def test_help_shows_the_name_of_this_client() -> None:
    async with running_server() as (_, server), open_app(server, size=(120, 40)) as screen:
        await screen.pilot.press("ctrl+g")
        await screen.wait_for_dialog(HelpScreen)
        await screen.wait_for_picture("other clients see this one as 12345678")
        assert fits(screen, "send; steers the current run")


def fits(screen: AppDriver, words: str) -> bool:
    """Return True if a line of the screen contains the whole text."""
    return any(words in line for line in screen.picture().split("\n"))


async def test_click_that_unfolds_keeps_the_focus_in_the_composer() -> None:
    model = ScriptedModel([Step((Think("deep inside"), Say("said")))])
    async with running_server(model) as (_, server), open_app(server, size=SMALL) as screen:
        await screen.submit("go")
        await screen.wait_for_text("◇ scripted")
        await screen.wait_for_picture("✻ Thought")
        at = next(number for number, line in enumerate(screen.picture().split("\n")) if "✻ Thought" in line)
        await screen.pilot.click(offset=(6, at))
        await screen.wait_for_text("deep inside")
        await screen.pilot.press(*"on")
        assert screen.composer.text == "on"


async def test_leaving_with_unsent_text_requires_a_second_key() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        screen.composer.insert("half a thought")
        await screen.pilot.press("ctrl+c")
        await screen.wait_for_notice("ctrl+c again leaves")
        assert screen.app.return_value is None
        await screen.pilot.press("ctrl+c")
        await screen.wait_until(lambda: screen.app.return_value == 0, "the end")


async def test_leaving_with_an_empty_composer_is_immediate() -> None:
    """Also when both keys come together, as from a terminal."""
    async with running_server() as (_, server), open_app(server) as screen:
        screen.composer.insert("half a thought")
        for key in ("ctrl+u", "ctrl+c"):
            screen.app.post_message(events.Key(key, None))
        await screen.wait_until(lambda: screen.app.return_value == 0, "the end")


async def test_unknown_command_is_not_sent() -> None:
    async with running_server() as (_, server), open_app(server) as screen:
        await screen.submit("/hlep")
        await screen.wait_for_notice("There is no command /hlep")
        assert screen.composer.text == "/hlep"
        assert screen.app.connection.session is None
        screen.composer.text = "/etc/hosts is what I mean"
        await screen.pilot.press("enter")
        await screen.wait_for_text("echo: /etc/hosts is what I mean")


async def test_quickly_typed_command_is_not_sent_as_a_prompt() -> None:
    """Enter may come before the names are offered."""
    async with running_server() as (_, server), open_app(server) as screen:
        screen.app.post_message(Composer.Sent("/help", queues=False))
        await screen.wait_for_dialog(HelpScreen)
        assert screen.app.connection.session is None


async def test_missing_session_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_server() as (_, server):
        directory = ServerLocation(server.address, str(server.directory.data), can_be_started=False)
        app = HoldfastApp(directory, server.directory.project(), session="nobody")
        async with app.run_test() as pilot:
            await AppDriver(app, pilot).wait_until(lambda: app.return_value is not None, "the end")
        assert app.return_value == 2
        assert "There is no session nobody here" in capsys.readouterr().err
