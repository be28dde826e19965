"""Requirements and limits of each tool, at every boundary and in every form of result."""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import PermissionDenied
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Todo
from holdfast.domain.settings import ToolSettings
from holdfast.domain.tools import Tool, ToolContext
from holdfast.tools import logs, ls, question, todos, view
from holdfast.tools.agent import Agent
from holdfast.tools.agentic_fetch import AgenticFetch, WebFetch
from holdfast.tools.base import metadata
from holdfast.tools.question import QuestionTool
from holdfast.tools.registry import AllTools, BuiltinTools, SomeTools, ToolNeeds
from planting import assert_async_clauses_decide
from tools.direct_calls import DirectCaller

QUESTION: dict[str, object] = {"type": "yes_no", "question": "Now?", "description": "It matters."}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    return root


async def caller(root: Path, needs: ToolNeeds | None = None, *more: Tool) -> DirectCaller:
    return DirectCaller(root, [*await BuiltinTools(needs).current(), *more])


# Questions


def choices(*names: str, **more: object) -> list[dict[str, object]]:
    return [{"id": name, "label": f"label {name}", **more} for name in names]


def single(*offered: dict[str, object], kind: str = "single_choice") -> dict[str, object]:
    return {**QUESTION, "type": kind, "choices": list(offered)}


async def check_questions(root: Path) -> None:
    call = DirectCaller(root, [QuestionTool()])

    async def wrong(*asked: dict[str, object]) -> str:
        before = len(call.inquiries)
        output = await call.text("question", questions=list(asked))
        if len(call.inquiries) > before:
            assert output == "User cancelled this question"
            return ""
        return output.removeprefix("error: ").removesuffix(" Correct it and call again.")

    assert await wrong() == "Ask 1 to 5 questions at once, not 0."
    assert await wrong(*[QUESTION] * 5) == ""
    assert await wrong(*[QUESTION] * 6) == "Ask 1 to 5 questions at once, not 6."
    for name, most in (("question", 240), ("description", 600)):
        assert await wrong({**QUESTION, name: "é" * (most // 2)}) == ""
        assert (
            await wrong({**QUESTION, name: "é" * (most // 2) + "x"})
            == f"Question 1: {name} is longer than {most} bytes."
        )
        assert await wrong(QUESTION, {**QUESTION, name: " \n"}) == f"Question 2: {name} is required."
    assert await wrong({**QUESTION, "label": "é" * 20}) == ""
    assert "label is longer than 40 bytes" in await wrong({**QUESTION, "label": "é" * 20 + "x"})
    for kind in ("yes_no", "free_text"):
        assert await wrong({**QUESTION, "type": kind}) == ""
        assert await wrong(single(*choices("a", "b"), kind=kind)) == f"Question 1: {kind} takes no choices."
    for kind in ("single_choice", "multi_choice"):
        assert await wrong(single(*choices("a", "b"), kind=kind)) == ""
        assert await wrong(single(*choices(*"abcde"), kind=kind)) == ""
        for names in ("a", "abcdef", ""):
            assert await wrong(single(*choices(*names), kind=kind)) == f"Question 1: {kind} needs 2 to 5 choices."
    for pair in (("a", " "), ("a", "a")):
        assert await wrong(single(*choices(*pair))) == "Question 1: every choice needs a unique id."
    assert await wrong(single(*choices("a", "b", label=" "))) == "Question 1: every choice needs a label."
    for name in ("label", "description"):
        assert await wrong(single(*choices("a", "b", **{name: "é" * 100}))) == ""
        too_long = await wrong(single(*choices("a", "b", **{name: "é" * 100 + "x"})))
        assert too_long == "Question 1: labels and descriptions of choices have at most 200 bytes."


async def test_questions_have_limits(root: Path) -> None:
    await check_questions(root)
    checked = [question._check, question._question_problem, question._choices_problem]
    await assert_async_clauses_decide(checked, lambda: check_questions(root))


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (QuestionAnswer("1"), ["User skipped this question"]),
        (QuestionAnswer("1", fill_in_text=" \n", notes={"a": " "}), ["User skipped this question"]),
        (QuestionAnswer("1", yes=True), ["User answered: yes"]),
        (QuestionAnswer("1", yes=False), ["User answered: no"]),
        (QuestionAnswer("1", selected_ids=("é", "b")), ['User selected: ["é", "b"]']),
        (QuestionAnswer("1", selected_ids=(), fill_in_text=" own "), ["User provided: own"]),
        (
            QuestionAnswer("1", selected_ids=("a",), fill_in_text="x", notes={"_question": " n ", "a": "m"}),
            ['User selected: ["a"]', "User provided: x", "Note: n", "Note on a: m"],
        ),
    ],
)
async def test_answers_are_returned_to_the_model(root: Path, answer: QuestionAnswer, lines: list[str]) -> None:
    call = DirectCaller(root, [QuestionTool()])
    call.answers = (answer,)
    assert (await call("question", questions=[QUESTION])).content.split("\n") == ["Q1: Now?", *lines]
    call.answers = (answer, answer)
    both = (await call("question", questions=[QUESTION, {**QUESTION, "question": "Then?"}])).content.split("\n\n")
    assert [block.split("\n")[0] for block in both] == ["Q1: Now?", "Q2: Then?"]


# Todos


def item(content: str, status: str = "pending") -> dict[str, object]:
    return {"content": content, "status": status, "active_form": f"doing {content}"}


async def test_todos_metadata_reports_changes(root: Path) -> None:
    call = await caller(root)
    first = await call.metadata("todos", todos=[item("a", "completed"), item("b", "in_progress"), item("c")])
    shown = {name: first.get(name) for name in ("is_new", "just_completed", "just_started", "completed", "total")}
    assert shown == {"is_new": True, "just_completed": None, "just_started": "doing b", "completed": 1, "total": 3}
    second = await call.metadata(
        "todos",
        todos=[item("a", "completed"), item("b", "completed"), item("c", "in_progress"), item("d", "completed")],
    )
    shown = {name: second.get(name) for name in shown}
    expected = {"is_new": False, "just_completed": ["b", "d"], "just_started": "doing c", "completed": 3, "total": 4}
    assert shown == expected
    third = await call.metadata("todos", todos=[item("c", "in_progress"), item("e", "in_progress")])
    assert (third.get("just_started"), third.get("just_completed")) == ("doing e", None)
    text = await call.text("todos", todos=[item("c", "in_progress"), item("e", "in_progress"), item("f")])
    assert text == ("The list was saved: 1 to do, 2 in progress, 0 done. Have only one step in progress at a time.")
    assert await call.text("todos", todos=[item("f")]) == "The list was saved: 1 to do, 0 in progress, 0 done."
    assert await call.text("todos", todos=[]) == "The list is empty now."
    assert (await call.metadata("todos", todos=[item("g")]))["is_new"] is True


async def test_todos_have_a_limit(root: Path) -> None:
    call = await caller(root)
    assert "200 to do" in await call.text("todos", todos=[item(str(number)) for number in range(200)])
    stored = len(call.operations)
    assert "201 entries; 200 at most" in await call.text("todos", todos=[item(str(number)) for number in range(201)])
    assert len(call.operations) == stored


async def test_todos_of_few_sessions_are_cached(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(todos, "_MAX_CACHED", 2)
    call = await caller(root)
    for session in ("s1", "s2", "s1", "s3"):
        call.session_id = SessionId(session)
        await call("todos", todos=[item("x")])
    new = {}
    for session in ("s1", "s3", "s2"):
        call.session_id = SessionId(session)
        new[session] = (await call.metadata("todos", todos=[item("x")]))["is_new"]
    assert new == {"s1": False, "s3": False, "s2": True}


async def test_stored_todos_take_precedence_over_written_ones(root: Path) -> None:
    async def stored_list(_: ToolContext) -> list[Todo]:
        return [Todo("x", "completed", "x")]

    call = await caller(root, ToolNeeds(known_todos=stored_list))
    for _ in range(2):
        metadata = await call.metadata("todos", todos=[item("x", "completed"), item("y", "completed")])
        assert (metadata["is_new"], metadata["just_completed"]) == (False, ["y"])


# The log


async def test_log_tool_shows_the_end_of_the_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = root / "log"
    call = await caller(root, ToolNeeds(log_file=lambda: log))
    assert await call.text("holdfast_logs") == "The log is empty."
    log.write_text("one\n\n  \ntoken=abcdefgh12345678\n" + "x" * 2_000 + "\n" + "y" * 2_001)
    lines = (await call.text("holdfast_logs")).split("\n")
    assert lines == ["one", "token=[hidden]", "x" * 2_000, "y" * 2_000 + "…"]
    # Only complete lines of the last part.
    log.write_text("first\nsecond\nthird\n")
    for most, expected in ((19, "first\nsecond\nthird"), (18, "second\nthird"), (7, "third")):
        monkeypatch.setattr(logs, "_MAX_BYTES", most)
        assert await call.text("holdfast_logs") == expected, most
    log.unlink()
    log.mkdir()
    assert "The log cannot be read: is a directory." in await call.text("holdfast_logs")
    assert "has no log file" in await (await caller(root)).text("holdfast_logs")


async def test_info_tool_reports_the_configuration(root: Path) -> None:
    async def facts(context: ToolContext) -> dict[str, list[str]]:
        return {"models": ["one", "api_key = sk-1234567890abcdef1234"], "mcp": []}

    call = await caller(root, ToolNeeds(facts=facts))
    lines = (await call.text("holdfast_info")).split("\n")
    assert lines[0] == "[holdfast]"
    assert lines[2:5] == [f"workspace = {root}", "session = s1", "run = r1"]
    assert lines[5:] == ["", "[models]", "one", "api_key = [hidden]", "", "[mcp]", "(none)"]
    assert "[models]" not in await (await caller(root)).text("holdfast_info")


# Sub-agents


async def test_agent_tool_lists_the_offered_agents() -> None:
    offered = [("a", "does\n  a"), ("b", "x" * 8_000), ("c", "small")]
    tool = Agent(lambda: offered)
    base = Agent().spec.description
    assert tool.spec.description.removeprefix(base).split("\n")[2:] == [
        "The tool `agent` runs one of these, which have their own instructions, tools and models:",
        "- a: does a",
        "- b",
        "- c: small",
    ]
    assert tool.spec is tool.spec
    offered = [("z", "new")]
    assert tool.spec.description.endswith("- z: new")
    offered = []
    assert tool.spec.description == base


async def test_sub_agents_need_a_prompt(root: Path) -> None:
    call = DirectCaller(root, [Agent(), AgenticFetch()])
    for name in ("agent", "agentic_fetch"):
        assert "The prompt is empty" in await call.text(name, prompt=" \n")
    assert "There are none." in await call.text("agent", prompt="x", agent="y")
    assert "error" in await call.text("agentic_fetch", prompt="x", url="ftp://x")
    assert (call.subagent_tasks, call.permits) == ([], [])


async def test_sub_agents_do_not_reach_private_addresses(root: Path) -> None:
    call = DirectCaller(root, [WebFetch()])
    for host in ("127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254"):
        with pytest.raises(PermissionDenied, match="sub-agents cannot access it") as error:
            await call("web_fetch", url=f"http://{host}/")
        assert not error.value.stops_turn
    assert call.permits == []

    def refuse(permit: object) -> None:
        raise PermissionDenied

    call.on_permit = refuse
    with pytest.raises(PermissionDenied):
        await call("web_fetch", url="https://example.org/a")
    (permit,) = call.permits
    assert (permit.tool, permit.action, permit.is_agreed) == ("fetch", "fetch", True)
    assert permit.params == {"url": "https://example.org/a"}


# Registry


async def test_registry_lists_the_expected_tools() -> None:
    class Own:
        is_parallel = False

        def __init__(self, name: str) -> None:
            self.spec = type(Agent().spec)(name, "", "{}")

        async def run(self, *_: object) -> None: ...

    def names(tools: object) -> list[str]:
        return [tool.spec.name for tool in tools]  # type: ignore[attr-defined]

    unwanted: list[str] = []
    own: list[Tool] = [Own("zz"), Own("aa")]  # type: ignore[list-item]
    builtin = BuiltinTools(ToolNeeds(disabled=lambda: unwanted, more=own))
    every = names(await builtin.current())
    assert every == sorted(every)
    assert {"aa", "zz", "view", "write"} < set(every)
    unwanted += ["view", "Bash", "LS", "zz"]
    left = names(await builtin.current())
    assert set(every) - set(left) == {"view", "ls", "zz"}
    brought: list[Tool] = [Own("write"), Own("brought"), Own("view")]  # type: ignore[list-item]
    both = AllTools(builtin, lambda: brought)
    # A name in use is not replaced; a name that was freed may be used.
    assert names(await both.current()) == [*left, "brought", "view"]
    assert (await both.current())[-1] is brought[-1]
    some = SomeTools(both, frozenset({"grep", "brought", "nothing"}), Own("extra"))  # type: ignore[arg-type]
    assert names(await some.current()) == ["grep", "brought", "extra"]


def test_metadata_omits_none() -> None:
    assert json.loads(metadata(a=None, b=0, c="", d=False)) == {"b": 0, "c": "", "d": False}
    assert "é" in metadata(a="é")


async def test_misnamed_arguments_are_accepted(root: Path) -> None:
    call = await caller(root)
    (root / "f").write_text("x\n")
    for name in ("path", "filepath", "file", "filename", "filePath", "absolute_path", "target_file"):
        assert "|x" in await call.text("view", **{name: "f"})
    for name in ("file_path", "directory", "dir", "dir_path", "directory_path", "folder"):
        assert "- f" in await call.text("ls", **{name: "."})
    for name in ("query", "regex"):
        assert "Found 1 match" in await call.text("grep", **{name: "x"})
    for name in ("glob", "file_pattern", "include_pattern"):
        assert await call.text("grep", pattern="x", **{name: "*.py"}) == "No matches found"
    # The correct name wins, and a wrong one beside it is reported.
    assert "Wrong arguments" in await call.text("view", file_path="f", path="g")
    await call.text("edit", filePath="n", newString="a a")
    await call.text("edit", file="n", old_str="a", new_str="b", replaceAll="true")
    assert (root / "n").read_text() == "b b"
    await call.text("write", filename="w", contents="c")
    assert (root / "w").read_text() == "c"
    assert "holdfast_info takes no arguments." in await call.text("holdfast_info", x=1)
    assert "|x" in await call.text("view", file_path="f", limit=1.0)
    assert "Wrong arguments" in await call.text("view", file_path="f", limit=1.5)
    assert "|x" in await call.text("view", file_path="f", limit="1")


# Files


PICTURES: dict[str, tuple[str, bytes]] = {
    "a.jpg": ("image/jpeg", b"\xff\xd8\xff1"),
    "a.jpeg": ("image/jpeg", b"\xff\xd8\xff2"),
    "a.PNG": ("image/png", b"\x89PNG\r\n\x1a\n3"),
    "a.gif": ("image/gif", b"GIF8 4"),
    "a.webp": ("image/webp", b"RIFF 5"),
}


async def test_view_of_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = await caller(root)
    for name, (kind, data) in PICTURES.items():
        (root / name).write_bytes(data)
        assert "does not accept images" in await call.text("view", file_path=name)
        call.takes_images = True
        outcome = await call("view", file_path=name)
        assert (outcome.mime_type, base64.b64decode(outcome.data)) == (kind, data)
        assert outcome.content == f"{name}: {kind}, {len(data)} bytes"
        (root / name).write_bytes(b"x" + data)
        assert f"its content is not {kind}" in await call.text("view", file_path=name)
        call.takes_images = False
    assert len(call.operations) == len(PICTURES)
    call.takes_images = True
    monkeypatch.setattr(view, "_MAX_BYTES", 8)
    assert "the limit is 8" in await call.text("view", file_path="a.PNG")


class Skill:
    name, description = "sharp", "cuts"


async def test_view_of_a_skill_is_complete_and_names_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_MAX_BYTES", 1_000)
    path = root / "SKILL.md"
    path.write_text("".join(f"line {number}\n" for number in range(1, 301)))
    call = await caller(root, ToolNeeds(skill_at=lambda place: Skill() if place == str(path) else None))
    outcome = await call("view", file_path="SKILL.md")
    assert "   300|line 300\n</file>" in outcome.content
    metadata = json.loads(outcome.metadata)
    shown = {name: metadata[name] for name in ("resource_type", "resource_name", "resource_description")}
    assert shown == {"resource_type": "skill", "resource_name": "sharp", "resource_description": "cuts"}
    assert "(299 more lines" in await call.text("view", file_path="SKILL.md", limit=1)
    (root / "other").write_text(path.read_text())
    assert "Request fewer" in await call.text("view", file_path="other")
    assert "resource_type" not in await call.metadata("view", file_path="other", limit=2)


async def test_view_limits_lines_and_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "f").write_text("ab\ncé\n")
    call = await caller(root)
    for most, is_shown in ((7, True), (6, False)):
        monkeypatch.setattr(view, "_MAX_BYTES", most)
        assert (await call.text("view", file_path="f")).startswith("<file>") is is_shown
        assert (await call.text("view", file_path="f", limit=1)).startswith("<file>")
    assert len(call.operations) == 4, "a refused read is recorded too"
    monkeypatch.undo()
    monkeypatch.setattr(view, "_MAX_LINE_LENGTH", 4)
    (root / "g").write_text("abcd\nabcde\néé\néép\naéé\n")
    assert (await call.text("view", file_path="g")).split("\n")[1:6] == [
        "     1|abcd", "     2|abcd...", "     3|éé", "     4|éé...", "     5|aé...",
    ]  # fmt: skip


async def test_view_reads_a_huge_file_only_up_to_the_requested_lines(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later lines are not read."""
    (root / "f").write_text("".join(f"line {number}\r\n" for number in range(1, 7)))
    call = await caller(root)

    async def shown(**arguments: object) -> list[str]:
        return (await call.text("view", file_path="f", **arguments)).split("\n")[1:-1]

    whole = await shown()
    size = (root / "f").stat().st_size
    monkeypatch.setattr(view, "_MAX_FILE_SIZE", size)
    assert await shown() == whole
    assert call.operations[-1].mark.digest  # type: ignore[union-attr]
    monkeypatch.setattr(view, "_MAX_FILE_SIZE", size - 1)
    assert await shown() == [*whole, "(the file continues)"]
    assert not call.operations[-1].mark.digest, "not all of it was read"  # type: ignore[union-attr]
    assert await shown(offset=4, limit=1) == ["     5|line 5", "(the file continues)"]
    assert await shown(offset=6) == ["(the file ends before this)"]
    monkeypatch.setattr(view, "_MAX_FILE_SIZE", 8)
    assert "A line of f has 8 bytes" in await call.text("view", file_path="f")


async def test_ls_limits_depth_and_entries(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's limits, and the defaults inside and outside a repository."""
    for name in ("a/b/c/d", "e"):
        (root / name).mkdir(parents=True)
    limits: dict[str, int] = {}
    call = await caller(root, ToolNeeds(settings=lambda: ToolSettings(ls=limits)))

    async def shown(**arguments: object) -> tuple[int, bool, int]:
        outcome = await call("ls", **arguments)
        metadata = json.loads(outcome.metadata)
        depths = [len(line) - len(line.lstrip()) for line in outcome.content.split("\n") if "- " in line]
        assert ("more than" in outcome.content) is metadata["truncated"]
        return metadata["number_of_files"], metadata["truncated"], max(depths) // 2

    assert await shown() == (3, False, 2), "two levels outside of a repository"
    assert await shown(depth=3) == (4, False, 3)
    limits["max_depth"] = 1
    assert await shown() == (2, False, 1)
    assert await shown(depth=9) == (5, False, 4)
    limits.clear()
    (root / ".git").mkdir()
    assert await shown() == (5, False, 4)
    for most in (5, 4, 1):
        limits["max_items"] = most
        found, is_cut, _ = await shown()
        assert (found, is_cut) == (most, most < 5)
    limits["max_items"] = 0
    monkeypatch.setattr(ls, "_MAX_ITEMS", 2)
    assert (await shown())[:2] == (2, True)
    (root / ".git").rmdir()
    monkeypatch.setattr(ls, "_MAX_ITEMS_ELSEWHERE", 1)
    assert (await shown())[:2] == (1, True)


async def test_view_refuses_files_that_are_not_text(root: Path) -> None:
    call = await caller(root)
    (root / "f").write_text("x")
    assert "There is no directory nothing." in await call.text("ls", path="nothing")
    assert "f is a file, not a directory" in await call.text("ls", path="f")
    assert "f is a file: give the directory" in await call.text("glob", pattern="*", path="f")
    for tool in ("glob", "grep"):
        assert "There is no file or directory nothing." in await call.text(tool, pattern="x", path="nothing")
    assert "contains a line break" in await call.text("grep", pattern="a\nb")
    assert "Found 1 match\n" in await call.text("grep", pattern="x", path="f")
    await call("view", file_path="f")
    assert "has this content already" in await call.text("write", file_path="f", content="x")
    assert "There is no file nothing" in await call.text("edit", file_path="nothing", old_string="y")


async def test_remarks_are_appended_to_the_result(root: Path) -> None:
    """Remarks about a file are appended to the result; they receive its real path."""
    metadata: list[tuple[str, str]] = []

    def remark(kind: str) -> Callable[[str], object]:
        async def remark_on(path: str) -> str:
            metadata.append((kind, path.removeprefix(f"{root}/")))
            return f"a remark on {kind}"

        return remark_on

    needs = ToolNeeds(on_view=remark("view"), on_change=remark("change"))  # type: ignore[arg-type]
    call = await caller(root, needs)
    pieces = [{"old_string": "c", "new_string": "d"}]
    for tool, arguments in (
        ("write", {"content": "a"}),
        ("edit", {"old_string": "a", "new_string": "c"}),
        ("multiedit", {"edits": pieces}),
        ("view", {}),
    ):
        kind = "view" if tool == "view" else "change"
        assert (await call.text(tool, file_path="f", **arguments)).endswith(f"\na remark on {kind}"), tool
    assert metadata == [("change", "f")] * 3 + [("view", "f")]
    silent = await caller(root)
    assert (await silent.text("view", file_path="f")).endswith("</file>")
