"""The cost of file tool calls in a repository of 6,000 files, beside the bare program."""

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import median
from typing import cast

import uvloop

from bench.figures import Figure
from bench.in_process import directory
from holdfast.domain.files import ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.store_operations import MarkRead, Operation, Receipt
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.registry import BuiltinTools
from holdfast.workspace.search.search import GrepRequest, Searcher, SearchScope

__all__ = ["measure"]

FILES = 6_000
ROUNDS = 15
_WORDS = tuple("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi".split())  # noqa: SIM905


class _Context:
    """A tool context that records read marks and does nothing else."""

    session_id, run_id = SessionId("s"), RunId("r")
    message_id, tool_call_id = MessageId("m"), ToolCallId("c")
    takes_images = False

    def __init__(self, root: Path) -> None:
        self.workspace_path = str(root)
        self.environment: Mapping[str, str] = dict(os.environ)
        self._marks: dict[str, ReadMark] = {}

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def record(self, *operations: Operation) -> Receipt:
        for operation in operations:
            if isinstance(operation, MarkRead):
                self._marks[operation.mark.path] = operation.mark
        return Receipt()

    async def read_mark(self, path: str) -> ReadMark | None:
        return self._marks.get(path)

    async def permit(self, permit: Permit) -> None:
        return

    def say(self, text: str) -> None:
        return


def _build(root: Path) -> None:
    rng = random.Random(6)
    for number in range(FILES):
        folder = root / f"d{number % 60:02}" / f"e{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(rng.choices(_WORDS, k=8)) for _ in range(60)]
        lines[number % 60] += " needle" if number % 300 == 0 else ""
        (folder / f"f{number}.txt").write_text("\n".join(lines) + "\n")
    (root / ".gitignore").write_text("build/\n*.log\n")
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


def _bare(*command: str, root: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=root, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


async def _tools(root: Path) -> list[Figure]:
    tools = {tool.spec.name: tool for tool in await BuiltinTools().current()}
    context = _Context(root)
    name = "d00/e0/f0.txt"

    async def call(tool: str, **arguments: object) -> ToolOutcome:
        return await tools[tool].run(cast(ToolContext, context), dict(arguments))

    async def edit() -> object:
        texts = ("first", "second")
        text = (root / name).read_text()
        old, new = texts if texts[0] in text else texts[::-1]
        return await call("edit", file_path=name, old_string=old, new_string=new)

    (root / name).write_text("first\n" + (root / name).read_text())
    grep = ["rg", "-n", "needle"] if shutil.which("rg") else ["git", "grep", "-n", "needle"]
    plain = ["grep", "-rn", "needle", "."]
    found = (await call("grep", pattern="needle")).content
    assert "Found 20 matches" in found, found
    cases: list[tuple[str, Callable[[], Awaitable[object]], list[str]]] = [
        ("view of a small file", lambda: call("view", file_path=name), ["cat", name]),
        ("edit of a small file", edit, ["sed", "-i", "s/nothing/at all/", name]),
        ("grep, the best there is here", lambda: call("grep", pattern="needle"), grep),
        ("glob", lambda: call("glob", pattern="**/f59*.txt"), ["git", "ls-files", "-co", "--exclude-standard"]),
        ("ls", lambda: call("ls"), ["ls", "-R"]),
    ]
    figures = [await _figure(title, work, command, root) for title, work, command in cases]
    where = SearchScope(str(root), str(root), context.environment, 60)
    own = Searcher(uses_ripgrep=False)
    figures.append(await _figure("grep, our own walk", lambda: own.grep(where, GrepRequest("needle")), plain, root))
    return figures


async def _figure(title: str, work: Callable[[], Awaitable[object]], command: list[str], root: Path) -> Figure:
    await work()
    pairs = [(await _timed(work), await asyncio.to_thread(_bare, *command, root=root)) for _ in range(ROUNDS)]
    values, limits = zip(*pairs, strict=True)
    return Figure(f"{title}, {FILES:,} files", median(values), "ms", median(limits), " ".join(command))


def measure() -> list[Figure]:
    with directory() as path:
        _build(path)
        return uvloop.run(_tools(path))
