"""`holdfast demo`: shows the guarantees in half a minute with a real process and a real database."""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo_worker import COUNT, HELLO, LOOK, NOTES, STORY, TIDE, Command, Line
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

__all__ = ["Stage", "Story", "Worker", "command"]


# Driver of the demonstration: controls the worker process and prints its events.

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
            case RunEvent(change=change):
                if change.object.state == "active":
                    self._runs[change.object.session_id] = change.object.run_id
            case MessageDeltaEvent(payload=delta):
                self._count(delta.session_id)
                self._stage.stream(delta.text)
            case MessagePartEvent(payload=part):
                self._show_part(part.session_id, part.content)
            case RunCompleteEvent(change=change) if change.object.run_id not in self.story.ends:
                self.story.ends[change.object.run_id] = change.object
                self._stage.end(change.object)
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


# `holdfast demo`: shows the guarantees in half a minute with a real process and a real database.


@click.command("demo")
@click.option("--fast", is_flag=True, help="Without the pauses that make it pleasant to watch.")
@click.option("--keep", is_flag=True, help="Keep the directory with the database, and say where it is.")
@click.option("--worker", nargs=2, type=click.Path(path_type=Path), hidden=True, default=None)
def command(*, fast: bool, keep: bool, worker: tuple[Path, Path] | None) -> None:
    """See it work: a prompt, a cancel, a kill -9 and a recovery.

    Everything is real but the model, which plays a script: the process that is killed, the database it leaves
    behind, the tools that read and write a file. Nothing is needed, and nothing outside a temporary directory
    is touched.
    """
    pause = 0.002 if fast else 0.035
    if worker is not None:
        from holdfast.cli.demo_worker import serve

        serve(*worker, pause)
        return
    place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        finished = asyncio.run(_tell(place, fast=fast))
    except KeyboardInterrupt:
        finished = False
        Console().print("\n[dim]Stopped.[/dim]")
    finally:
        if keep:
            Console().print(f"[dim]Kept: {place} (the database is data/holdfast.db)[/dim]", soft_wrap=True)
        else:
            shutil.rmtree(place, ignore_errors=True)
    sys.exit(0 if finished else 130)


async def _tell(place: Path, *, fast: bool) -> bool:
    project, data = place / "project", place / "data"
    project.mkdir()
    (project / "notes.txt").write_text(NOTES, "utf-8")
    stage = Stage(Console(highlight=False), fast=fast)
    stage.title()
    worker = await Worker.start(stage, data, project, fast=fast)
    try:
        session = await worker.ask("session")
        await _a_prompt(stage, worker, session)
        await _a_cancel(stage, worker, session)
        worker = await _a_crash(stage, worker, session, data, project, fast=fast)
        await worker.stop()
    finally:
        worker.kill()
    stage.epilogue(worker.story)
    return True


async def _a_prompt(stage: Stage, worker: Worker, session: str) -> None:
    await stage.act("1", "A prompt", "It is on disk before it is answered. From then on it belongs to the workspace.")
    await stage.prompt(worker, session, "look", LOOK)
    await worker.end_of("look")
    stage.line("The model is scripted; the tools were real, and so is the file they changed.")


async def _a_cancel(stage: Stage, worker: Worker, session: str) -> None:
    await stage.act("2", "A cancel", "It stops all that was asked before it, and nothing that is asked later.")
    await stage.prompt(worker, session, "story", STORY)
    await worker.words("story", 18)
    await stage.prompt(worker, session, "again", "And another one after that.")
    began = time.perf_counter()
    covered = await worker.ask("cancel", session)
    stage.note("cancel", f"covers {covered.replace(' ', ' and ')}, stored in {_ms(began)}")
    await worker.end_of("story")
    await worker.end_of("again")
    await stage.prompt(worker, session, "hello", HELLO)
    await worker.end_of("hello")


async def _a_crash(stage: Stage, worker: Worker, session: str, data: Path, project: Path, *, fast: bool) -> Worker:
    await stage.act("3", "A crash", "One run is streaming, one prompt waits. Then the process is killed, with -9.")
    await stage.prompt(worker, session, "count", COUNT)
    await worker.words("count", 16)
    await stage.prompt(worker, session, "tide", TIDE)
    await worker.words("count", 24)
    worker.kill()
    code = await worker.gone()
    stage.note("kill -9", f"the process is gone ({signal.Signals(-code).name})")
    await stage.act("4", "A recovery", "A new process opens the same directory. Nobody asks anything again.")
    began = time.perf_counter()
    fresh = await Worker.start(stage, data, project, fast=fast, story=worker.story)
    await fresh.end_of("count")
    stage.note("recovered", f"{_ms(began)} after the start; what it had said so far is kept")
    await fresh.end_of("tide")
    return fresh


def _ms(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1000:.1f} ms"
