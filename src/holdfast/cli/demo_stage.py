"""Driver of the demonstration: controls the worker process and prints its events."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo_worker import Command, Line
from holdfast.domain.events import (
    Event,
    MessageDeltaEvent,
    MessagePartEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    decode_event,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import Part, ReasoningPart, TextPart, ToolCallPart
from holdfast.tasks import TaskOwner

__all__ = ["Stage", "Story", "Worker"]

_PATIENCE = 30.0
_COLOURS = {"completed": "green", "cancelled": "yellow", "interrupted": "magenta", "failed": "red"}


class Story:
    """Prompts and their outcomes, across both processes."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}
        self.ends: dict[str, RunComplete] = {}


class Stage:
    """Prints the demonstration, with colours and pauses on a terminal."""

    def __init__(self, console: Console, *, fast: bool) -> None:
        self.console = console
        self._pause = 0.0 if fast else 1.0
        self._column = 0

    def title(self) -> None:
        """Print the title."""
        self.console.print()
        self.console.print("[bold cyan]Holdfast[/] [dim]— a coding agent that holds on when you let go[/]")
        self.console.print("[dim]A tour with a scripted model. Everything else is real.[/]")

    async def act(self, number: str, name: str, text: str) -> None:
        """Print the heading of a section."""
        self.end_line()
        await asyncio.sleep(self._pause)
        self.console.print()
        self.console.print(Rule(f"[bold]{number} · {name}[/]", align="left", style="cyan"))
        self.console.print(f"[dim]{text}[/]")
        await asyncio.sleep(self._pause)

    async def prompt(self, worker: "Worker", session: str, run_id: str, text: str) -> None:
        """Send a prompt and print it."""
        worker.story.prompts[run_id] = text
        began = time.perf_counter()
        answer = await worker.ask("prompt", session, run_id, text)
        took = (time.perf_counter() - began) * 1000
        self.end_line()
        self.console.print(f"[bold blue]❯[/] {text}")
        self.note("accepted", f"{answer}: on disk in {took:.1f} ms")

    def note(self, word: str, text: str) -> None:
        """Print a labelled note."""
        self.end_line()
        line = Text.assemble("  ", (word, "cyan"), " ", (text, "dim"))
        line.truncate(self.console.width, overflow="ellipsis")
        self.console.print(line)

    def line(self, text: str) -> None:
        """Print a line of explanation."""
        self.end_line()
        self.console.print(f"  [dim]{text}[/]")

    def stream(self, text: str, *, style: str = "") -> None:
        """Print a piece of an answer: on the current line, or on a new one if it does not fit."""
        piece = text.replace("\n", " ")
        if self._column and self._column + len(piece) > self.console.width - 1:
            self.end_line()
        if not self._column:
            piece = "  " + piece.lstrip()
        self._column += len(piece)
        self.console.print(Text(piece, style=style), end="", soft_wrap=True)

    def end_line(self) -> None:
        """End a line that has been begun."""
        if self._column:
            self.console.print()
        self._column = 0

    def end(self, end: RunComplete) -> None:
        """Print the outcome of a run."""
        self.end_line()
        colour = _COLOURS[end.outcome]
        self.console.print(f"  [{colour}]● {end.outcome}[/] [dim]{end.run_id}[/]")

    def epilogue(self, story: Story) -> None:
        """Print the table of outcomes."""
        self.end_line()
        table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="dim")
        table.add_column("prompt")
        table.add_column("its one end")
        for run_id, text in story.prompts.items():
            outcome = story.ends[run_id].outcome
            table.add_row(text, f"[{_COLOURS[outcome]}]{outcome}[/]")
        self.console.print()
        self.console.print(Rule("[bold]Every prompt ended exactly once[/]", align="left", style="cyan"))
        self.console.print(table)
        self.console.print()
        self.console.print("[dim]Read on: README.md, ARCHITECTURE.md, docs/promises.md[/]")


class Worker:
    """The worker process, controlled over its standard streams."""

    def __init__(self, stage: Stage, process: asyncio.subprocess.Process, story: Story) -> None:
        self.story = story
        self._stage = stage
        self._process = process
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._words: dict[str, int] = {}
        self._runs: dict[str, str] = {}
        self._tasks = TaskOwner()

    @classmethod
    async def start(
        cls, stage: Stage, data: Path, project: Path, *, fast: bool, story: Story | None = None
    ) -> "Worker":
        """Start a worker process."""
        arguments = [sys.executable, "-m", "holdfast", "demo", "--worker", str(data), str(project)]
        process = await asyncio.create_subprocess_exec(
            *arguments,
            *(["--fast"] if fast else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        worker = cls(stage, process, story or Story())
        worker._tasks.start(worker._listen(), name="listen")
        return worker

    async def ask(self, do: str, session: str = "", run_id: str = "", text: str = "") -> str:
        """Send a command and return its response."""
        assert self._process.stdin is not None
        command = Command(do, SessionId(session), RunId(run_id), text)
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        async with asyncio.timeout(_PATIENCE):
            return await self._answers.get()

    async def end_of(self, run_id: str) -> None:
        """Wait for the end of a run."""
        await self._until(lambda: run_id in self.story.ends)

    async def words(self, run_id: str, count: int) -> None:
        """Wait until this many pieces of an answer have arrived."""
        await self._until(lambda: self._words.get(run_id, 0) >= count)

    async def stop(self) -> None:
        """Close the worker's input and wait until it has exited."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(_PATIENCE):
            await self._process.wait()
        await self._tasks.drain()

    def kill(self) -> None:
        """Kill the process."""
        if self._process.returncode is None:
            self._process.kill()

    async def gone(self) -> int:
        """Wait for the process and return its exit code."""
        code = await self._process.wait()
        await self._tasks.drain()
        return code

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            heard = msgspec.json.decode(line, type=Line)
            if bytes(heard.event):
                self._hear(bytes(heard.event))
            else:
                self._answers.put_nowait(heard.answer)
            self._changed.set()
        self._changed.set()

    def _hear(self, body: bytes) -> None:
        if msgspec.json.decode(body, type=_Tagged).type in ("hello", "gap"):
            return
        self._show(decode_event(body))

    def _show(self, event: Event) -> None:
        match event:
            case RunEvent(payload=change):
                if change.payload.state == "active":
                    self._runs[change.payload.session_id] = change.payload.run_id
            case MessageDeltaEvent(payload=delta):
                self._count(delta.session_id)
                self._stage.stream(delta.text)
            case MessagePartEvent(payload=part):
                self._show_part(part.session_id, part.content)
            case RunCompleteEvent(payload=change) if change.payload.run_id not in self.story.ends:
                self.story.ends[change.payload.run_id] = change.payload
                self._stage.end(change.payload)
            case _:
                pass

    def _show_part(self, session: str, part: Part) -> None:
        match part:
            case TextPart(data=text):
                self._count(session)
                self._stage.stream(text.text)
            case ReasoningPart(data=thought) if not thought.finished_at:
                self._stage.end_line()
                self._stage.stream(thought.thinking, style="italic dim")
            case ReasoningPart():
                self._stage.end_line()
            case ToolCallPart(data=call) if call.finished:
                self._stage.note(f"tool {call.name}", call.input)
            case _:
                pass

    def _count(self, session: str) -> None:
        run = self._runs.get(session, "")
        self._words[run] = self._words.get(run, 0) + 1


class _Tagged(msgspec.Struct, frozen=True):
    type: str
