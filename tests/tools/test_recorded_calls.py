"""Every branch of every tool with everything that it returns, requests, records and changes, compared as a whole."""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import PermissionDenied, ToolError
from holdfast.domain.files import ReadMark
from holdfast.domain.sessions import Todo
from holdfast.domain.store_operations import MarkRead
from holdfast.domain.tools import Permit, Tool, ToolContext
from holdfast.tools import download, fetch, logs, ls, view
from holdfast.tools.agent import Agent
from holdfast.tools.agentic_fetch import AgenticFetch, WebFetch
from holdfast.tools.question import QuestionTool
from holdfast.tools.registry import BuiltinTools, ToolNeeds
from recorded_values import assert_recorded, brief, plain
from tools.direct_calls import DirectCaller
from workspace.web_server import Visit, WebServer, web_server

RECORDED = Path(__file__).with_name("recorded")
Step: TypeAlias = "tuple[str, Mapping[str, object]] | Callable[[], object]"
"""A call, or something that happens between two calls."""


class Recording:
    """Calls tools one after the other and records what each call does."""

    def __init__(self, root: Path, tools: Sequence[Tool]) -> None:
        self.root = root
        self.call = DirectCaller(root, tools)
        self.call.environment = {"HOME": str(root.parent / "home")}
        self.records: list[dict[str, Any]] = []
        self._files: dict[str, str] = {}

    async def run(self, *steps: Step) -> None:
        """Make the calls."""
        self._files = self._contents()
        for step in steps:
            if callable(step):
                step()
                self._files = self._contents()
            else:
                await self._call(*step)

    async def _call(self, tool: str, arguments: Mapping[str, object]) -> None:
        call = self.call
        call.now += 1_500
        for seen in (call.permits, call.operations, call.output, call.subagent_tasks, call.inquiries):
            seen.clear()
        try:
            outcome = await call(tool, **arguments)
            result: Any = plain(outcome)["ToolOutcome"]
            if outcome.metadata:
                result["metadata"] = json.loads(outcome.metadata)
        except PermissionDenied as error:
            result = {"denied": str(error), "stops_turn": error.stops_turn}
        except ToolError as error:
            result = {"error": str(error)}
        before, self._files = self._files, self._contents()
        changed = {name: self._files.get(name) for name in {*before, *self._files}}
        record = {
            "call": {tool: arguments},
            "result": result,
            "permits": list(call.permits),
            "operations": list(call.operations),
            "output": list(call.output),
            "subagents": list(call.subagent_tasks),
            "questions": list(call.inquiries),
            "files": {name: text for name, text in changed.items() if text != before.get(name)},
        }
        self.records.append(brief(record))

    def _contents(self) -> dict[str, str]:
        """Return mode and content of each file below the project and beside it."""
        found = {}
        for folder, _, names in os.walk(self.root.parent):
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    text = path.read_bytes()[:300].decode("latin-1")
                    found[os.path.relpath(path, self.root)] = f"{path.stat().st_mode:o} {text}"
        return found

    def assert_recorded(self, name: str, **names: str) -> None:
        """Compare the calls with the recorded ones."""
        replaced = {**{value: key for key, value in names.items()}, str(self.root.parent): "TOP"}
        assert_recorded(RECORDED / f"{name}.json", self.records, replaced)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o022)
    root = Path(os.path.realpath(tmp_path)) / "project"
    for name in ("project/sub", "home", "skills"):
        (root.parent / name).mkdir(parents=True)
    yield root
    os.umask(before)


def writes(path: Path, content: str | bytes) -> Callable[[], object]:
    """Write a file between two calls."""
    return lambda: path.write_bytes(content if isinstance(content, bytes) else content.encode())


async def recording(root: Path, needs: ToolNeeds | None = None, *more: Tool) -> Recording:
    return Recording(root, [*await BuiltinTools(needs).current(), *more])


class Skill:
    name, description = "sharp", "cuts"


async def remark_on(path: str) -> str:
    return f"remark on {path}" if path.endswith(".py") else ""


async def test_view(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_MAX_BYTES", 40)
    monkeypatch.setattr(view, "_MAX_LINE_LENGTH", 12)
    monkeypatch.setattr(view, "_MAX_FILE_SIZE", 100)
    skills = root.parent / "skills"
    needs = ToolNeeds(
        readable=lambda: [str(skills)],
        skill_at=lambda path: Skill() if path.endswith("SKILL.md") else None,
        on_view=remark_on,
    )
    seen = await recording(root, needs)
    (root / "a.py").write_bytes(b"one\r\ntwo\r\nthree\r\nfour\r\nfive\r\n")
    (root / "long.txt").write_text("x" * 12 + "\n" + "y" * 13 + "\n")
    (root / "wide.txt").write_text("é" * 7 + "\n")
    (root / "much.txt").write_text("abcdefghi\n" * 4 + "j\n")
    (root / "large.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    (root / "large_line").write_text("x" * 101)
    (root / "empty").touch()
    (root / "binary").write_bytes(b"a\0b")
    (root / "utf16.txt").write_bytes("\ufeffwide é\n".encode("utf-16-le"))
    (root / "good.PNG").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "bad.gif").write_bytes(b"GIF7")
    (root / "huge.jpg").write_bytes(b"\xff\xd8\xff" + b"x" * 38)
    (root / "link").symlink_to("a.py")
    (root.parent / "outside").write_text("out\n")
    (skills / "SKILL.md").write_text("".join(f"rule number {number}\n" for number in range(5)))

    def shows_images() -> None:
        seen.call.takes_images = True

    names = ("a.py", "long.txt", "wide.txt", "much.txt", "empty", "binary", "utf16.txt", "link", "sub", "missing")
    places = (str(root.parent / "outside"), str(skills / "SKILL.md"), "~/x", "../outside", str(root / "a.py"))
    await seen.run(*(("view", {"file_path": name}) for name in (*names, *places, "a_.py", "A.PY", "a.py/x", "", "x\0")))
    for bounds in (
        {"offset": 1, "limit": 2},
        {"offset": 4},
        {"offset": 5},
        {"offset": 6},
        {"limit": 5},
        {"offset": -1},
    ):
        await seen.run(("view", {"file_path": "a.py", **bounds}))
    for bounds in ({}, {"limit": 3}, {"offset": 18}, {"offset": 20}, {"limit": 40}):
        await seen.run(("view", {"file_path": "large.txt", **bounds}))
    await seen.run(("view", {"file_path": "large_line"}), ("view", {"file_path": str(skills / "SKILL.md"), "limit": 2}))
    pictures: list[Step] = [("view", {"file_path": name}) for name in ("good.PNG", "bad.gif", "huge.jpg")]
    await seen.run(*pictures, shows_images, *pictures)
    seen.assert_recorded("view")


async def test_write_and_edit(root: Path) -> None:
    seen = await recording(root, ToolNeeds(on_change=remark_on))
    outside = root.parent / "outside"
    outside.write_text("out\n")
    call = seen.call

    def edit(name: str, old: str = "", new: str = "", **more: object) -> Step:
        return "edit", {"file_path": name, "old_string": old, "new_string": new, **more}

    def many(name: str, *pieces: tuple[str, str]) -> Step:
        return "multiedit", {"file_path": name, "edits": [{"old_string": a, "new_string": b} for a, b in pieces]}

    def refuse(permit: Permit) -> None:
        raise PermissionDenied("no", stops_turn=True)

    def refuses(value: Callable[[Permit], None]) -> Callable[[], object]:
        return lambda: setattr(call, "on_permit", value)

    await seen.run(
        ("write", {"file_path": "new/a.py", "content": "one\ntwo\n"}),
        ("write", {"file_path": "new/a.py", "content": "one\ntwo\n"}),
        ("write", {"file_path": "new/a.py", "content": "one\n2\n"}),
        ("write", {"file_path": "new/a.py", "content": ""}),
        writes(root / "unread", "x\n"),
        ("write", {"file_path": "unread", "content": "y"}),
        ("view", {"file_path": "unread"}),
        writes(root / "unread", "changed\n"),
        ("write", {"file_path": "unread", "content": "y"}),
        writes(root / "dos.txt", "one\r\ntwo\r\n"),
        ("view", {"file_path": "dos.txt"}),
        ("write", {"file_path": "dos.txt", "content": "1\n2\n"}),
        ("write", {"file_path": "dos.txt", "content": "1\r\n3\n"}),
        ("write", {"file_path": "dos.txt", "content": "no line end"}),
        ("write", {"file_path": "sub", "content": "x"}),
        ("write", {"file_path": str(outside), "content": "x"}),
        ("view", {"file_path": str(outside)}),
        ("write", {"file_path": "../outside", "content": "x"}),
        ("write", {"file_path": "sub/bad", "content": "\ud800"}),
        ("write", {"file_path": "dos.txt/below", "content": "x"}),
        refuses(refuse),
        ("write", {"file_path": "refused/a", "content": "x"}),
        edit("new/a.py", "", "x"),
        edit("dos.txt", "no", "some"),
        refuses(lambda _: None),
        edit("b.py", "", "def f():\n    return 1\n\n\ndef g():\n    return 1\n"),
        edit("b.py", "", "x"),
        edit("b.py", "return 1", "return 2"),
        edit("b.py", "return 1", "return 2", replace_all=True),
        edit("b.py", "\treturn 2\n\n\ndef g", "\treturn 3\n\n\ndef g"),
        edit("b.py", "def f", "def h"),
        edit("b.py", "def h", "def h"),
        edit("b.py", "def x():\n    return 3", ""),
        edit("b.py", "completely different"),
        edit("missing", "a", "b"),
        edit("sub", "a", "b"),
        many("c.py", ("", "one\ntwo\n"), ("one", "1"), ("three", "3"), ("two", "2"), ("", "x")),
        many("c.py", ("1", "one"), ("1", "uno"), ("2", "two")),
        many("c.py", ("  one", "  1"), ("two", "2")),
        many("c.py", ("nothing", "x"), ("none", "y")),
        many("c.py", ("1", "2"), ("2\n2", "1\n2")),
        many("c.py", ("", "x")),
        many("missing", ("x", "y")),
        ("multiedit", {"file_path": "c.py", "edits": []}),
        ("write", {"file_path": "c.py", "colour": "red"}),
        ("write", {"file_path": "c.py", "content": 1}),
        ("multiedit", {"file_path": "c.py", "edits": [{"old_string": "x"}]}),
    )
    seen.assert_recorded("write_and_edit")


async def test_change_of_a_file_that_was_read_before_digests_were_stored(root: Path) -> None:
    """Such a mark counts if the file is not younger than it, to the millisecond."""
    seen = await recording(root)
    path = root / "f"
    path.write_text("x\n")
    os.utime(path, ns=(10**18, 10**18 + 999_999))
    moment = 10**12
    for read_at in (moment - 1, moment):
        mark = ReadMark(seen.call.session_id, str(path), read_at)
        await seen.call.record(MarkRead(mark))
        await seen.run(("edit", {"file_path": "f", "old_string": "x", "new_string": "y"}))
    assert ["error" in record["result"] for record in seen.records] == [True, False]


async def test_ls(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ls, "_MAX_ITEMS", 9)
    monkeypatch.setattr(ls, "_MAX_ITEMS_ELSEWHERE", 4)
    seen = await recording(root)
    for name in ("b/c/d/e", "node_modules/x", "empty"):
        (root / name).mkdir(parents=True)
    for name in ("b/f.txt", "b/c/g.log", "b/c/d/h", "z\n", ".gitignore", ".env"):
        (root / name).write_text("*.log\n")
    (root / "link").symlink_to("b")
    (root / "broken").symlink_to("nothing\nhere")
    listings: list[Mapping[str, object]] = [
        {},
        {"depth": 1},
        {"path": "b"},
        {"path": "b", "depth": 3},
        {"path": "b", "ignore": ["c"]},
        {"path": "b", "ignore": ["*", "!c/"]},
        {"path": "empty"},
        {"path": "node_modules"},
        {"path": "link"},
        {"path": ".."},
        {"path": "b/f.txt"},
        {"path": "nothing"},
        {"path": "b/f.txt/x"},
        {"path": "b", "depth": -2},
    ]
    calls: list[Step] = [("ls", arguments) for arguments in listings]
    await seen.run(*calls, (root / ".git").mkdir, *calls)
    seen.assert_recorded("ls")


def choice(name: str, **more: str) -> dict[str, object]:
    return {"id": name, "label": f"Label {name}", **more}


async def test_questions(root: Path) -> None:
    seen = Recording(root, [QuestionTool()])
    both = [choice("a", description="first"), choice("b")]
    kinds: Mapping[str, Mapping[str, object]] = {
        "yes_no": {},
        "free_text": {"label": "word"},
        "single_choice": {"choices": both},
        "multi_choice": {"options": both, "label": "some"},
    }
    asked: list[dict[str, object]] = [
        {"type": kind, "question": f"Which {kind}?", "description": f"About {kind}.", **more}
        for kind, more in kinds.items()
    ]
    answers = (
        QuestionAnswer("q", yes=True, notes={"_question": " noted ", "a": "on a", "b": " "}),
        QuestionAnswer("q", fill_in_text=" free "),
        QuestionAnswer("q", selected_ids=("a",)),
        QuestionAnswer("q", selected_ids=("b", "é"), fill_in_text="more", notes={}),
    )

    def answer(*given: QuestionAnswer) -> Callable[[], object]:
        return lambda: setattr(seen.call, "answers", given)

    await seen.run(
        ("question", {"questions": asked}),
        answer(*answers),
        ("question", {"questions": asked, "confirm_title": "Sure?"}),
        answer(answers[0]),
        ("question", {"questions": asked[:1], "confirm_description": "Sent."}),
        answer(QuestionAnswer("q", yes=False), QuestionAnswer("q")),
        ("question", {"questions": asked[:2]}),
        ("question", {"questions": [{**asked[0], "type": "essay"}]}),
    )
    seen.assert_recorded("questions")


async def test_todos(root: Path) -> None:
    stored: list[Todo] = []

    async def known(_: ToolContext) -> Sequence[Todo]:
        return tuple(stored)

    def item(content: str, status: str, **more: str) -> dict[str, str]:
        return {"content": content, "status": status, **more}

    lists: list[list[dict[str, str]]] = [
        [],
        [item("a", "completed"), item("b", "pending")],
        [item("a", "completed"), item("b", "completed"), item("c", "in_progress", active_form="Doing c")],
        [item("c", "in_progress"), item("d", "in_progress", active_form="Doing d"), item("e", "pending")],
        [item("c", "in_progress", active_form="Still c")],
        [item("c", "completed"), item("d", "completed")],
        [item("x", "paused")],
        [item("", "pending")],
    ]
    seen = await recording(root)
    await seen.run(*(("todos", {"todos": todos}) for todos in lists))
    seen.records.append({"with a stored list": True})
    other = await recording(root, ToolNeeds(known_todos=known))
    stored.append(Todo("c", "in_progress", "c"))
    await other.run(*(("todos", {"todos": todos}) for todos in lists[1:6]))
    seen.records += other.records
    seen.assert_recorded("todos")


async def test_sub_agents(root: Path) -> None:
    offered = [("Reviewer", "reads code"), ("tester", "runs tests")]
    seen = Recording(root, [Agent(lambda: offered), AgenticFetch()])
    await seen.run(
        *(("agent", {"prompt": "look", "agent": name}) for name in ("", "REVIEWER", " @tester", "nobody")),
        ("agent", {"prompt": " "}),
        offered.clear,
        ("agent", {"prompt": "look", "agent": "tester"}),
        ("agentic_fetch", {"prompt": "why?"}),
        ("agentic_fetch", {"prompt": "why?", "url": " HTTPS://Example.org:443/a#b "}),
        ("agentic_fetch", {"prompt": "why?", "url": "example.org"}),
        ("agentic_fetch", {"prompt": ""}),
    )
    seen.assert_recorded("sub_agents")


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


def page(server: WebServer, path: str, body: bytes, *headers: str, status: int = 200) -> None:
    async def show(visit: Visit) -> None:
        await visit.answer(body, status, headers=headers)

    server.pages[path] = show


PAGES: Mapping[str, tuple[bytes, tuple[str, ...], int]] = {
    "/text": (b"plain <b>text</b>", ("Content-Type: text/plain; charset=utf-8",), 200),
    "/latin": (b"caf\xe9", ("Content-Type: text/plain; charset=latin-1",), 200),
    "/odd": (b"caf\xc3\xa9", ("Content-Type: text/plain; charset=klingon",), 200),
    "/html": (b"<h1>Head</h1><p>a <b>bold</b> word</p>", ("Content-Type: text/html",), 200),
    "/untyped": (b"\n <p>a <i>page</i></p>", (), 200),
    "/untyped-text": (b"a < b", (), 200),
    "/json": (b'{"a": "<b>"}', ("Content-Type: application/problem+json",), 200),
    "/binary": (b"\0\1", ("Content-Type: application/octet-stream",), 200),
    "/empty": (b" \n", ("Content-Type: text/plain",), 200),
    "/at-bound": (b"x" * 40, ("Content-Type: text/plain",), 200),
    "/beyond-bound": ("é".encode() * 20 + b"y", ("Content-Type: text/plain",), 200),
    "/beyond-raw": (b"<p>" + b"z" * 80 + b"</p>", ("Content-Type: text/html",), 200),
    "/gone": (b"gone", ("Content-Type: text/plain",), 410),
    "/created": (b"created", ("Content-Type: text/plain",), 201),
}


async def test_web(root: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and downloads of every kind, size and status."""
    monkeypatch.setattr(fetch, "_MAX_CONTENT", 40)
    monkeypatch.setattr(fetch, "_MAX_RAW", 60)
    monkeypatch.setattr(download, "MAX_FILE_BYTES", 40)
    for path, (body, headers, status) in PAGES.items():
        page(web, path, body, *headers, status=status)
    web.redirect("/moved", "/text")
    web.redirect("/binary-moved", "/binary")
    seen = await recording(root, ToolNeeds(download_limit=85), WebFetch())
    paths = (*PAGES, "/moved", "/missing")
    await seen.run(*(("fetch", {"url": f"{web.url}{path}"}) for path in paths))
    forms = ("text", "html", "pdf")
    await seen.run(*(("fetch", {"url": f"{web.url}/html", "format": form, "timeout": 7}) for form in forms))
    await seen.run(("fetch", {"url": "ftp://x"}), ("web_fetch", {"url": f"{web.url}/text"}))
    saved = (
        "/text",
        "/binary",
        "/at-bound",
        "/beyond-bound",
        "/beyond-raw",
        "/gone",
        "/created",
        "/binary-moved",
        "/untyped",
    )
    await seen.run(*(("download", {"url": f"{web.url}{path}", "file_path": f"new{path}"}) for path in saved))
    await seen.run(
        ("download", {"url": f"{web.url}/text", "file_path": "new/text"}),
        ("download", {"url": f"{web.url}/text", "file_path": "sub"}),
        ("download", {"url": f"{web.url}/text", "file_path": "../beside", "timeout": 1_000}),
        ("download", {"url": "nowhere", "file_path": "x"}),
    )
    seen.assert_recorded("web", URL=web.url)


async def test_reports(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_LINE_LENGTH", 30)
    monkeypatch.setattr(logs, "_LINES", 3)
    monkeypatch.setattr(logs, "_MAX_LINES", 5)

    async def facts(context: ToolContext) -> Mapping[str, Sequence[str]]:
        return {"models": ["large = m", "api_key = sk-1234567890abcdef1234"], "mcp": []}

    log = root / "log"
    seen = await recording(root, ToolNeeds(log_file=lambda: log, facts=facts))
    monkeypatch.setattr("holdfast.tools.info.__version__", "VERSION")
    await seen.run(
        ("holdfast_info", {}),
        ("holdfast_logs", {}),
        writes(log, "1\n\n2\npassword=hunter2secret\n4\n5\n6 " + "x" * 28 + "\n7 " + "x" * 29 + "\n"),
        *(("holdfast_logs", {"lines": lines}) for lines in (0, 1, 4, 5, 6)),
    )
    seen.assert_recorded("reports")
    bare = await recording(root)
    await bare.run(("holdfast_info", {}), ("holdfast_logs", {}))
    assert [list(record["result"]) for record in bare.records] == [["content"], ["error"]]
