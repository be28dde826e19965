"""Blocks of a conversation, and their layout: the pure parts of the terminal app."""

import json
import random

import pytest
from rich.console import Console

from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
)
from holdfast.domain.runs import Run
from holdfast.tui.block_render import (
    FOLDED_LINES,
    describe_activity,
    format_cost,
    format_count,
    format_duration,
    render_block,
)
from holdfast.tui.blocks import (
    AnswerBlock,
    Block,
    MessageContext,
    NoticeBlock,
    PromptBlock,
    ReasoningBlock,
    ToolBlock,
    block_headline,
    blocks_of,
    change_lines,
    output_lines,
    split_markdown,
)
from holdfast.tui.themes import DARK, LIGHT
from holdfast.tui.widgets.transcript import TranscriptRows
from tui.message_builders import CALL, DONE, drawn, message, shown

# Markdown in pieces.


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\n\ntwo\n\n\nthree\n", ["one", "two", "three"]),
        ("a\n\n```py\nx = 1\n\ny = 2\n```\n\nb", ["a", "```py\nx = 1\n\ny = 2\n```", "b"]),
        ("- a\n\n- b\n\nend", ["- a\n\n- b", "end"]),
        ("1. a\n\n   more\n\n2. b", ["1. a\n\n   more\n\n2. b"]),
        ("~~~\n```\n\n~~~\n\nx", ["~~~\n```\n\n~~~", "x"]),
        ("```\nnever closed\n\nstill code", ["```\nnever closed\n\nstill code"]),
    ],
)
def test_markdown_is_split_at_complete_pieces(text: str, pieces: list[str]) -> None:
    assert split_markdown(text) == pieces


def test_streaming_changes_only_the_last_piece() -> None:
    text = "# Title\n\nSome words.\n\n```sh\nls\n\npwd\n```\n\n- a\n- b\n\n  more\n\nThe end.\n\n| a |\n|---|\n| 1 |\n"
    before: list[str] = []
    for end in range(len(text) + 1):
        now = split_markdown(text[:end])
        assert now[: len(before) - 1] == before[:-1]
        before = now


# Blocks.


def test_blocks_of_a_prompt_and_its_answer() -> None:
    assert shown(message("user", TextPart(Text("hello\n")))) == [PromptBlock("hello", at=1)]
    assert shown(message("assistant", TextPart(Text("one\n\ntwo")), DONE)) == [AnswerBlock("one"), AnswerBlock("two")]
    assert shown(message("assistant", TextPart(Text("one\n\ntwo")))) == [
        AnswerBlock("one"),
        AnswerBlock("two", is_open=True),
    ]


def test_reasoning_is_open_until_it_ends() -> None:
    assert shown(message("assistant", ReasoningPart(Reasoning("hm", "", 10)))) == [ReasoningBlock("hm", is_open=True)]
    assert shown(message("assistant", ReasoningPart(Reasoning("hm", "", 10, 14)))) == [ReasoningBlock("hm", 4)]


def test_tool_block_has_the_state_of_its_call() -> None:
    called = message("assistant", ToolCallPart(ToolCall(CALL, "ls", "")))
    running = message("assistant", ToolCallPart(ToolCall(CALL, "ls", "{}", finished=True)))
    assert shown(called) == [ToolBlock("ls", "", "called", call=CALL)]
    assert list(blocks_of(running, MessageContext({}, {CALL: "so far"}))) == [
        ToolBlock("ls", "{}", "running", output="so far", call=CALL)
    ]
    good = ToolResult(CALL, "ls", "a.txt", "{}", is_error=False)
    assert shown(running, c1=good) == [ToolBlock("ls", "{}", "done", "a.txt", "{}", call=CALL)]
    bad = ToolResult(CALL, "ls", "no such place", "", is_error=True)
    assert shown(running, c1=bad) == [ToolBlock("ls", "{}", "failed", "no such place", call=CALL)]


def test_failed_turns_end_with_a_notice() -> None:
    def ended(finish: Finish) -> list[Block]:
        return shown(message("assistant", FinishPart(finish)))

    assert ended(Finish("canceled", 1)) == [NoticeBlock("cancelled", "Cancelled")]
    assert ended(Finish("error", 1, "No key", "Set one.")) == [NoticeBlock("error", "No key", "Set one.")]
    assert ended(Finish("end_turn", 1)) == []


# Cards.


def test_headline_shows_the_main_argument() -> None:
    def headline(name: str, **asked: object) -> str:
        return block_headline(ToolBlock(name, json.dumps(asked), "running"), "/home/me/project")

    assert headline("bash", command="make test\nmake install") == "make test …"
    assert headline("view", file_path="/home/me/project/src/a.py", offset=20) == "src/a.py  from line 20"
    assert headline("grep", pattern="TODO", path="src") == "TODO  in src"
    assert block_headline(ToolBlock("bash", '{"command": "ma', "called")) == ""


def test_a_change_is_a_diff() -> None:
    facts = json.dumps({"old_content": "a\nb\n", "new_content": "a\nc\n"})
    card = ToolBlock("edit", "{}", "done", "Edited.", facts)
    assert [(line.kind, line.text) for line in change_lines(card)] == [("same", "a"), ("removed", "b"), ("added", "c")]


def test_a_todo_list_is_a_list() -> None:
    todos = [{"content": "look", "status": "completed"}, {"content": "leap", "status": "in_progress"}]
    card = ToolBlock("todos", "{}", "done", "", json.dumps({"todos": todos}))
    assert output_lines(card) == [("done", "look"), ("doing", "leap")]
    assert block_headline(card) == "1 of 2 done"


def test_long_output_is_folded_and_a_running_command_shows_its_end() -> None:
    output = "\n".join(f"line {number}" for number in range(100))
    done = drawn(ToolBlock("bash", '{"command":"seq"}', "done", output))
    assert len(done) == 1 + FOLDED_LINES + 1
    assert "… 92 lines before" in done[1]
    assert "line 99" in done[-1]
    listed = drawn(ToolBlock("ls", "{}", "done", output))
    assert "line 0" in listed[1]
    assert "… 92 more lines" in listed[-1]
    running = drawn(ToolBlock("bash", '{"command":"seq"}', "running", output=output))
    assert "line 99" in running[-1]
    assert len(drawn(ToolBlock("bash", "{}", "done", output), is_unfolded=True)) == 101


def test_reasoning_is_folded() -> None:
    assert drawn(ReasoningBlock("first\nsecond", 3)) == ["  ✻ Thought for 3 s"]
    assert drawn(ReasoningBlock("first\nsecond", 3), is_unfolded=True)[1:] == ["  │ first", "  │ second"]


@pytest.mark.parametrize("palette", [DARK, LIGHT])
@pytest.mark.parametrize("width", [10, 20, 80, 200])
def test_no_block_is_wider_than_the_screen(width: int, palette: object) -> None:
    blocks: list[Block] = [
        PromptBlock("a word " * 50),
        AnswerBlock("| a | b |\n|---|---|\n| " + "x" * 90 + " | 2 |"),
        AnswerBlock("```py\n" + "y" * 300 + "\n```"),
        ToolBlock("bash", json.dumps({"command": "z" * 300}), "done", "日本語" * 100),
        NoticeBlock("error", "It failed", "w" * 300),
        ReasoningBlock("deep " * 90, is_open=True),
    ]
    console = Console(width=width, color_system=None)
    for block in blocks:
        for line in console.render_lines(render_block(block, DARK), console.options, pad=False):
            assert sum(segment.cell_length for segment in line) <= width


# Rows.


def model_of(rows: TranscriptRows[str]) -> list[tuple[str, int]]:
    """Return for each line its block and its line in the block; -1 is a gap."""
    lines: list[tuple[str, int]] = []
    for row in rows.rows:
        lines += [(str(row.block), -1)] * row.gap + [(str(row.block), line) for line in range(row.height)]
    return lines


def any_block(rng: random.Random) -> Block:
    return ToolBlock("ls", "{}", "done") if rng.random() < 0.5 else AnswerBlock("word " * rng.randrange(60))


def test_rows_locate_every_line_after_any_change() -> None:
    rng = random.Random(7)
    rows: TranscriptRows[str] = TranscriptRows()
    for _ in range(400):
        id = MessageId(f"m{rng.randrange(12)}")
        match rng.randrange(5):
            case 0:
                rows.remove(id)
            case 1:
                rows.resize(rng.randrange(20, 120))
            case 2 if rows.rows:
                index = rng.randrange(len(rows.rows))
                rows.rows[index].height = rng.randrange(1, 6)
                rows.settle(index)
            case _:
                count = rng.randrange(4)
                blocks = [any_block(rng) for _ in range(count)]
                rows.set_blocks(id, blocks)
        lines = model_of(rows)
        assert rows.height == len(lines)
        for line, (block, inside) in enumerate(lines):
            index = rows.at(line)
            row = rows.rows[index]
            found = line - rows.top(index) - row.gap
            assert (str(row.block), found if found >= 0 else -1) == (block, inside)


def test_equal_blocks_keep_their_lines() -> None:
    rows: TranscriptRows[str] = TranscriptRows()
    rows.set_blocks(MessageId("m1"), [AnswerBlock("a"), AnswerBlock("b", is_open=True)])
    rows.rows[0].lines = ["a"]
    rows.set_blocks(MessageId("m1"), [AnswerBlock("a"), AnswerBlock("b c", is_open=True)])
    assert rows.rows[0].lines == ["a"]
    assert rows.rows[1].lines is None


# Descriptions of activity.


def test_activity_descriptions() -> None:
    run = Run(RunId("r1"), SessionId("s1"), "active", "queue", 1, started_at=2)
    assert describe_activity([], None) == ""
    assert describe_activity([run], None) == "Waiting for the model"
    assert describe_activity([run], message("assistant", TextPart(Text("x")))) == "Writing"
    assert describe_activity(
        [run], message("assistant", ToolCallPart(ToolCall(CALL, "bash", "{}", finished=True)))
    ) == ("Running bash")


def test_number_formats() -> None:
    assert [format_duration(ms) for ms in (900, 61_000, 3_720_000)] == ["0 s", "1 min 01 s", "1 h 02 min"]
    assert [format_count(count) for count in (999, 1_500, 2_000_000)] == ["999", "1.5k", "2M"]
    assert [format_cost(dollars) for dollars in (0.0, 0.0012, 1.5)] == ["$0.00", "$0.0012", "$1.50"]


def test_a_changed_block_keeps_its_height_and_state_until_it_is_drawn() -> None:
    """Otherwise the lines below it would jump with every piece of a streamed answer."""
    rows: TranscriptRows[str] = TranscriptRows()
    rows.set_blocks(MessageId("m1"), [AnswerBlock("a"), ReasoningBlock("b", 1)])
    rows.rows[0].height, rows.rows[1].is_unfolded = 7, True
    rows.set_blocks(MessageId("m1"), [AnswerBlock("a\n" * 30), ReasoningBlock("c", 1)])
    assert (rows.rows[0].height, rows.rows[1].is_unfolded) == (7, True)
    rows.set_blocks(MessageId("m1"), [ReasoningBlock("b", 1), AnswerBlock("a")])
    assert [row.height for row in rows.rows] == [1, 1], "a block of another kind has its own height"
    assert not rows.rows[1].is_unfolded
