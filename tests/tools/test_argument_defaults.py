"""Every optional argument of every tool: its default and the effect of its smallest value.

The table is complete by construction: the arguments are read from the tools, and each function returns the ones it
tested. A new argument fails the test until it is covered here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from holdfast.domain.store_operations import PatchSession
from holdfast.domain.tools import Tool
from holdfast.testing.gates import start
from holdfast.tools.agent import Agent
from holdfast.tools.agentic_fetch import AgenticFetch, WebFetch
from holdfast.tools.bash import Bash, BashTimes
from holdfast.tools.jobs import JobKill, JobOutputTool
from holdfast.tools.question import QuestionTool
from holdfast.tools.registry import BuiltinTools, ToolNeeds
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.process.jobs import JobLimits, Jobs
from holdfast.workspace.process.shell_launch import Shell
from tools.direct_calls import DirectCaller, arguments_of
from workspace.web_server import WebServer, web_server

PAGE = b"<html><body><h1>Head</h1><p>Some <b>bold</b></p></body></html>"


class ToolProject:
    """A project directory, its tools, and a local web server."""

    def __init__(self, root: Path, web: WebServer) -> None:
        self.root = root
        self.web = web
        self.guard = Guard("tree")
        self.jobs = Jobs(lambda: 1_000, limits=JobLimits(grace=0.1))
        shell = Shell(Processes(self.guard, root.parent / "spills", grace=0.1))
        more = (
            Agent(lambda: [("Reviewer", "reads code")]),
            AgenticFetch(),
            Bash(shell, self.jobs, BashTimes(auto_background=3_600, early=0.05)),
            JobKill(self.jobs),
            JobOutputTool(self.jobs),
            QuestionTool(),
            WebFetch(),
        )
        log = root.parent / "log"
        log.write_text("".join(f"entry {number}\n" for number in range(1, 121)))
        self.builtin = BuiltinTools(ToolNeeds(log_file=lambda: log, more=more))
        self.tools: list[Tool] = []

    async def open(self) -> "ToolProject":
        self.tools = list(await self.builtin.current())
        return self

    @property
    def call(self) -> DirectCaller:
        """Return a caller without any state."""
        return DirectCaller(self.root, self.tools)

    def write_file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, name: str) -> str:
        return (self.root / name).read_text()


@pytest.fixture
async def project(tmp_path: Path) -> AsyncIterator[ToolProject]:
    root = tmp_path / "project"
    root.mkdir()
    async with web_server() as web:
        web.page("/page", PAGE)
        here = await ToolProject(root, web).open()
        yield here
        await here.jobs.close()
        await here.guard.close()


async def of_agent(project: ToolProject) -> set[str]:
    call = project.call
    assert (await call("agent", prompt="look")).content == "text of the sub-agent"
    await call("agent", prompt="look", agent="")
    await call("agent", prompt="look", agent=" @reviewer ")
    sent = [(task.title, task.kind) for task in call.subagent_tasks]
    assert sent == [("New Agent Session", "task")] * 2 + [("Reviewer", "agent:Reviewer")]
    assert "There is: Reviewer." in await call.text("agent", prompt="look", agent="x")
    return {"agent"}


async def of_agentic_fetch(project: ToolProject) -> set[str]:
    call = project.call
    await call("agentic_fetch", prompt="why?")
    await call("agentic_fetch", prompt="why?", url="")
    await call("agentic_fetch", prompt="why?", url="https://example.org/a")
    assert [task.prompt for task in call.subagent_tasks] == ["why?"] * 2 + ["Begin with https://example.org/a\n\nwhy?"]
    assert {(task.title, task.kind) for task in call.subagent_tasks} == {("Fetch Analysis", "fetch")}
    shown = [(permit.description.rpartition(": ")[2], permit.params) for permit in call.permits]
    assert shown[0] == shown[1] == ("why?", {"prompt": "why?"})
    assert shown[2][1] == {"prompt": "why?", "url": "https://example.org/a"}
    return {"url"}


async def of_bash(project: ToolProject) -> set[str]:
    call = project.call
    project.write_file("sub/x", "")
    metadata = await call.metadata("bash", command="echo")
    assert (metadata["description"], metadata["working_directory"]) == ("", str(project.root))
    assert "background" not in metadata
    metadata = await call.metadata("bash", command="echo", description="says", working_dir="sub")
    assert (metadata["description"], metadata["working_directory"]) == ("says", str(project.root / "sub"))
    assert (await call.metadata("bash", command="true", auto_background_after=0)).get("background") is None
    assert (await call.metadata("bash", command="true", auto_background_after=-1)).get("background") is None
    metadata = await call.metadata("bash", command="sleep 1000", run_in_background=True)
    assert (metadata["background"], metadata["shell_id"]) == (True, "001")
    assert call.permits[0].params == {
        "command": "echo",
        "description": "",
        "working_dir": str(project.root),
        "run_in_background": False,
        "auto_background_after": 0,
    }
    assert {permit.command for permit in call.permits} == {"echo", "true", "sleep 1000"}
    return {"description", "working_dir", "auto_background_after", "run_in_background"}


async def of_job_output(project: ToolProject) -> set[str]:
    call = project.call
    await call("bash", command="mkfifo fifo")
    metadata = await call.metadata("bash", command="read line < fifo; echo $line; exit 3", run_in_background=True)
    job = metadata["shell_id"]
    assert (await call.text("job_output", shell_id=job)) == "Status: running\n\nno output"
    assert (await call.metadata("job_output", shell_id=job, wait=False))["done"] is False
    waiting = start(call.text("job_output", shell_id=job, wait=True))
    await asyncio.to_thread((project.root / "fifo").write_text, "heard\n")
    assert await waiting == "Status: completed\n\nheard\nExit code 3"
    assert (await call.metadata("job_output", shell_id=job))["done"] is True
    return {"wait"}


async def of_download(project: ToolProject) -> set[str]:
    call = project.call
    for number, timeout in enumerate(({}, {"timeout": 0}, {"timeout": -1}, {"timeout": 1}, {"timeout": 601})):
        await call("download", url=f"{project.web.url}/page", file_path=f"f{number}", **timeout)
    assert [permit.params["timeout"] for permit in call.permits] == [300, 300, 300, 1, 600]
    return {"timeout"}


async def of_edit(project: ToolProject) -> set[str]:
    call = project.call
    await call("edit", file_path="new", new_string="a b a")
    assert project.read("new") == "a b a"
    await call("edit", file_path="empty")
    assert project.read("empty") == ""
    assert "exists already" in await call.text("edit", file_path="new", new_string="x")
    assert "exists already" in await call.text("edit", file_path="new", old_string="", new_string="x")
    assert "2 times" in await call.text("edit", file_path="new", old_string="a", new_string="c")
    assert "2 times" in await call.text("edit", file_path="new", old_string="a", new_string="c", replace_all=False)
    await call("edit", file_path="new", old_string="a", new_string="c", replace_all=True)
    await call("edit", file_path="new", old_string="b ")
    assert project.read("new") == "c c"
    return {"old_string", "new_string", "replace_all"}


async def of_multiedit(project: ToolProject) -> set[str]:
    call = project.call
    await call("multiedit", file_path="f", edits=[{"old_string": "", "new_string": "a a b"}])
    edit = {"old_string": "a", "new_string": "c"}
    assert "2 times" in await call.text("multiedit", file_path="f", edits=[edit])
    assert "2 times" in await call.text("multiedit", file_path="f", edits=[{**edit, "replace_all": False}])
    await call("multiedit", file_path="f", edits=[{**edit, "replace_all": True}])
    assert project.read("f") == "c c b"
    return {"edits.replace_all"}


async def of_fetch(project: ToolProject) -> set[str]:
    call = project.call
    url = f"{project.web.url}/page"
    for timeout in ({}, {"timeout": 0}, {"timeout": -1}, {"timeout": 1}, {"timeout": 121}):
        assert "**bold**" in (await call("fetch", url=url, **timeout)).content
    assert [permit.params["timeout"] for permit in call.permits] == [30, 30, 30, 1, 120]
    assert {permit.params["format"] for permit in call.permits} == {"markdown"}
    assert "**" not in (await call("fetch", url=url, format="text")).content
    assert "<b>" in (await call("fetch", url=url, format="html")).content
    return {"format", "timeout"}


async def of_glob(project: ToolProject) -> set[str]:
    call = project.call
    project.write_file("a.py", "")
    project.write_file("sub/b.py", "")
    whole = [str(project.root / "a.py"), str(project.root / "sub/b.py")]
    assert (await call("glob", pattern="*.py")).content.split("\n") == whole
    assert (await call("glob", pattern="*.py", path=".")).content.split("\n") == whole
    assert (await call("glob", pattern="*.py", path="sub")).content.split("\n") == whole[1:]
    assert "The path is empty" in await call.text("glob", pattern="*.py", path="")
    return {"path"}


async def of_grep(project: ToolProject) -> set[str]:
    call = project.call
    project.write_file("a.py", "x.y\nxzy\n")
    project.write_file("sub/b.txt", "x.y\n")

    async def found(**arguments: object) -> int:
        return int((await call.metadata("grep", pattern="x.y", **arguments))["number_of_matches"])

    assert await found() == await found(path=".") == await found(include="") == await found(literal_text=False) == 3
    assert (await found(path="sub"), await found(include="*.py"), await found(literal_text=True)) == (1, 2, 2)
    assert "The path is empty" in await call.text("grep", pattern="x", path="")
    return {"path", "include", "literal_text"}


async def of_holdfast_logs(project: ToolProject) -> set[str]:
    call = project.call

    async def count(**arguments: object) -> tuple[int, str]:
        lines = (await call("holdfast_logs", **arguments)).content.split("\n")
        return len(lines), lines[-1]

    assert await count() == await count(lines=0) == await count(lines=-1) == (50, "entry 120")
    assert await count(lines=1) == (1, "entry 120")
    assert await count(lines=100) == await count(lines=101) == (100, "entry 120")
    return {"lines"}


async def of_ls(project: ToolProject) -> set[str]:
    call = project.call
    project.write_file(".git/HEAD", "ref: refs/heads/main\n")
    project.write_file("a/b/c/d.txt", "")
    project.write_file("a/e.txt", "")
    names = ["a", "b", "c", "d.txt", "e.txt"]

    async def listed(**arguments: object) -> list[str]:
        lines = (await call("ls", **arguments)).content.split("\n")[1:]
        return [line.strip(" -").rstrip("/") for line in lines]

    assert await listed() == await listed(path=".") == await listed(depth=0) == await listed(ignore=[]) == names
    assert await listed(depth=-1) == names
    assert (await listed(depth=1), await listed(depth=2)) == (["a"], ["a", "b", "e.txt"])
    assert await listed(path="a/b") == ["c", "d.txt"]
    assert await listed(ignore=["b"]) == ["a", "e.txt"]
    assert await listed(ignore='["*.txt"]') == ["a", "b", "c"]
    assert call.permits[0].params == {"path": str(project.root), "ignore": [], "depth": 0}
    return {"path", "ignore", "depth"}


QUESTION: dict[str, object] = {"type": "yes_no", "question": "Now?", "description": "It matters."}
CHOICES = [{"id": "1", "label": "One"}, {"id": "2", "label": "Two", "description": "more"}]


async def of_question(project: ToolProject) -> set[str]:
    call = project.call
    call.answers = None
    outcome = await call("question", questions=[QUESTION])
    assert (outcome.content, outcome.is_error, outcome.stops_turn) == ("User cancelled this question", True, True)
    await call("question", questions=[QUESTION] * 2)
    await call("question", questions=[QUESTION] * 2, confirm_title="", confirm_description="")
    await call("question", questions=[QUESTION], confirm_title="Sure?", confirm_description="It goes out.")
    confirms = [(asked.confirm_title, asked.confirm_description) for asked in call.inquiries]
    both = ("Are these answers right?", "They are sent to the model together.")
    assert confirms == [("", ""), both, both, ("Sure?", "It goes out.")]
    assert "description is required" in await call.text("question", questions=[{**QUESTION, "description": ""}])
    single = {**QUESTION, "type": "single_choice", "label": "when"}
    assert "needs 2 to 5 choices" in await call.text("question", questions=[single])
    assert "needs 2 to 5 choices" in await call.text("question", questions=[{**single, "choices": [], "options": []}])
    for name in ("choices", "options"):
        await call("question", questions=[{**single, name: CHOICES}])
        (question,) = call.inquiries[-1].questions
        shown = [(choice.id, choice.label, choice.description) for choice in question.choices]
        assert shown == [("1", "One", ""), ("2", "Two", "more")]
        assert (question.label, question.description, question.type) == ("when", "It matters.", "single_choice")
    assert call.inquiries[0].questions[0].label == ""
    inner = {f"questions.{name}" for name in ("description", "label", "choices", "options")}
    nested = {"questions.choices.description", "questions.options.description"}
    return {"confirm_title", "confirm_description", *inner, *nested}


async def of_todos(project: ToolProject) -> set[str]:
    call = project.call
    plain = {"content": "Do it", "status": "in_progress"}
    shown = [(await call.metadata("todos", todos=[item]))["todos"][0]["active_form"] for item in (
        plain, {**plain, "active_form": ""}, {**plain, "active_form": "Doing it"},
    )]  # fmt: skip
    assert shown == ["Do it", "Do it", "Doing it"]
    stored = [operation.patch.todos for operation in call.operations if isinstance(operation, PatchSession)]
    assert [todos[0].active_form for todos in stored if todos] == shown
    return {"todos.active_form"}


async def of_view(project: ToolProject) -> set[str]:
    call = project.call
    project.write_file("f", "".join(f"line {number}\n" for number in range(1, 302)))

    async def shown(**arguments: object) -> tuple[str, str, str]:
        begin, *lines, end = (await call("view", file_path="f", **arguments)).content.split("\n")
        assert (begin, end) == ("<file>", "</file>")
        return lines[0], lines[-1], f"{call.permits[-1].params['offset']} {call.permits[-1].params['limit']}"

    whole = ("     1|line 1", "(101 more lines; continue with offset=200)", "0 200")
    assert await shown() == await shown(offset=0) == await shown(offset=-5) == whole
    one = ("     1|line 1", "(300 more lines; continue with offset=1)", "0 1")
    assert await shown(limit=1) == await shown(limit=0) == await shown(limit=-1) == one
    assert await shown(offset=300) == ("   301|line 301", "   301|line 301", "300 200")
    assert (await shown(offset=301))[0] == "(the file has only 301 lines)"
    assert await shown(offset=100, limit=201) == ("   101|line 101", "   301|line 301", "100 201")
    return {"offset", "limit"}


async def of_nothing(project: ToolProject) -> set[str]:
    return set()


ROWS: dict[str, Callable[[ToolProject], Awaitable[set[str]]]] = {
    "agent": of_agent,
    "agentic_fetch": of_agentic_fetch,
    "bash": of_bash,
    "download": of_download,
    "edit": of_edit,
    "fetch": of_fetch,
    "glob": of_glob,
    "grep": of_grep,
    "holdfast_info": of_nothing,
    "holdfast_logs": of_holdfast_logs,
    "job_kill": of_nothing,
    "job_output": of_job_output,
    "ls": of_ls,
    "multiedit": of_multiedit,
    "question": of_question,
    "todos": of_todos,
    "view": of_view,
    "web_fetch": of_nothing,
    "write": of_nothing,
}


def optional(struct: type[msgspec.Struct], above: str = "") -> Iterator[str]:
    """Return the names of the optional fields, prefixed with the names of the enclosing fields."""
    for field in msgspec.structs.fields(struct):
        name = f"{above}{field.name}"
        if not field.required:
            yield name
        for kind in get_args(get_args(field.type)[0] if get_args(field.type) else field.type):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield from optional(kind, f"{name}.")


@pytest.mark.parametrize("tool", sorted(ROWS))
async def test_optional_arguments_have_their_documented_defaults(project: ToolProject, tool: str) -> None:
    tried = await ROWS[tool](project)
    (found,) = [item for item in project.tools if item.spec.name == tool]
    assert tried == set(optional(arguments_of(found)))
    # Many models send null for omitted arguments although the schema does not allow it.
    properties = json.loads(found.spec.parameters)["properties"]
    assert all("null" not in json.dumps(properties[name]) for name in tried if "." not in name)


async def test_every_tool_has_a_row(project: ToolProject) -> None:
    assert {tool.spec.name for tool in project.tools} == set(ROWS)


async def test_null_equals_an_omitted_argument(project: ToolProject) -> None:
    call = project.call
    project.write_file("f", "x\n")
    calls: dict[str, dict[str, object]] = {
        "view": {"file_path": "f"},
        "ls": {},
        "grep": {"pattern": "x"},
        "glob": {"pattern": "f"},
        "holdfast_logs": {},
    }
    for tool, arguments in calls.items():
        (found,) = [item for item in project.tools if item.spec.name == tool]
        nulls = dict.fromkeys(optional(arguments_of(found)))
        assert await call.text(tool, **arguments, **nulls) == await call.text(tool, **arguments), tool
    assert "Wrong arguments" in await call.text("view", file_path=None)
    assert "Wrong arguments" in await call.text("view", file_path="f", colour=None)
