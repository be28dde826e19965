"""Every kind of message part and tool result, in every state, with the blocks and lines it is shown as.

The table proves itself complete: with each planted mistake in `blocks.py` one of its rows fails.
"""

import json
from typing import Any

import msgspec

from holdfast.domain.ids import MessageId, RunId, ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    FinishReason,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    ShellCommand,
    ShellCommandPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.tui import blocks
from holdfast.tui.blocks import (
    AnswerBlock,
    Block,
    MessageContext,
    NoticeBlock,
    OutputLine,
    PromptBlock,
    ReasoningBlock,
    ToolBlock,
    TurnEndBlock,
)
from planting import KINDS, assert_every_clause_decides
from tui.message_builders import CALL, message

OTHER = ToolCallId("c2")


def text(value: str) -> TextPart:
    return TextPart(Text(value))


def thought(value: str, started: int = 0, finished: int = 0) -> ReasoningPart:
    return ReasoningPart(Reasoning(value, "", started, finished))


def call(name: str = "ls", *, finished: bool = True, id: ToolCallId = CALL) -> ToolCallPart:
    return ToolCallPart(ToolCall(id, name, "{}", finished=finished))


def result(content: str = "a", *, is_error: bool = False, id: ToolCallId = CALL) -> ToolResult:
    return ToolResult(id, "ls", content, "{}", is_error=is_error)


def end(reason: FinishReason, at: int = 0, title: str = "", details: str = "") -> FinishPart:
    return FinishPart(Finish(reason, at, title, details))


def shell(code: int) -> ShellCommandPart:
    return ShellCommandPart(ShellCommand("ls", "a.txt", code))


def own(state: Any, code: int) -> ToolBlock:  # noqa: ANN401
    return ToolBlock("shell", '{"command":"ls"}', state, "a.txt", f'{{"exit_code":{code}}}', is_own=True)


DONE = end("end_turn")
IMAGE = BinaryPart(Binary("a.png", "image/png", b""))
PROMPTS: list[tuple[tuple[Part, ...], list[Block]]] = [
    ((), []),
    ((text(" \n"),), []),
    ((text("\n hi \n"),), [PromptBlock(" hi ", at=1)]),
    ((text("a"), text("b")), [PromptBlock("a\nb", at=1)]),
    ((IMAGE,), [PromptBlock("", ("a.png",), 1)]),
    ((text("see"), IMAGE), [PromptBlock("see", ("a.png",), 1)]),
    ((shell(0),), [own("done", 0)]),
    ((text("and"), shell(2), shell(0)), [PromptBlock("and", at=1), own("failed", 2), own("done", 0)]),
]
ERROR = NoticeBlock("error", "No key", "Set one.")
RESPONSES: list[tuple[tuple[Part, ...], list[Block]]] = [
    ((), []),
    ((text(" "),), []),
    ((text("one\n\ntwo"),), [AnswerBlock("one"), AnswerBlock("two", is_open=True)]),
    ((text("one\n\ntwo"), DONE), [AnswerBlock("one"), AnswerBlock("two")]),
    # Reasoning is shown while it is open, also before its first word; later only if it has words.
    ((thought(""),), [ReasoningBlock("", 0, is_open=True)]),
    ((thought(" hm ", 10),), [ReasoningBlock("hm", 0, is_open=True)]),
    ((thought("", 10, 14),), []),
    ((thought(" ", 10, 14), DONE), []),
    ((thought("hm", 10, 14),), [ReasoningBlock("hm", 4)]),
    ((thought("hm", 14, 10),), [ReasoningBlock("hm", 0)]),
    ((thought("hm", 10), DONE), [ReasoningBlock("hm", 0)]),
    ((thought("", 10), DONE), [ReasoningBlock("", 0)]),
    ((call(finished=False),), [ToolBlock("ls", "{}", "called", output="live", call=CALL)]),
    ((call(),), [ToolBlock("ls", "{}", "running", output="live", call=CALL)]),
    ((call(id=OTHER),), [ToolBlock("ls", "{}", "running", call=OTHER)]),
    ((ToolResultPart(result()),), []),
    ((end("canceled"),), [NoticeBlock("cancelled", "Cancelled")]),
    ((end("error", 0, "No key", "Set one."),), [ERROR]),
    ((end("error"),), [NoticeBlock("error", "The run failed")]),
    (
        (end("max_tokens"),),
        [NoticeBlock("info", "The answer was cut off", "It reached the output limit of the model.")],
    ),
    ((end("content_filter"),), [NoticeBlock("info", "The provider withheld the rest of the answer")]),
    ((end("end_turn", 75),), [TurnEndBlock("big", 65, 75)]),
    ((end("end_turn", 5),), [TurnEndBlock("big", 0, 5)]),
    ((end("end_turn"),), []),
    ((end("tool_use", 75),), []),
    ((end("error", 75, "No key", "Set one."),), [ERROR, TurnEndBlock("big", 65, 75)]),
]


def subagent(owner: MessageId, used: ToolCallId) -> list[Message]:
    if (owner, used) != ("m1", "c1"):
        return []
    return [
        message("assistant", call("grep"), call("view", id=OTHER)),
        message("tool", ToolResultPart(result("b", is_error=True, id=OTHER))),
    ]


def check_messages() -> None:
    context = MessageContext(outputs={CALL: "live"}, run_prompted_at=lambda run: 10 if run == "r1" else 0)
    for parts, expected in PROMPTS:
        assert list(blocks.blocks_of(message("user", *parts), context)) == expected, parts
    for parts, expected in RESPONSES:
        asked = msgspec.structs.replace(message("assistant", *parts), model="big")
        assert list(blocks.blocks_of(asked, context)) == expected, parts
        no_time = [block for block in expected if not isinstance(block, TurnEndBlock)]
        assert list(blocks.blocks_of(asked, MessageContext(outputs={CALL: "live"}))) == no_time, parts
        assert list(blocks.blocks_of(msgspec.structs.replace(asked, run_id=RunId("r2")), context)) == no_time, parts
        assert list(blocks.blocks_of(msgspec.structs.replace(asked, role="tool"), context)) == []
    summary = msgspec.structs.replace(message("assistant", text("x"), DONE), is_summary_message=True)
    notice = NoticeBlock("summary", "Summary of the conversation so far")
    assert list(blocks.blocks_of(summary, MessageContext())) == [notice, AnswerBlock("x")]
    for given, state, content in ((result(), "done", "a"), (result("no", is_error=True), "failed", "no")):
        shown = list(blocks.blocks_of(message("assistant", call()), MessageContext({CALL: given}, {CALL: "live"})))
        assert shown == [ToolBlock("ls", "{}", state, content, "{}", call=CALL)]  # type: ignore[arg-type]
    steps = (
        ToolBlock("grep", "{}", "running", call=CALL),
        ToolBlock("view", "{}", "failed", "b", "{}", call=OTHER),
    )
    results: list[tuple[dict[ToolCallId, ToolResult], str]] = [({}, "running"), ({CALL: result()}, "done")]
    for known, state in results:
        context = MessageContext(known, subagent_messages=subagent)
        (card,) = blocks.blocks_of(message("assistant", call()), context)
        assert isinstance(card, ToolBlock)
        assert (card.state, card.steps) == (state, steps)


HEADLINES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("bash", {"command": "ls"}, {}, "ls"),
    ("bash", {"command": " \n"}, {}, ""),
    ("bash", {"command": " \n", "path": "a"}, {}, "a"),
    ("bash", {"command": 5, "file_path": "a"}, {}, "a"),
    ("bash", {"command": "ls\n"}, {}, "ls"),
    ("bash", {"command": "ls\npwd"}, {}, "ls …"),
    ("bash", {"command": "ls", "run_in_background": True}, {}, "ls  (in the background)"),
    ("bash", {"command": "ls", "run_in_background": False}, {}, "ls"),
    ("view", {"file_path": "/w/a"}, {}, "a"),
    ("view", {"file_path": "/w/a", "offset": 7}, {}, "a  from line 7"),
    ("view", {"file_path": "/w2/a", "offset": 0}, {}, "/w2/a"),
    ("grep", {"pattern": "x", "path": "src"}, {}, "x  in src"),
    ("glob", {"pattern": "x", "path": "src"}, {}, "x  in src"),
    ("glob", {"pattern": "x", "path": ""}, {}, "x"),
    ("ls", {"path": "src"}, {}, "src"),
    ("fetch", {"url": "u", "path": "p"}, {}, "u"),
    ("agent", {"prompt": "p", "query": "q"}, {}, "p"),
    ("search", {"query": "q", "shell_id": "1"}, {}, "q"),
    ("job_output", {"shell_id": "1"}, {}, "1"),
    ("todos", {"todos": []}, {}, ""),
    ("todos", {"todos": "x"}, {}, ""),
    ("todos", {"todos": [{"status": "completed"}, 5, {"status": "pending"}]}, {}, "1 of 3 done"),
    ("todos", {"todos": [{}]}, {"todos": [{"status": "completed"}]}, "1 of 1 done"),
    ("question", {"questions": [1, 2]}, {}, "2 questions"),
    ("question", {"questions": [1]}, {}, ""),
    ("question", {"questions": "ab"}, {}, ""),
    ("other", {"todos": [{}], "questions": [1, 2]}, {}, ""),
]


def check_headlines() -> None:
    for name, arguments, facts, expected in HEADLINES:
        card = ToolBlock(name, json.dumps(arguments), "done", metadata=json.dumps(facts))
        assert blocks.block_headline(card, "/w") == expected, (name, arguments)
    assert blocks.block_headline(ToolBlock("view", '{"file_path": "x/a"}', "done")) == "x/a"
    assert blocks.block_headline(ToolBlock("view", '{"file_path": "/w', "called")) == ""


CHOICES = [{"id": "r", "label": "Red"}, {"id": "b"}, 5]
OPTIONS = [{"id": "r", "label": "Reason"}]
WHICH, WHY = {"question": "Which?", "choices": CHOICES}, {"question": "Why?", "options": OPTIONS}
ANSWERS = 'Q1: Which?\nUser selected: ["r","b","x"]\n\nQ2: Why?\nUser selected: ["r"]\nUser answered: so\nOther\n'
SKIPPED = "Q1: a\nUser selected: [1]\nQ0: b\nUser skipped this question\nUser provided: c\nNote: d"
SKIPPED = "Q1: a\nUser selected: [1]\nQ0: b\nUser skipped this question\nUser provided: c\nNote: d"
LINES: list[tuple[ToolBlock, list[OutputLine]]] = [
    (ToolBlock("ls", "", "done", "\na\n\nb\tc\n"), [("plain", "a"), ("plain", ""), ("plain", "b   c")]),
    (ToolBlock("ls", "", "running", output="live"), [("plain", "live")]),
    (ToolBlock("ls", "", "done", "end", output="live"), [("plain", "end")]),
    (ToolBlock("ls", "", "done", "50 %\rdone"), [("plain", "done")]),
    (ToolBlock("ls", "", "failed", "no\nway"), [("error", "no"), ("error", "way")]),
    (ToolBlock("view", "", "done", "a"), []),
    (ToolBlock("write", "", "done", "a"), []),
    (ToolBlock("edit", "", "done", "a"), []),
    (ToolBlock("multiedit", "", "done", "a"), []),
    (ToolBlock("view", "", "failed", "a"), [("error", "a")]),
    (ToolBlock("bash", "", "done", "a\n<cwd>/w</cwd>"), [("plain", "a")]),
    (ToolBlock("bash", "", "done", "a", '{"output": "b\\n<cwd>"}', "c"), [("plain", "b")]),
    (ToolBlock("bash", "", "running", "", "", "c"), [("plain", "c")]),
    (ToolBlock("job_output", "", "done", "a\n<cwd>"), [("plain", "a"), ("plain", "<cwd>")]),
    (
        ToolBlock(
            "todos",
            json.dumps(
                {
                    "todos": [
                        {"status": "completed", "content": "x"},
                        {"status": "in_progress", "content": "y"},
                        5,
                        {"status": "new"},
                    ]
                }
            ),
            "done",
            "text",
        ),
        [("done", "x"), ("doing", "y"), ("todo", "")],
    ),
    (ToolBlock("todos", '{"todos": [{}]}', "done", "", '{"todos": 5}'), []),
    (
        ToolBlock("question", json.dumps({"questions": [WHICH, 7, WHY, {}]}), "running"),
        [("arguments", "Which?"), ("arguments", "Why?")],
    ),
    (ToolBlock("question", '{"questions": {"question": "x"}}', "running"), []),
    (
        ToolBlock("question", json.dumps({"questions": [WHICH, WHY]}), "done", ANSWERS),
        [
            ("arguments", "Which?"),
            ("plain", "→ Red, b, x"),
            ("arguments", "Why?"),
            ("plain", "→ Reason"),
            ("plain", "→ so"),
            ("plain", "→ Other"),
        ],
    ),
    (
        ToolBlock("question", "", "done", SKIPPED),
        [
            ("arguments", "a"),
            ("plain", "→ [1]"),
            ("arguments", "b"),
            ("plain", "→ skipped"),
            ("plain", "→ c"),
            ("plain", "→ d"),
        ],
    ),
]


def check_lines() -> None:
    for card, expected in LINES:
        assert blocks.output_lines(card) == expected, card
    long = "x\n" * (blocks._MAX_LINES + 1)
    for state in ("done", "failed"):
        assert len(blocks.output_lines(ToolBlock("ls", "", state, long))) == blocks._MAX_LINES


def check_changes() -> None:
    for name, facts, arguments, expected in CHANGES:
        card = ToolBlock(name, json.dumps(arguments), "done", metadata=json.dumps(facts))
        found = [(line.kind, line.text.strip()) for line in blocks.change_lines(card)]
        assert found == expected, (name, facts, arguments)
        assert blocks.change_lines(msgspec.structs.replace(card, state="failed")) == []
        assert blocks.change_lines(msgspec.structs.replace(card, name="view")) == []


UNIFIED = "--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n"
REPLACED = [("removed", "a"), ("added", "b")]
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], list[tuple[str, str]]]] = [
    ("write", {"diff": UNIFIED}, {"content": "z"}, REPLACED),
    ("edit", {"diff": 5, "old_content": "a\n", "new_content": "b\n"}, {"content": "z"}, REPLACED),
    ("multiedit", {"new_content": "b\n"}, {}, [("added", "b")]),
    ("write", {"new_content": 5}, {"content": "b\n", "new_string": "z"}, [("added", "b")]),
    ("edit", {}, {"old_string": "a\n", "new_string": "b\n", "content": 5}, REPLACED),
    ("edit", {}, {"new_string": "b\n"}, [("added", "b")]),
    ("edit", {}, {"new_string": 5}, []),
]


def test_every_mistake_in_the_blocks_is_noticed() -> None:
    checks = (check_messages, check_headlines, check_lines, check_changes)

    def check() -> None:
        for rows in checks:
            rows()

    functions = [
        blocks.blocks_of, blocks._prompt_blocks, blocks._response_blocks, blocks._turn_end_blocks, blocks._card,
        blocks._steps, blocks._finish_notices, blocks.block_headline, blocks._argument_text, blocks._extra_arguments,
        blocks._progress, blocks.output_lines, blocks._lines, blocks._plain_lines, blocks._shell, blocks.change_lines,
        blocks.question_lines, blocks._labels, blocks._names, blocks._todos,
    ]  # fmt: skip
    equivalent = {
        "case _:; pass -> (nothing)": "an unmatched value does nothing either",
        "except msgspec.DecodeError: -> except Exception:": "decoding a text raises nothing else",
    }
    assert_every_clause_decides(functions, check, equivalent, KINDS)
