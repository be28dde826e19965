"""Diffs, text of blocks, file mentions, attachments and notifications: the pure parts of the terminal app."""

import random
from difflib import unified_diff
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from holdfast.domain.approvals import Choice, Question, QuestionKind
from holdfast.domain.ids import MessageId, ToolCallId
from holdfast.domain.line_diff import changed_span, count_changes, diff_lines, pair_columns, parse_unified_diff
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Message,
    ShellCommand,
    ShellCommandPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.tui.app import HoldfastApp
from holdfast.tui.attachments import (
    MAX_SIZE,
    AttachmentTooLarge,
    best_matches,
    find_mentions,
    open_mention,
    pasted_path,
    read_attachment,
)
from holdfast.tui.block_render import block_code, block_text, highlight_matches
from holdfast.tui.blocks import AnswerBlock, MessageContext, ToolBlock, TurnEndBlock, blocks_of
from holdfast.tui.diff_render import DiffView
from holdfast.tui.notifications import desktop_command, terminal_sequence
from holdfast.tui.slash_commands import COMMANDS
from holdfast.tui.themes import DARK, PLAIN, Palette
from holdfast.tui.widgets.question_panel import QuestionPanel
from tui.message_builders import CALL, drawn, message, shown

# Changes.


def texts(rng: random.Random) -> str:
    return "".join(f"{rng.choice('abcdef')}\n" for _ in range(rng.randrange(12)))


def test_diff_transforms_old_text_into_new_text() -> None:
    rng = random.Random(3)
    for _ in range(300):
        old, new = texts(rng), texts(rng)
        lines = diff_lines(old, new, context=100)
        if old == new:
            assert lines == []
            continue
        shown = [line for line in lines if line.kind != "hunk"]
        assert [line.text for line in shown if line.kind != "added"] == old.splitlines()
        assert [line.text for line in shown if line.kind != "removed"] == new.splitlines()
        for line in shown:
            assert not line.old or old.splitlines()[line.old - 1] == line.text
            assert not line.new or new.splitlines()[line.new - 1] == line.text
        sides = pair_columns(shown)
        assert [left.text for left, _ in sides if left] == old.splitlines()
        assert [right.text for _, right in sides if right] == new.splitlines()


def test_diff_omits_distant_lines_and_unified_diffs_are_parsed() -> None:
    old = [f"line {number}\n" for number in range(40)]
    new = [*old[:5], "changed\n", *old[6:30], *old[31:]]
    lines = diff_lines("".join(old), "".join(new))
    assert count_changes(lines) == (1, 2)
    assert sum(line.kind == "hunk" for line in lines) == 2
    made = "".join(unified_diff(old, new, "a", "b"))
    assert [(line.kind, line.text, line.old, line.new) for line in parse_unified_diff(made)] == [
        (line.kind, line.text, line.old, line.new) for line in lines
    ]


@pytest.mark.parametrize("width", [12, 40, 120, 200])
def test_a_change_fits_the_screen_in_one_column_or_two(width: int) -> None:
    lines = diff_lines(
        "short\n日本語の長い行" + "x" * 300 + "\n\tend\n", "short\nother " + "y" * 300 + "\n\tend\x1b[2J\n"
    )
    console = Console(width=width, color_system=None)
    for split in (None, True, False):
        drawn = console.render_lines(DiffView(lines, DARK, split=split), console.options, pad=False)
        for line in drawn:
            assert sum(segment.cell_length for segment in line) <= width
            assert "\x1b" not in "".join(segment.text for segment in line)


def test_diff_has_two_columns_on_wide_screens() -> None:
    lines = diff_lines("one\ntwo\n", "one\nTWO\n")
    console = Console(width=120, color_system=None)
    wide = ["".join(part.text for part in line) for line in console.render_lines(DiffView(lines, DARK), pad=False)]
    assert any("-two" in line and "+TWO" in line for line in wide)
    narrow = console.render_lines(DiffView(lines, DARK), console.options.update(width=80), pad=False)
    assert not any("-two" in (text := "".join(part.text for part in line)) and "+TWO" in text for line in narrow)


@pytest.mark.parametrize("split", [True, False])
def test_diff_has_syntax_highlighting(split: bool) -> None:
    """Highlighting keeps the backgrounds of added and removed lines, and changes no character."""
    lines = diff_lines('def f():\n\treturn "one"\n', 'def f():\n\treturn "two"  # \x1b[2J\ufeff\n')
    console = Console(width=120)
    options = console.options

    def drawn_as(name: str, palette: Palette = DARK) -> list[list[Segment]]:
        return console.render_lines(DiffView(lines, palette, split=split, name=name), options, pad=False)

    def plain(rows: list[list[Segment]]) -> list[str]:
        return ["".join(segment.text for segment in row) for row in rows]

    coloured = drawn_as("a.py")
    assert plain(coloured) == plain(drawn_as("a.unknown")) == plain(drawn_as("a.py", PLAIN))
    styles = {segment.text.strip(): segment.style for row in coloured for segment in row if segment.style}
    keyword, added = styles["return"], styles["two"]
    assert keyword is not None
    assert added is not None
    assert keyword.color != added.color
    assert added.bgcolor == Style.parse(DARK.added_part).bgcolor
    bare = [segment.style.color for row in drawn_as("a.py", PLAIN) for segment in row if segment.style]
    assert not any(bare)


def test_changed_span_of_a_line() -> None:
    assert changed_span("return build(x)", "return make(x)") == (7, 12)
    assert changed_span("abc", "xyz") == (0, 0)


# Sub-agents, ends of turns, commands of the user.


def test_subagent_steps_are_shown_below_their_call() -> None:
    used = message(
        "assistant", ToolCallPart(ToolCall(ToolCallId("h1"), "grep", '{"pattern":"x"}', finished=True)), id="h"
    )
    reported = message(
        "tool", ToolResultPart(ToolResult(ToolCallId("h1"), "grep", "found", "", is_error=False)), id="t"
    )
    sent = message("assistant", ToolCallPart(ToolCall(CALL, "agent", '{"prompt":"look"}', finished=True)))

    def helped(owner: MessageId, call: ToolCallId) -> list[Message]:
        return [used, reported] if (owner, call) == ("m1", "c1") else []

    (card,) = blocks_of(sent, MessageContext(subagent_messages=helped))
    assert isinstance(card, ToolBlock)
    assert [(step.name, step.state) for step in card.steps] == [("grep", "done")]
    assert drawn(card) == ["  ◐ agent  look", "  │ ● grep  x"]


def test_last_line_of_a_turn_shows_model_and_duration() -> None:
    done = message("assistant", TextPart(Text("x")), FinishPart(Finish("end_turn", 75)))
    assert list(blocks_of(done, MessageContext(run_prompted_at=lambda _: 10)))[-1] == TurnEndBlock("", 65, 75)
    steps = message("assistant", TextPart(Text("x")), FinishPart(Finish("tool_use", 75)))
    assert not [
        block
        for block in blocks_of(steps, MessageContext(run_prompted_at=lambda _: 10))
        if isinstance(block, TurnEndBlock)
    ]
    assert drawn(TurnEndBlock("big", 65)) == ["  ◇ big · 1 min 05 s"]


def test_shell_command_of_the_user_is_shown() -> None:
    output = message("user", ShellCommandPart(ShellCommand("ls", "a.txt", 0)))
    assert drawn(shown(output)[0]) == ["▌ $ ls", "▌ a.txt"]
    failed = message("user", ShellCommandPart(ShellCommand("false", "", 1)))
    assert drawn(shown(failed)[0]) == ["▌ $ false   exit code 1"]


# Text of blocks.


def test_code_of_an_answer_is_extracted() -> None:
    assert block_code(AnswerBlock("Try\n\n```sh\nls\npwd\n```\n\nand\n\n~~~\nx\n~~~")) == "ls\npwd\nx"
    assert block_code(AnswerBlock("no code")) == ""
    assert block_code(ToolBlock("bash", '{"command":"ls"}', "done", "a.txt")) == "ls"
    assert block_text(ToolBlock("bash", '{"command":"ls"}', "done", "a.txt\n<cwd>/x</cwd>")) == "ls\na.txt"


def test_search_matches_are_highlighted() -> None:
    strip = Strip([Segment("日本 one "), Segment("ONE more", Style(bold=True))])
    found = highlight_matches(strip, "one", Style(reverse=True))
    assert found.text == strip.text
    assert [segment.text for segment in found if segment.style and segment.style.reverse] == ["one", "ONE"]


# Files.


def test_file_mentions_are_found() -> None:
    assert open_mention("look at @src/pa") == "src/pa"
    assert open_mention("@") == ""
    assert open_mention("me@example.org") is None
    assert open_mention("@done now") is None
    assert find_mentions('see @a.py, @"b c.md" and @a.py; not me@example.org') == ["a.py", "b c.md"]


def test_fuzzy_matching_ranks_file_names() -> None:
    names = ["src/parser.py", "tests/test_parser.py", "docs/spare.md", "p/a/r.txt", "README.md"]
    assert best_matches("par", names) == ["src/parser.py", "tests/test_parser.py", "docs/spare.md", "p/a/r.txt"]
    assert best_matches("tpar", names)[0] == "tests/test_parser.py"
    assert best_matches("zzz", names) == []
    assert len(best_matches("", names, limit=2)) == 2


def test_attachable_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.bin").write_bytes(b"\0\1\2")
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    (tmp_path / "d.log").write_bytes(b"x" * (MAX_SIZE + 1))
    text = read_attachment(str(tmp_path / "a.py"), "a.py")
    assert text is not None
    assert (text.mime_type, text.file_path, text.content) == ("text/plain; charset=utf-8", "a.py", b"x = 1\n")
    assert read_attachment(str(tmp_path / "b.bin"), "b.bin") is None
    assert read_attachment(str(tmp_path / "missing"), "missing") is None
    picture = read_attachment(str(tmp_path / "c.png"), "c.png")
    assert picture is not None
    assert picture.mime_type == "image/png"
    with pytest.raises(AttachmentTooLarge):
        read_attachment(str(tmp_path / "d.log"), "d.log")


def test_path_of_a_dropped_image_is_recognised_in_every_spelling(tmp_path: Path) -> None:
    picture = tmp_path / "my pic (1).png"
    picture.write_bytes(b"x")
    path = str(picture)
    escaped = path.replace(" ", "\\ ").replace("(", "\\(").replace(")", "\\)")
    for text in (path, f"'{path}'", f'"{path}" ', escaped, f"file://{quote(path)}", f"{path}\n"):
        assert pasted_path(text) == path, text
    for text in ("it's a.png", f"{path} and {path}", f"{path}\nand more.png", str(tmp_path / "none.png")):
        assert pasted_path(text) is None, text


# Notifications.


@pytest.mark.parametrize(
    ("style", "environment", "sequence"),
    [
        ("disabled", {"TERM_PROGRAM": "iTerm.app"}, ""),
        ("bell", {"TERM_PROGRAM": "iTerm.app"}, "\a"),
        ("auto", {"TERM": "xterm-256color"}, "\a"),
        ("auto", {"TERM_PROGRAM": "iTerm.app"}, "\x1b]9;It is done  really\x1b\\"),
        ("auto", {"TERM": "foot"}, "\x1b]777;notify;Holdfast;It is done  really\x1b\\"),
        ("osc", {"TERM": "xterm"}, "\x1b]9;It is done  really\x1b\\"),
        ("osc", {"TMUX": "1"}, "\x1bPtmux;\x1b\x1b]9;It is done  really\x1b\x1b\\\x1b\\\a"),
    ],
)
def test_terminal_notification_sequences(style: str, environment: dict[str, str], sequence: str) -> None:
    assert terminal_sequence(style, "It is done;\x1breally", environment) == sequence


@pytest.mark.parametrize(
    ("programs", "environment", "shown"),
    [
        ((), {"DISPLAY": ":0"}, None),
        (("notify-send",), {}, None),
        (("notify-send",), {"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, None),
        (("notify-send",), {"WAYLAND_DISPLAY": "w"}, ("--app-name=Holdfast", "--", "Holdfast", "-x  done")),
        (("terminal-notifier", "osascript"), {}, ("-title", "Holdfast", "-message", "-x  done")),
    ],
)
def test_desktop_notification_command(
    programs: tuple[str, ...], environment: dict[str, str], shown: tuple[str, ...] | None
) -> None:
    found = desktop_command("-x;\x1bdone", environment, lambda name: name if name in programs else None)
    assert found == (shown and (programs[0], *shown))


def test_notification_text_is_an_argument_of_the_apple_script() -> None:
    command = desktop_command('"; do evil', {}, lambda name: name if name == "osascript" else None)
    assert command is not None
    assert command[-1] == '"  do evil'
    assert "evil" not in " ".join(command[:-1])


def test_own_commands_have_unique_names_and_existing_actions() -> None:
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
    for command in COMMANDS:
        assert hasattr(HoldfastApp, f"action_{command.action}"), command.name


QUESTION_ROWS: list[tuple[QuestionKind, list[str]]] = [
    ("yes_no", ["1 Yes", "2 No"]),
    ("single_choice", ["1 Red", "2 Blue: like the sea"]),
    ("multi_choice", ["1 Red", "2 Blue: like the sea"]),
    ("free_text", []),
]


@pytest.mark.parametrize("is_single", [True, False])
@pytest.mark.parametrize(("kind", "choices"), QUESTION_ROWS)
def test_answers_offered_for_a_question(kind: QuestionKind, choices: list[str], is_single: bool) -> None:
    """A single question is declined as a whole; one of several can be skipped."""
    offered = (Choice("r", "Red"), Choice("b", "Blue", "like the sea")) if kind.endswith("choice") else ()
    panel: Any = object()
    rows = QuestionPanel._rows(panel, Question("q", kind, "?", choices=offered), is_single=is_single)
    skip = [] if is_single else ["skip this question"]
    assert [str(row.label) for row in rows] == [*choices, "in your own words …", *skip, "do not answer"]
    ids = {"yes_no": ["yes", "no"], "free_text": []}.get(kind, ["r", "b"])
    assert [row.value for row in rows] == [*ids, "\0words", *(["\0skip"] if skip else []), "\0dismiss"]
