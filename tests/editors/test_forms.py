"""Presentation of requests in an editor, and the meaning of its answers: every option, every type of question."""

from typing import Any

import pytest

from holdfast.acp.approvals import (
    EditorApprovals,
    elicitation_params,
    form_answers,
    permission_options,
    permission_params,
    question_call,
    question_options,
)
from holdfast.acp.prompt_content import split_command
from holdfast.acp.session_updates import SessionUpdates
from holdfast.domain.approvals import Choice, PermissionRequest, Question, QuestionAnswer, QuestionKind, QuestionRequest
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Message, ToolCall, ToolCallPart
from holdfast.testing.gates import until

S, CALL = SessionId("s"), ToolCallId("c")
Json = dict[str, Any]


def _ask(tool: str = "bash", **more: Any) -> PermissionRequest:  # noqa: ANN401 - any field
    fields = {"description": "Runs make", "action": "execute", "path": "/w", "params": {"command": "make"}}
    return PermissionRequest("a", S, CALL, tool, run_id=RunId("r"), **{**fields, **more})


def _session_updates(tool: str = "", input: str = "") -> SessionUpdates:
    updates_source = SessionUpdates(S, "/w")
    if tool:
        part = ToolCallPart(ToolCall(CALL, tool, input, finished=True))
        updates_source.message(Message((part,), MessageId("m"), "assistant", S, "", "", 0, 0))
    return updates_source


def _text(text: str) -> Json:
    return {"type": "content", "content": {"type": "text", "text": text}}


def test_permission_request_has_all_details() -> None:
    asked = permission_params(_ask(why="It is new.", rules=("bash(make *)", "bash(x)")), _session_updates(), "/w")
    assert asked["sessionId"] == S
    assert asked["toolCall"] == {
        "toolCallId": CALL,
        "title": "make",
        "kind": "execute",
        "status": "pending",
        "content": [_text("Runs make\n\nIt is new.\n\nAlways allow saves: `bash(make *)`, `bash(x)`")],
        "rawInput": {"command": "make"},
    }
    assert asked["options"] == [
        {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
        {"optionId": "allow_session", "name": "Allow for this session", "kind": "allow_always"},
        {"optionId": "allow_always", "name": "Always allow bash(make *), bash(x)", "kind": "allow_always"},
        {"optionId": "deny", "name": "Reject", "kind": "reject_once"},
    ]


def test_request_without_reason_and_rule() -> None:
    asked = permission_params(_ask(description=""), _session_updates(), "/w")
    assert asked["toolCall"]["content"] == []
    assert [option["optionId"] for option in asked["options"]] == ["allow", "allow_session", "deny"]


def test_change_is_shown_as_server_applies_it() -> None:
    """The call contains the input of the model, the request the resulting file."""
    params = {"file_path": "/w/a.py", "old_content": "1\nx\n", "new_content": "1\ny\n"}
    call = '{"file_path": "a.py", "old_string": "x", "new_string": "y"}'
    for updates_source, raw in (
        (_session_updates("edit", call), {"file_path": "a.py", "old_string": "x", "new_string": "y"}),
    ):
        notifications = permission_params(_ask("edit", description="", params=params), updates_source, "/w")["toolCall"]
        assert notifications["content"] == [
            {"type": "diff", "path": "/w/a.py", "oldText": "1\nx\n", "newText": "1\ny\n"}
        ]
        assert (notifications["title"], notifications["kind"], notifications["locations"]) == (
            "edit a.py",
            "edit",
            [{"path": "/w/a.py"}],
        )
        assert notifications["rawInput"] == raw
    bash = permission_params(_ask(params={**params, "command": "make"}), _session_updates(), "/w")["toolCall"]
    assert [item["type"] for item in bash["content"]] == ["content"], "only what edits files has a difference"


@pytest.mark.parametrize(("length", "is_cut"), [(60, False), (61, True)])
def test_rules_that_are_too_long_for_a_button_are_cut(length: int, is_cut: bool) -> None:
    name = permission_options(_ask(rules=("x" * length,)))["allow_always"][0]
    assert name == "Always allow " + ("x" * 59 + "…" if is_cut else "x" * length)


CHOICES = (Choice("s", "SQLite", "One file."), Choice("p", "PostgreSQL"))
KINDS: dict[QuestionKind, Json] = {
    "yes_no": {"type": "boolean"},
    "single_choice": {
        "type": "string",
        "oneOf": [{"const": "s", "title": "SQLite"}, {"const": "p", "title": "PostgreSQL"}],
    },
    "multi_choice": {
        "type": "array",
        "items": {"anyOf": [{"const": "s", "title": "SQLite"}, {"const": "p", "title": "PostgreSQL"}]},
    },
    "free_text": {"type": "string"},
}
OFFERED: dict[QuestionKind, list[tuple[str, str, str]]] = {
    "yes_no": [("yes", "Yes", "allow_once"), ("no", "No", "allow_once")],
    "single_choice": [("s", "SQLite", "allow_once"), ("p", "PostgreSQL", "allow_once")],
    "multi_choice": [("s", "SQLite", "allow_once"), ("p", "PostgreSQL", "allow_once")],
    "free_text": [],
}


def _question(kind: QuestionKind, id: str = "q", description: str = "It matters.") -> Question:
    choices = CHOICES if kind.endswith("choice") else ()
    return Question(id, kind, "Which?", "Short", description, choices)


def _batch(*questions: Question, title: str = "") -> QuestionRequest:
    return QuestionRequest("b", S, CALL, questions, title)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_of_a_form(kind: QuestionKind) -> None:
    described, plain = _question(kind), _question(kind, "2", "")
    form = elicitation_params(_batch(described, plain), S)
    schema = {
        "type": "object",
        "properties": {
            "q": {**KINDS[kind], "title": "Which?", "description": "It matters."},
            "2": {**KINDS[kind], "title": "Which?"},
        },
    }
    assert form == {
        "sessionId": S,
        "toolCallId": CALL,
        "mode": "form",
        "message": "Some questions",
        "requestedSchema": schema,
    }


def test_the_title_of_a_form() -> None:
    one, two = _question("yes_no"), _question("free_text", "2")
    assert elicitation_params(_batch(one), S)["message"] == "Which?"
    assert elicitation_params(_batch(one, title="Sure?"), S)["message"] == "Sure?"
    assert elicitation_params(_batch(one, two, title="Sure?"), S)["message"] == "Sure?"


@pytest.mark.parametrize("kind", OFFERED)
def test_question_without_form_support(kind: QuestionKind) -> None:
    options = [(item["optionId"], item["name"], item["kind"]) for item in question_options(_question(kind))]
    assert options == [*OFFERED[kind], ("", "Skip", "reject_once")]
    about = "It matters.\n\n**SQLite**: One file." if kind.endswith("choice") else "It matters."
    call = {"toolCallId": CALL, "title": "Which?", "kind": "other", "status": "pending"}
    assert question_call(_batch(), _question(kind)) == {**call, "content": [_text(about)]}
    assert question_call(_batch(), Question("q", kind, "Which?")) == {**call, "content": []}


SKIPPED = QuestionAnswer("q")
ANSWERS: list[tuple[QuestionKind, object, QuestionAnswer]] = [
    ("yes_no", True, QuestionAnswer("q", yes=True)),
    ("yes_no", False, QuestionAnswer("q", yes=False)),
    ("yes_no", None, SKIPPED),
    ("yes_no", "so so", QuestionAnswer("q", fill_in_text="so so")),
    ("single_choice", "p", QuestionAnswer("q", selected_ids=("p",))),
    ("single_choice", True, SKIPPED),
    ("single_choice", ["p"], SKIPPED),
    ("multi_choice", ["p", "s"], QuestionAnswer("q", selected_ids=("p", "s"))),
    ("multi_choice", [], QuestionAnswer("q", selected_ids=())),
    ("multi_choice", [1], QuestionAnswer("q", selected_ids=("1",))),
    ("multi_choice", "words", QuestionAnswer("q", fill_in_text="words")),
    ("free_text", "words", QuestionAnswer("q", fill_in_text="words")),
    ("free_text", "", SKIPPED),
    ("free_text", None, SKIPPED),
    ("free_text", ["words"], SKIPPED),
]


@pytest.mark.parametrize(("kind", "value", "answer"), ANSWERS)
def test_form_values_are_the_answer(kind: QuestionKind, value: object, answer: QuestionAnswer) -> None:
    other = _question("yes_no", "other")
    assert form_answers(_batch(_question(kind), other), {"q": value, "other": True}) == [
        answer,
        QuestionAnswer("other", yes=True),
    ]
    assert form_answers(_batch(_question(kind)), {}) == [SKIPPED]


def test_every_question_type_is_covered() -> None:
    kinds = set(QuestionKind.__args__)  # type: ignore[attr-defined]
    assert kinds == set(KINDS) == set(OFFERED) == {kind for kind, _, _ in ANSWERS}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([("selected", "yes"), ("selected", "b"), ("selected", "")], ["yes", ("b",), "skipped"]),
        ([("selected", "no"), ("selected", "x"), ("selected", "yes")], ["no", "skipped", "skipped"]),
        ([("selected", "a"), ("selected", "a"), ("selected", None)], ["skipped", ("a",), "skipped"]),
        ([("selected", "yes"), ("cancelled", "b")], None),
        ([("", "")], None),
    ],
)
async def test_answers_without_forms(chosen: list[tuple[str, str]], expected: list[object] | None) -> None:
    """Each answer is that of its question, and a cancelled one dismisses the batch."""
    choices = (Choice("a", "A"), Choice("b", "B"))
    questions = (
        Question("q1", "yes_no", "Shall I?"),
        Question("q2", "single_choice", "Which?", choices=choices),
        Question("q3", "free_text", "Why?"),
    )
    sent: list[tuple[object, ...]] = []
    asked: list[Json] = []

    class Bridge:
        workspace, directory = "w", "/w"
        updates = SessionUpdates(S, "/w")

        def __init__(self) -> None:
            self.client = self

        def session_updates(self, session: str) -> SessionUpdates | None:
            return self.updates if session == S else None

        async def request(self, name: str, method: str, params: Json) -> Json:
            asked.append(params)
            outcome, option = chosen[len(asked) - 1]
            return {"outcome": {"outcome": outcome, "optionId": option}}

        async def answer_question(self, workspace: str, body: Json) -> None:
            sent.append((workspace, body))

        async def cancel_question(self, workspace: str, batch: str) -> None:
            sent.append((workspace, batch))

    bridge: Any = Bridge()
    approvals = EditorApprovals(bridge, bridge)
    approvals.forward_question(QuestionRequest("elsewhere", SessionId("t"), CALL, questions))
    approvals.forward_question(QuestionRequest("batch", S, CALL, questions))
    approvals.forward_question(QuestionRequest("batch", S, CALL, questions))
    await until(lambda: bool(sent))
    await approvals.close()
    titles = [params["toolCall"]["title"] for params in asked]
    assert titles == ["Shall I?", "Which?", "Why?"][: len(chosen)]
    if expected is None:
        assert sent == [("w", "batch")]
        return
    ((workspace, body),) = sent
    answers = [
        "skipped" if len(item) == 1 else item.get("selected_ids") or ("yes" if item["yes"] else "no")
        for item in body["responses"]  # type: ignore[index]
    ]
    assert (workspace, body["batch_request_id"]) == ("w", "batch")  # type: ignore[index]
    assert answers == expected
    assert [item["request_id"] for item in body["responses"]] == ["q1", "q2", "q3"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "")), ("undo", ("", "undo")), ("undo all", ("", "undo all")), ("/undo", ("undo", "")),
        ("/undo  a b ", ("undo", "a b")), ("/", ("", "/")), ("/ x", ("", "/ x")), ("/a/b", ("", "/a/b")),
        ("/a-b_c:d x", ("a-b_c:d", "x")), ("/-", ("", "/-")), ("/a.b", ("", "/a.b")), ("x/undo", ("", "x/undo")),
    ],
)  # fmt: skip
def test_commands_of_a_prompt(text: str, expected: tuple[str, str]) -> None:
    assert split_command(text) == expected
