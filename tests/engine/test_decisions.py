"""Pure decisions of the engine, in tables: hook results, unanswered requests, recovery plans, ends, system prompt."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from engine.helpers import RUN, SESSION, call_part, finish_part, message, result_part, text_part
from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.errors import NotFound, ProviderError
from holdfast.domain.events import (
    Change,
    Event,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    encode_event,
)
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import MessageId, RunId, ToolCallId
from holdfast.domain.project_context import ContextFile, GitChanges, GitState, ProjectContext
from holdfast.domain.runs import Outcome, Run
from holdfast.domain.tools import Permit, ToolOutcome
from holdfast.engine import history_repair, recovery, run_end, system_prompt, tool_calls
from holdfast.engine.history_repair import TurnEnd
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.run_context import text
from holdfast.testing.harness import counting_ids
from planting import CLAUSES, assert_every_clause_decides

# Fate of a tool call after its hooks.


def check_refusals() -> None:
    rows = [
        (HookOutcome(), None),
        (HookOutcome("allow", reason="r"), None),
        (HookOutcome("ask", reason="r"), None),
        (HookOutcome("deny"), ("A hook of the user's refused this call.", False)),
        (HookOutcome("deny", reason="r"), ("r", False)),
        (HookOutcome(halts=True), ("A hook of the user's stopped the turn.", True)),
        (HookOutcome("deny", halts=True, reason="r"), ("r", True)),
    ]
    for ruling, expected in rows:
        found = tool_calls.refusal(ruling)
        assert (found and (found.content, found.stops_turn)) == expected, ruling
        assert found is None or found.is_error


def permit_of(name: str, reason: str = "", **given: object) -> Permit:
    return tool_calls.permit_for_hook(
        ToolUse(SESSION, RUN, ToolCallId("c"), name, given), HookOutcome("ask", reason=reason), "/p"
    )


def check_requests() -> None:
    """A command is checked by its line, in its working directory; other tools have neither."""
    rows: list[tuple[Permit, str, str]] = [
        (permit_of("bash", command="ls"), "ls", "/p"),
        (permit_of("bash", command="ls", working_dir="sub/../x"), "ls", "/p/x"),
        (permit_of("bash", command="ls", working_dir="/away"), "ls", "/away"),
        (permit_of("bash", command="ls", working_dir=3), "ls", "/p"),
        (permit_of("bash", command="ls", working_dir=""), "ls", "/p"),
        (permit_of("bash", command=["ls"], working_dir="sub"), "", "/p"),
        (permit_of("bash", working_dir="sub"), "", "/p"),
        (permit_of("other", command="ls", working_dir="sub"), "", "/p"),
    ]
    for permit, command, path in rows:
        assert (permit.command, permit.path, permit.action) == (command, path, "execute"), permit
        assert permit.tool in ("bash", "other")
    assert permit_of("view", "why", n=1).params == {"n": 1}
    assert permit_of("view", "why").description == "why"
    assert "view" in permit_of("view").description


def check_hook_messages() -> None:
    """The model reads the result, then the message of each hook; clients get the reports beside the tool's metadata."""
    plain = ToolOutcome("c", '{"a":1}', data="d")
    rows: list[tuple[HookOutcome, HookOutcome | None, str, bool]] = [
        (HookOutcome(), None, "c", False),
        (HookOutcome(context="x"), None, "c\n\nx", False),
        (HookOutcome(reason="r"), HookOutcome(reason="s"), "c", False),
        (HookOutcome(context="x"), HookOutcome("deny", reason="s", context="y"), "c\n\nx\n\ns\n\ny", False),
        (HookOutcome(), HookOutcome(halts=True, reason="s"), "c\n\ns", True),
        (HookOutcome(), HookOutcome(halts=True), "c", True),
        (HookOutcome(halts=True), HookOutcome(), "c", False),
        (HookOutcome(), HookOutcome("allow", reason="s", context="y"), "c\n\ny", False),
    ]
    for before, after, content, stops in rows:
        found = tool_calls.add_hook_output(plain, before, after)
        assert found == msgspec.structs.replace(plain, content=content, stops_turn=stops), (before, after)
    stopping = msgspec.structs.replace(plain, stops_turn=True)
    assert tool_calls.add_hook_output(stopping, HookOutcome(context="x")).stops_turn
    report: dict[str, Any] = {"n": "é"}
    hooks = {"hook": report}
    for metadata, expected in [("", hooks), ('{"a":1}', {"a": 1} | hooks), ("[1]", hooks), ("nonsense", hooks)]:
        found = tool_calls.add_hook_output(ToolOutcome("c", metadata), HookOutcome(report=report))
        assert json.loads(found.metadata) == expected, metadata
        assert "é" in found.metadata
        assert found.content == "c"
    both = tool_calls.add_hook_output(ToolOutcome("c"), HookOutcome(report=report), HookOutcome(report={"m": 1}))
    assert json.loads(both.metadata) == {"hook": report, "post_hook": {"m": 1}}
    assert json.loads(
        tool_calls.add_hook_output(ToolOutcome("c"), HookOutcome(), HookOutcome(report={"m": 1})).metadata
    ) == {"post_hook": {"m": 1}}


# Unanswered requests of a dead server.


def permission(id: str = "p", run: str = "r1", *, continues: bool = False) -> Event:
    request = PermissionRequest(
        id, SESSION, ToolCallId(f"c-{id}"), "t", "d", "a", {}, "/p", RunId(run), continues=continues
    )
    return PermissionRequestEvent(Change("created", request))


def question(id: str = "q", run: str = "r1") -> Event:
    return QuestionRequestEvent(
        Change("created", QuestionRequest(id, SESSION, ToolCallId(f"c-{id}"), (), run_id=RunId(run)))
    )


def notice(id: str = "p", *, granted: bool = False, denied: bool = False) -> Event:
    notification = PermissionNotification(ToolCallId(f"c-{id}"), granted, denied, id, SESSION)
    return PermissionNotificationEvent(Change("created", notification))


def question_closed(id: str = "q") -> Event:
    return QuestionNotificationEvent(Change("created", QuestionNotification(id, SESSION)))


def check_leftovers() -> None:
    rows: list[tuple[Sequence[Event], list[str], set[str]]] = [
        ([], [], set()),
        ([permission()], ["p"], {"c-p"}),
        ([permission(run="r2")], [], set()),
        ([permission(continues=True)], ["p"], set()),
        ([permission(), notice()], ["p"], {"c-p"}),
        ([permission(), notice(granted=True)], [], set()),
        ([permission(), notice(denied=True)], [], {"c-p"}),
        ([permission(), notice("other", granted=True)], ["p"], {"c-p"}),
        ([question()], ["q"], {"c-q"}),
        ([question(run="r2")], [], set()),
        ([question(), question_closed()], [], set()),
        ([question(), question_closed("other"), permission()], ["q", "p"], {"c-q", "c-p"}),
        ([notice(granted=True), question_closed()], [], set()),
    ]
    for events, still_open, not_run in rows:
        left = recovery.UnansweredRequests({RunId("r1")})
        for event in events:
            left.feed(encode_event(event))
        left.feed(b'{"type":"of a later version"}')
        notification = [event.change.object for event in left.withdrawn()]
        ids = [item.id if isinstance(item, PermissionNotification) else item.batch_id for item in notification]
        assert (ids, left.not_run) == (still_open, not_run), events
        for item in notification:
            assert item.withdrawn
            assert (item.session_id, item.by) == (SESSION, "")
            if isinstance(item, PermissionNotification):
                assert (item.granted, item.denied, item.tool_call_id) == (False, True, "c-p")


# Recovery plans.


def run(id: str, **facts: object) -> Run:
    known = {"run_id": id, "session_id": "s1", "state": "queued", "delivery": "queue", "accepted_at": 1}
    return Run(**(known | facts))  # type: ignore[arg-type]


def check_plans() -> None:
    rows: list[tuple[list[Run], dict[str, str]]] = [
        ([run("a")], {}),
        ([run("a", started_at=1)], {"a": "interrupted"}),
        ([run("a", kind="summary")], {"a": "interrupted"}),
        ([run("a", cancel_requested=True)], {"a": "cancelled"}),
        ([run("a", cancel_requested=True, started_at=1)], {"a": "cancelled"}),
        ([run("a", parent_run_id="b"), run("b", cancel_requested=True)], {"a": "cancelled", "b": "cancelled"}),
        ([run("a", parent_run_id="b"), run("b", started_at=1)], {"a": "interrupted", "b": "interrupted"}),
        ([run("a", parent_run_id="gone")], {"a": "interrupted"}),
        ([run("a", parent_run_id="b", cancel_requested=True)], {"a": "cancelled"}),
        ([run("a", folded_into="b"), run("b", cancel_requested=True)], {"a": "cancelled", "b": "cancelled"}),
        (
            [run("a", folded_into="b", cancel_requested=True), run("b", started_at=1)],
            dict.fromkeys("ab", "interrupted"),
        ),
        ([run("a", folded_into="gone")], {"a": "interrupted"}),
        ([run("a", folded_into="over")], {"a": "completed"}),
        ([run("a", folded_into="open")], {"a": "interrupted"}),
    ]
    hosts = {RunId("over"): run("over", outcome="completed"), RunId("open"): run("open")}
    for runs, expected in rows:
        found = recovery.plan_recovery(runs, hosts)
        assert {item.run_id: outcome for item, outcome in found.ends} == expected, runs
        assert [item.run_id for item in found.requeued] == [item.run_id for item in runs if item.run_id not in expected]


# Results of calls that were cut off, and texts of ends.


def check_cut_off_calls() -> None:
    """The model must know that a call may have had effects."""
    answer = message("assistant", call_part("c1"), call_part("c2"), call_part("c3", finished=False), call_part("c4"))
    outcomes: list[Outcome] = ["cancelled", "interrupted", "failed"]
    for outcome in outcomes:
        before = [answer, message("tool", result_part("c4"), id="t")]
        put = history_repair.repair(
            MessageFactory(SESSION, RUN, 1, counting_ids()), before, TurnEnd(outcome, "t"), {ToolCallId("c2")}
        )
        texts = {given.tool_call_id: given.content for item in put.put for given in item.tool_results}
        assert list(texts) == ["c1", "c2", "c3"]
        acted = "not undone" if outcome == "cancelled" else "may have had effects"
        assert [acted in words for words in texts.values()] == [True, False, False], outcome
    assert (
        history_repair.unanswered_calls([answer, message("tool", result_part("c4"), id="t")]) == answer.tool_calls[:3]
    )
    for leaves in (True, False):
        put = history_repair.repair(
            MessageFactory(SESSION, RUN, 1, counting_ids()), [], TurnEnd("failed", adds_final_message=leaves)
        )
        assert len(put.put) == leaves


def check_descriptions() -> None:
    lost = ProviderError("p", title="T", trouble="connection")
    rows: list[tuple[Outcome, BaseException | None, tuple[str, str, bool]]] = [
        ("completed", None, ("", "", False)),
        ("completed", lost, ("", "", False)),
        ("cancelled", lost, ("", "", False)),
        ("interrupted", lost, ("Interrupted", run_end.INTERRUPTED, False)),
        ("failed", lost, ("T", "p", True)),
        ("failed", ProviderError("p", title="T", trouble="not_running"), ("T", "p", True)),
        ("failed", ProviderError("p", title="T", trouble="loading"), ("T", "p", True)),
        ("failed", ProviderError("p", title="T", trouble="refused"), ("T", "p", False)),
        ("failed", NotFound("n"), ("Error", "n", False)),
    ]
    for outcome, error, expected in rows:
        found = run_end.describe_end(outcome, error)
        assert (found.title, found.details, found.model_unreachable) == expected, (outcome, error)
        assert found.outcome == outcome
    assert "KeyError" in run_end.describe_end("failed", KeyError("secret")).details
    assert "secret" not in run_end.describe_end("failed", KeyError("secret")).details
    assert "from outside" in run_end.describe_end("failed", None).details


def check_answers() -> None:
    """The answer of a run is its last assistant message; a summary only if there is nothing else."""
    first, last = message("assistant", text_part("1"), id="1"), message("assistant", text_part("2"), id="2")
    summary = message("assistant", text_part("s"), id="s", is_summary=True)
    other = message("user", text_part("u"), id="u")
    rows = [
        ([], set(), None),
        ([other], set(), None),
        ([first, last, other], set(), "2"),
        ([first, last, summary], set(), "2"),
        ([other, summary], set(), "s"),
        ([first, last], {"2"}, "1"),
        ([summary], {"s"}, None),
    ]
    for messages, removed, expected in rows:
        found = run_end.last_answer(messages, {MessageId(id) for id in removed})
        assert (found.id if found else None) == expected, (messages, removed)
    newer = message("assistant", finish_part(), id="1")
    assert run_end.merge_messages([first, last], [newer, other]) == [newer, last, other]


# System prompt.


def check_instructions() -> None:
    plain = ProjectContext("/p")
    full = ProjectContext(
        "/p", "linux", "today", GitState("main", "0123456789abcdef"),
        (ContextFile("A.md", " be kind \n"), ContextFile("B.md", "b", 7)), ("note",), "Made-by: x",
    )  # fmt: skip
    files = '<file path="A.md">\nbe kind\n</file>\n\n<file path="B.md">\nb\n[7 more characters: read the file if you'
    prompt, subagent, subagent_type = (
        system_prompt.system_prompt(full),
        system_prompt.subagent_prompt(full),
        system_prompt.subagent_prompt(full, prompt=" Look. "),
    )
    for words in (prompt, subagent_type):
        assert words.index("people of this project") < words.index(files) < words.index("# Where you are")
    assert prompt.index(files) < prompt.index("\n\nnote\n\n") < prompt.index("# Where you are")
    assert "note" not in subagent_type
    assert subagent_type.startswith("Look.\n\n# How people work here")
    assert "be kind" not in subagent
    assert subagent.startswith(text("task.md").strip())
    assert system_prompt.subagent_prompt(full, "fetch.md", " ").startswith(text("fetch.md").strip())
    facts = "Directory: /p\nPlatform: linux\nDate: today\nWhen you commit, end the message with this line: Made-by: x\n"
    for words in (prompt, subagent, subagent_type):
        assert words.endswith(f"{facts}Git branch: main, commit 0123456789ab (when the session began)\n")
    short = system_prompt.system_prompt(plain)
    assert short.endswith("# Where you are\n\nDirectory: /p\nThe directory is not in a git repository.\n")
    assert "How people work here" not in short
    for git, line in [
        (GitState("main"), "Git branch: main, without commits (when the session began)"),
        (GitState("", "0123456789abcdef"), "Git: detached HEAD, commit 0123456789ab (when the session began)"),
        (GitState(), "The directory is in a git repository; its branch is not known."),
    ]:
        assert system_prompt.system_prompt(ProjectContext("/p", git=git)).endswith(f"Directory: /p\n{line}\n")


def check_git_notes() -> None:
    for files in ((), (" M a",), (" M a", "?? b")):
        for more in (0, 3):
            for commits in ((), ("1 one",)):
                note = system_prompt.git_note(GitChanges(files, more, commits))
                assert ("No changes" in note) == (not files)
                assert ("and 3 more" in note) == bool(files and more)
                assert ("Last commits:\n  1 one\n" in note) == bool(commits)
                assert all(f"\n  {line}\n" in note for line in files)
                assert note.startswith("<git-status>\n")
                assert note.endswith("\n</git-status>")


NO_DIFFERENCE = {
    "isinstance(where, str) and where -> isinstance(where, str)": "an empty name joined to a path is the path",
    "if not present and content == outcome.content and (not after.halts):; return outcome -> (nothing)": "saves a copy",
}
TABLES: dict[str, tuple[list[object], list[Callable[[], None]], dict[str, str]]] = {
    "hook rulings": (
        [tool_calls.refusal, tool_calls.permit_for_hook, tool_calls.add_hook_output, tool_calls._merge_metadata],
        [check_refusals, check_requests, check_hook_messages],
        NO_DIFFERENCE,
    ),
    "unanswered requests": ([recovery.UnansweredRequests, recovery._withdrawal], [check_leftovers], {}),
    "plans": ([recovery.plan_recovery], [check_plans], {}),
    "calls that were cut off": ([history_repair.unanswered_calls], [check_cut_off_calls], {}),
    "ends": (
        [run_end.describe_end, run_end.last_answer, run_end.merge_messages],
        [check_descriptions, check_answers],
        {},
    ),
    "system prompt": ([system_prompt], [check_instructions, check_git_notes], {}),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_clause_decides(name: str) -> None:
    functions, checks, equivalent = TABLES[name]

    def check() -> None:
        for each in checks:
            each()

    kinds = (*CLAUSES, "comparison", "element", "argument", "exit")
    assert_every_clause_decides(functions, check, equivalent, kinds)
