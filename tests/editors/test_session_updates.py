"""Session updates of an editor: each item once, in whatever order events arrive."""

from typing import Any

from acp.schema import SessionNotification
from hypothesis import given
from hypothesis import strategies as st

from editors.editor_client import updates_of
from holdfast.acp.prompt_content import parse_prompt, split_command
from holdfast.acp.session_updates import SessionUpdates
from holdfast.acp.tool_calls import call_locations, call_title, file_diffs
from holdfast.domain.events import MessageDelta, MessagePart, ToolOutput
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    Role,
    ShellCommand,
    ShellCommandPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)

S, M = SessionId("s"), MessageId("m")
Json = dict[str, Any]


def _message(*parts: Part, id: str = "m", role: Role = "assistant", run: str = "r") -> Message:
    return Message(parts, MessageId(id), role, S, "model", "provider", 0, 0, run_id=RunId(run))


def _text(text: str) -> TextPart:
    return TextPart(Text(text))


def _call(id: str, input: str = "", *, finished: bool = True, name: str = "view") -> ToolCallPart:
    return ToolCallPart(ToolCall(ToolCallId(id), name, input, finished))


def _result(id: str, content: str = "ok", *, is_error: bool = False, name: str = "view", metadata: str = "") -> Message:
    result = ToolResult(ToolCallId(id), name, content, metadata, is_error)
    return _message(ToolResultPart(result), id=f"result-{id}-{content}", role="tool")


def _delta(offset: int, text: str, part: int = 0) -> MessageDelta:
    return MessageDelta(S, M, part, offset, text)


def _text_of(updates: list[Json], kind: str = "agent_message_chunk") -> str:
    for update in updates:
        SessionNotification.model_validate({"sessionId": "s", "update": update})
    return "".join(item["content"]["text"] for item in updates if item["sessionUpdate"] == kind)


def test_stored_message_behind_its_deltas_adds_nothing() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_text("")))
    updates += updates_source.delta(_delta(0, "one ")) + updates_source.delta(_delta(4, "two "))
    updates += updates_source.message(_message(_text("one ")))
    updates += updates_source.delta(_delta(8, "three"))
    updates += updates_source.message(_message(_text("one two three"), FinishPart(Finish("end_turn", 1))))
    assert _text_of(updates) == "one two three"
    assert not _text_of(updates, "agent_thought_chunk")


def test_restarted_response_is_one_message() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_text(""))) + updates_source.delta(_delta(0, "one two"))
    updates += updates_source.message(_message(_text(""))) + updates_source.delta(_delta(0, "other"))
    assert _text_of(updates) == "one twoother"
    assert "request is repeated" in _text_of(updates, "agent_thought_chunk")


def test_repeated_text_is_sent_once() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_text(""))) + updates_source.delta(_delta(0, "one two"))
    updates += (
        updates_source.message(_message(_text("")))
        + updates_source.delta(_delta(0, "one "))
        + updates_source.delta(_delta(4, "two 3"))
    )
    assert _text_of(updates) == "one two 3"


def test_a_hole_is_filled_by_the_whole_part() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_text(""))) + updates_source.delta(_delta(5, "late"))
    updates += updates_source.part(MessagePart(S, M, 0, _text("earlylate")))
    assert _text_of(updates) == "earlylate"


@given(
    st.text(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12), st.integers(0, 40)
)
def test_any_fragmentation_is_sent_once(whole: str, cuts: list[tuple[int, int]], snapshot: int) -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_text(whole[:snapshot])))
    for begin, size in cuts:
        at = min(begin, len(whole))
        updates += updates_source.delta(_delta(at, whole[at : at + size]))
    updates += updates_source.message(_message(_text(whole), FinishPart(Finish("end_turn", 1))))
    assert _text_of(updates) == whole


def test_calls_with_same_id_are_distinct() -> None:
    """Some models restart the numbering of their calls in every response."""
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_call("1", finished=False)))
    updates += updates_source.message(_message(_call("1", '{"file_path": "a"}')))
    updates += updates_source.message(_result("1"))
    updates += updates_source.message(_message(_call("1", '{"file_path": "b"}'), id="m2"))
    updates += updates_source.message(_result("1", "no", is_error=True))
    metadata = updates_of(updates)
    assert [(item["title"], item["status"]) for item in metadata.values()] == [
        ("view a", "completed"),
        ("view b", "failed"),
    ]
    assert len({*metadata}) == 2


def _call_life(source: SessionUpdates, message: str) -> list[Json]:
    """Return the updates of a call from its start to its result, with everything that is collected for a call."""
    call, step = ToolCallId("1"), _message(_call("2", '{"file_path": "a"}'), id=f"step-{message}")
    updates = source.message(_message(_call(call, "{}"), id=message))
    updates += source.permission_status(call, is_open=True) + source.permission_status(call, is_open=False)
    updates += source.output(ToolOutput(S, MessageId(message), call, 0, "printed\n"))
    updates += source.subagent_steps(call, step)
    updates += source.message(_result(call, message))
    names = {update.pop("toolCallId") for update in updates}
    assert len(names) == 1
    return updates


def test_a_call_starts_from_nothing_although_its_id_was_used_before() -> None:
    source = SessionUpdates(S, "/w")
    first, again = (str(_call_life(source, name)).replace(name, "m") for name in ("m1", "m2"))
    assert again == first
    assert "printed" in first
    assert "view a" in first


def test_open_call_is_closed_with_its_run() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_call("1", "{}"), _call("2", "{}")))
    updates += (
        updates_source.message(_result("1"))
        + updates_source.run_ended("cancelled")
        + updates_source.run_ended("cancelled")
    )
    assert [item["status"] for item in updates_of(updates).values()] == ["completed", "failed"]


def test_command_output_is_bounded() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_call("1", '{"command": "make"}', name="bash")))
    for number in range(3):
        updates += updates_source.output(ToolOutput(S, M, ToolCallId("1"), number * 3000, f"{number}" * 3000))
    (metadata,) = updates_of(updates).values()
    assert (metadata["kind"], metadata["title"]) == ("execute", "make")
    shown = metadata["content"][0]["content"]["text"]
    assert "2" * 3000 in shown
    assert len(shown) < 4_100


def test_sub_agent_is_shown_below_its_call() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(_call("1", '{"prompt": "look"}', name="agent")))
    helper = _message(_call("9", '{"pattern": "x"}', name="grep"), id="h")
    updates += updates_source.subagent_steps(ToolCallId("1"), helper) + updates_source.subagent_steps(
        ToolCallId("1"), helper
    )
    (metadata,) = updates_of(updates).values()
    assert metadata["content"][0]["content"]["text"] == "- grep x"
    assert len(updates) == 2


def test_replay_sends_missing_updates() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates_source.own_runs.add(RunId("r"))
    prompt = _message(_text("hello"), role="user", id="u")
    assert updates_source.message(prompt) == []
    other = SessionUpdates(S, "/w")
    shell = _message(ShellCommandPart(ShellCommand("ls", "a\n", 1)), role="user", id="x")
    failed = _message(FinishPart(Finish("error", 1, "Provider error", "The key is wrong.")))
    updates = [update for item in (prompt, shell, failed) for update in other.message(item, is_replay=True)]
    assert _text_of(updates, "user_message_chunk") == "hello"
    assert [item["status"] for item in updates if item["sessionUpdate"] == "tool_call"] == ["failed"]
    assert "The key is wrong." in _text_of(updates)


def test_thoughts_are_thoughts() -> None:
    updates_source = SessionUpdates(S, "/w")
    updates = updates_source.message(_message(ReasoningPart(Reasoning("hm", "")), _text("so")))
    assert (_text_of(updates, "agent_thought_chunk"), _text_of(updates)) == ("hm", "so")


def test_diffs_and_locations() -> None:
    edit = {"file_path": "src/a.py", "old_string": "x", "new_string": "y"}
    assert file_diffs(edit, {}, "/w") == [{"type": "diff", "path": "/w/src/a.py", "oldText": "x", "newText": "y"}]
    metadata = {"old_content": "whole x", "new_content": "whole y"}
    assert file_diffs(edit, metadata, "/w")[0]["newText"] == "whole y"
    many = {
        "file_path": "/w/a",
        "edits": [{"old_string": "", "new_string": "1"}, {"old_string": "2", "new_string": "3"}],
    }
    assert [item.get("oldText") for item in file_diffs(many, {}, "/w")] == [None, "2"]
    assert call_locations({"file_path": "../a", "offset": 3}, "/w/b") == [{"path": "/w/a", "line": 3}]
    assert call_locations({"path": "~/x"}, "/w") == []
    assert call_title("bash", {"command": "make\nmake test"}, "/w") == "make …"
    assert call_title("view", {"file_path": "/w/a.py"}, "/w") == "view a.py"
    assert call_title("todos", {}, "/w") == "todos"


def test_prompt_conversion() -> None:
    blocks = [{"type": "text", "text": "See "}, {"type": "resource_link", "uri": "file:///w/a.py", "name": "a.py"}]
    assert parse_prompt([*blocks, {"type": "text", "text": ", please"}], "/w")[0] == "See @a.py, please"
    blob = {"type": "resource", "resource": {"uri": "file:///x/b.bin", "blob": "AAE=", "mimeType": "x/y"}}
    text, files = parse_prompt([blob], "/w")
    assert (text, files[0].content, files[0].file_path, files[0].mime_type) == ("@/x/b.bin", b"\0\1", "/x/b.bin", "x/y")
    page = {"type": "resource_link", "uri": "https://x.org/a", "name": "A page"}
    assert parse_prompt([page], "/w")[0] == "A page (https://x.org/a)"
    assert split_command("/shout a b") == ("shout", "a b")
    assert split_command("/etc/passwd is what?")[0] == ""
