"""Every update to an editor in full: calls and their results, plans, titles, sizes, files."""

import json
from typing import Any

import pytest

from holdfast.acp.session_updates import SessionUpdates
from holdfast.acp.tool_calls import call_locations, file_diffs, result_update
from holdfast.domain.events import MessageDelta, MessagePart, ToolOutput
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    Message,
    Part,
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
from holdfast.domain.sessions import Session, Todo

S, M, C = SessionId("s"), MessageId("m"), ToolCallId("1")
Json = dict[str, Any]


def _message(*parts: Part, id: str = "m", role: Role = "assistant", run: str = "r") -> Message:
    return Message(parts, MessageId(id), role, S, "", "", 0, 0, run_id=RunId(run))


def _call(input: Json | str, name: str = "view", *, finished: bool = True) -> ToolCallPart:
    text = input if isinstance(input, str) else json.dumps(input)
    return ToolCallPart(ToolCall(C, name, text, finished))


def _result(content: str = "ok", *, name: str = "view", **more: Any) -> ToolResult:  # noqa: ANN401 - any field
    return ToolResult(C, name, content, **{"metadata": "", "is_error": False, **more})


def _add_result(session_updates: SessionUpdates, result: ToolResult) -> list[Json]:
    return session_updates.message(_message(ToolResultPart(result), id=f"result-{result.content}", role="tool"))


def _block(text: str) -> Json:
    return {"type": "content", "content": {"type": "text", "text": text}}


# Calls


def test_call_from_first_delta_to_result() -> None:
    session_updates = SessionUpdates(S, "/w")
    assert session_updates.message(_message(_call('{"file_', finished=False))) == [
        {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "view", "kind": "read", "status": "pending"}
    ]
    assert session_updates.tool_call(C) == (ToolCall(C, "view", '{"file_', False), "1")
    whole = _message(_call({"file_path": "a.py"}))
    assert session_updates.message(whole) == [
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "1",
            "title": "view a.py",
            "kind": "read",
            "status": "in_progress",
            "rawInput": {"file_path": "a.py"},
            "locations": [{"path": "/w/a.py"}],
        }
    ]
    assert session_updates.message(whole) == [], "what was told is not told again"
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "1"}
    assert session_updates.permission_status(C, is_open=True) == [{**update, "status": "pending"}]
    assert session_updates.permission_status(C, is_open=True) == []
    assert session_updates.permission_status(C, is_open=False) == [{**update, "status": "in_progress"}]
    done = {**update, "status": "completed", "content": [_block("```\nok\n```")], "rawOutput": {"content": "ok"}}
    assert _add_result(session_updates, _result()) == [done]
    assert _add_result(session_updates, _result()) == []
    assert session_updates.permission_status(C, is_open=True) == session_updates.run_ended("failed") == [], (
        "it has ended"
    )


@pytest.mark.parametrize(
    ("outcome", "status"), [("completed", "completed"), ("cancelled", "failed"), ("failed", "failed")]
)
def test_a_run_that_ends_ends_its_calls(outcome: str, status: str) -> None:
    session_updates = SessionUpdates(S, "/w")
    session_updates.message(_message(_call({})))
    assert [update["status"] for update in session_updates.run_ended(outcome)] == [status]
    assert session_updates.run_ended("cancelled") == session_updates.permission_status(C, is_open=True) == []


def test_unannounced_calls_have_no_updates() -> None:
    session_updates = SessionUpdates(S, "/w")
    assert _add_result(session_updates, _result()) == []
    assert session_updates.output(ToolOutput(S, M, C, 0, "x")) == []
    assert session_updates.subagent_steps(C, _message(_call({}))) == []
    assert session_updates.permission_status(C, is_open=True) == []
    assert session_updates.tool_call(C) == (None, C)
    assert session_updates.delta(MessageDelta(S, M, 0, 0, "x")) == []
    assert session_updates.part(MessagePart(S, M, 0, TextPart(Text("x")))) == []


def test_change_is_shown_when_requested() -> None:
    session_updates = SessionUpdates(S, "/w")
    diff = {"type": "diff", "path": "/w/a", "newText": "new"}
    (metadata,) = session_updates.message(_message(_call({"file_path": "a", "content": "new"}, "write")))
    assert metadata["content"] == [diff]
    (metadata,) = SessionUpdates(S, "/w").message(_message(_call({"path": "a", "content": "new"}, "grep")))
    assert "content" not in metadata
    (metadata,) = SessionUpdates(S, "/w").message(_message(_call({"command": "make"}, "bash")))
    assert metadata.keys() == {"sessionUpdate", "toolCallId", "title", "kind", "status", "rawInput"}


def test_calls_with_the_same_id_have_names_of_their_own() -> None:
    session_updates = SessionUpdates(S, "/w")
    names = []
    for number in range(3):
        updates = session_updates.message(_message(_call({}), id=f"m{number}"))
        names += [update["toolCallId"] for update in updates]
        assert session_updates.tool_call(C)[1] == names[-1]
    assert names[0] == "1"
    assert len(set(names)) == 3


def test_output_grows_until_the_call_ends() -> None:
    session_updates = SessionUpdates(S, "/w")
    session_updates.message(_message(_call({"command": "make"}, "bash")))
    shown = [session_updates.output(ToolOutput(S, M, C, at, text)) for at, text in ((0, "a"), (1, "b"))]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "1"}
    assert shown == [[{**update, "content": [_block(f"```\n{text}\n```")]}] for text in ("a", "ab")]
    _add_result(session_updates, _result(name="bash"))
    session_updates.message(_message(_call({"command": "make"}, "bash"), id="m2"))
    (again,) = session_updates.output(ToolOutput(S, M, C, 0, "c"))
    assert again["content"] == [_block("```\nc\n```")], "another call with its id begins anew"


def test_steps_of_sub_agent_belong_to_its_call() -> None:
    session_updates = SessionUpdates(S, "/w")
    session_updates.message(_message(_call({"prompt": "look"}, "agent")))
    assert session_updates.subagent_steps(C, _message(_call({"pattern": "x"}, "grep", finished=False), id="h")) == []
    shown = ""
    for number in range(13):
        (metadata,) = session_updates.subagent_steps(
            C, _message(_call({"command": f"make {number}"}, "bash"), id=f"h{number}")
        )
        shown = metadata["content"][0]["content"]["text"]
    assert shown.split("\n") == [f"- bash: make {number}" for number in range(1, 13)]
    _add_result(session_updates, _result(name="agent"))
    session_updates.message(_message(_call({"prompt": "look"}, "agent"), id="m2"))
    (metadata,) = session_updates.subagent_steps(C, _message(_call({"command": "make 1"}, "bash"), id="h"))
    assert metadata["content"] == [_block("- bash: make 1")]


# Sessions


def _session(title: str, **more: Any) -> Session:  # noqa: ANN401 - any field
    sums: Json = {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0, **more}
    rest: Json = {"message_count": 0, "created_at": 0, "updated_at": 0, "is_busy": False, "attached_clients": 0}
    return Session(S, SessionId(""), title, summary_message_id=MessageId(""), **sums, **rest)


def test_only_session_changes_are_sent() -> None:
    session_updates = SessionUpdates(S, "/w")
    todos = (Todo("one", "pending", "doing one"), Todo("two", "in_progress", "doing two"))
    session = _session("Title", todos=todos, prompt_tokens=10, completion_tokens=5, cost=0.12345678)
    entries = [
        {"content": "one", "priority": "medium", "status": "pending"},
        {"content": "two", "priority": "medium", "status": "in_progress"},
    ]
    plan_and_title = [
        {"sessionUpdate": "plan", "entries": entries},
        {"sessionUpdate": "session_info_update", "title": "Title"},
    ]
    assert session_updates.session_state(session) == plan_and_title, "without a window nobody knows how full it is"
    size = {"sessionUpdate": "usage_update", "used": 15, "size": 100, "cost": {"amount": 0.123457, "currency": "USD"}}
    assert session_updates.session_state(session, 100) == [size]
    assert session_updates.session_state(session, 100) == []
    dearer = _session("Title", todos=todos, prompt_tokens=10, completion_tokens=5, cost=1)
    assert [update["cost"]["amount"] for update in session_updates.session_state(dearer, 100)] == [1]
    empty = _session("", cost=1, prompt_tokens=10, completion_tokens=5)
    assert session_updates.session_state(empty, 100) == [
        {"sessionUpdate": "plan", "entries": []},
        {"sessionUpdate": "session_info_update", "title": ""},
    ]
    assert SessionUpdates(S, "/w").session_state(_session(""), 100) == []


# Messages


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("is_replay", [True, False])
def test_messages_shown_to_editor(is_own: bool, is_replay: bool) -> None:
    """The editor already shows its own messages, unless it was restarted; likewise the reason of a failure."""
    session_updates = SessionUpdates(S, "/w")
    if is_own:
        session_updates.own_runs.add(RunId("r"))
    image = BinaryPart(Binary("a.png", "image/png", b"\0"))
    parts = (TextPart(Text("hello")), image, BinaryPart(Binary("a.txt", "text/plain", b"x")))
    metadata = session_updates.message(_message(*parts, id="u", role="user"), is_replay=is_replay)
    picture = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    chunk = "user_message_chunk"
    shown = [
        {"sessionUpdate": chunk, "content": {"type": "text", "text": "hello"}},
        {"sessionUpdate": chunk, "content": picture},
    ]
    assert metadata == ([] if is_own and not is_replay else shown)
    assert session_updates.message(_message(*parts, id="u", role="user"), is_replay=is_replay) == []
    answer = _message(TextPart(Text("so")), FinishPart(Finish("error", 1, "Short", "")), id="a")
    metadata = session_updates.message(answer, is_replay=is_replay)
    texts = [update["content"]["text"] for update in metadata]
    assert texts == (["so"] if is_own and not is_replay else ["so", "\n\n**Failed:** Short"])
    assert session_updates.message(answer, is_replay=is_replay) == []


def test_failure_without_message() -> None:
    (metadata,) = SessionUpdates(S, "/w").message(_message(FinishPart(Finish("error", 1))))
    assert metadata["content"]["text"] == "\n\n**Failed:** error"


@pytest.mark.parametrize(("code", "status"), [(0, "completed"), (1, "failed"), (-1, "failed")])
def test_shell_command_of_user(code: int, status: str) -> None:
    session_updates = SessionUpdates(S, "/w")
    message = _message(ShellCommandPart(ShellCommand("make", "out", code)), id="x", role="user")
    assert session_updates.message(message) == [
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "x-0",
            "title": "$ make",
            "kind": "execute",
            "status": status,
            "content": [_block("```\nout\n```")],
        }
    ]
    assert session_updates.message(message) == []


def test_parts_are_placed_by_index() -> None:
    session_updates = SessionUpdates(S, "/w")
    session_updates.message(_message(TextPart(Text("a")), TextPart(Text("b"))))
    assert session_updates.part(MessagePart(S, M, 3, TextPart(Text("far")))) == []
    assert session_updates.delta(MessageDelta(S, M, 2, 0, "not there yet")) == []
    assert [item["content"]["text"] for item in session_updates.part(MessagePart(S, M, 2, TextPart(Text("c"))))] == [
        "c"
    ]
    assert [item["content"]["text"] for item in session_updates.delta(MessageDelta(S, M, 2, 1, "d"))] == ["d"]
    (call,) = session_updates.part(MessagePart(S, M, 0, _call({})))
    assert call["sessionUpdate"] == "tool_call"
    assert session_updates.delta(MessageDelta(S, M, 0, 0, "x")) == [], "a call is no text"
    assert [item["content"]["text"] for item in session_updates.delta(MessageDelta(S, M, 1, 1, "e"))] == ["e"]


# Results


@pytest.mark.parametrize(
    ("asked", "metadata", "changes"),
    [
        ({"file_path": "a", "content": "new"}, {}, [(None, "new")]),
        ({"file_path": "a", "content": 3}, {}, []),
        ({"file_path": "a"}, {"old_content": "", "new_content": "new"}, [(None, "new")]),
        ({"file_path": "a"}, {"old_content": 3, "new_content": "new"}, [(None, "new")]),
        ({"file_path": "a"}, {"old_content": "old", "new_content": "new"}, [("old", "new")]),
        ({"file_path": "a"}, {"old_content": "old"}, []),
        ({"file_path": "a", "new_string": "new"}, {}, [(None, "new")]),
        ({"file_path": "a", "edits": [{"new_string": "new"}, {"new_string": 3}, 3]}, {}, [(None, "new")]),
        ({}, {"file_path": "a", "new_content": "new"}, [(None, "new")]),
        ({"content": "new"}, {"new_content": "new"}, []),
    ],
)
def test_changes_of_call(asked: Json, metadata: Json, changes: list[tuple[str | None, str]]) -> None:
    assert [(item.get("oldText"), item["newText"]) for item in file_diffs(asked, metadata, "/w")] == changes
    assert all(item["type"] == "diff" and item["path"] == "/w/a" for item in file_diffs(asked, metadata, "/w"))


@pytest.mark.parametrize(("offset", "line"), [(1, 1), (7, 7), (0, None), (-1, None), (True, None), ("3", None)])
def test_line_of_location(offset: object, line: int | None) -> None:
    assert call_locations({"file_path": "a", "offset": offset}, "/w")[0].get("line") == line


RESULTS: list[tuple[str, Json, ToolResult, list[Json]]] = [
    ("grep", {}, _result("x", name="grep"), [_block("```\nx\n```")]),
    ("view", {}, _result("x"), [_block("```\nx\n```")]),
    ("fetch", {}, _result("x", name="fetch"), [_block("x")]),
    ("view", {}, _result(""), []),
    ("bash", {}, _result("x", name="bash", metadata='{"output": "raw"}'), [_block("```\nraw\n```")]),
    ("bash", {}, _result("x", name="bash", metadata='{"output": ""}'), [_block("```\nx\n```")]),
    ("bash", {}, _result("x", name="bash", metadata='{"output": 3}'), [_block("```\nx\n```")]),
    ("view", {}, _result("x", metadata='{"output": "raw"}'), [_block("```\nx\n```")]),
    (
        "write",
        {"file_path": "a", "content": "new"},
        _result("x", name="write"),
        [{"type": "diff", "path": "/w/a", "newText": "new"}],
    ),
    ("write", {"file_path": "a", "content": "new"}, _result("no", name="write", is_error=True), [_block("no")]),
    ("view", {"file_path": "a", "content": "new"}, _result("x"), [_block("```\nx\n```")]),
    (
        "view",
        {},
        _result("x", data="AA==", mime_type="image/png"),
        [
            {"type": "content", "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}},
            _block("```\nx\n```"),
        ],
    ),
    ("view", {}, _result("x", data="AA==", mime_type="text/plain"), [_block("```\nx\n```")]),
    ("view", {}, _result("x", mime_type="image/png"), [_block("```\nx\n```")]),
]


@pytest.mark.parametrize(("tool", "asked", "result", "content"), RESULTS)
def test_content_of_result(tool: str, asked: Json, result: ToolResult, content: list[Json]) -> None:
    call = ToolCall(C, tool, json.dumps(asked), finished=True)
    assert result_update(call, result, "/w") == {
        "status": "failed" if result.is_error else "completed",
        "content": content,
        "rawOutput": {"content": result.content},
    }


@pytest.mark.parametrize(("length", "left_out"), [(32_000, 0), (32_001, 1), (40_000, 8_000)])
def test_long_result_is_truncated_in_the_middle(length: int, left_out: int) -> None:
    metadata = result_update(ToolCall(C, "fetch", "{}", finished=True), _result("x" * length, name="fetch"), "/w")
    text = metadata["rawOutput"]["content"]
    middle = f"\n\n… {left_out} characters are left out …\n\n" if left_out else ""
    assert text == "x" * 16_000 + middle + "x" * 16_000
    assert metadata["content"] == [_block(text)]


@pytest.mark.parametrize(
    ("tool", "asked", "title"),
    [
        ("bash", {"command": "x" * 120}, "x" * 120),
        ("bash", {"command": "x" * 121}, "x" * 120 + " …"),
        ("grep", {"command": "  ", "pattern": "p"}, "grep p"),
        ("grep", {"command": 3, "pattern": "p"}, "grep p"),
        ("view", {"file_path": "/w/a"}, "view a"),
        ("view", {}, "view"),
    ],
)
def test_titles(tool: str, asked: Json, title: str) -> None:
    (metadata,) = SessionUpdates(S, "/w").message(_message(_call(asked, tool)))
    assert metadata["title"] == title


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        ({"path": "a"}, ["/w/a"]),
        ({"file_path": "", "path": "a"}, ["/w/a"]),
        ({"file_path": "/x/../a"}, ["/a"]),
        ({"path": ["a"]}, []),
        ({"path": ""}, []),
        ({"path": "~/a"}, []),
        ({}, []),
    ],
)
def test_locations(asked: Json, places: list[str]) -> None:
    assert [place["path"] for place in call_locations(asked, "/w")] == places


@pytest.mark.parametrize(
    ("tool", "kind"), [("lsp_references", "search"), ("lsp_rename", "edit"), ("mcp_x", "other"), ("bash", "execute")]
)
def test_kinds(tool: str, kind: str) -> None:
    (metadata,) = SessionUpdates(S, "/w").message(_message(_call("[]", tool)))
    assert (metadata["kind"], metadata["rawInput"]) == (kind, {})


def test_grown_message_is_current() -> None:
    session_updates = SessionUpdates(S, "/w")
    session_updates.message(_message(TextPart(Text("a"))))
    session_updates.message(_message(TextPart(Text("a")), TextPart(Text(""))))
    assert [item["content"]["text"] for item in session_updates.delta(MessageDelta(S, M, 1, 0, "b"))] == ["b"]
