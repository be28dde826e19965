"""`holdfast demo`: shows the guarantees in half a minute with a real process and a real database.

This process controls a worker (`demo_worker.py`) over its standard streams, prints the worker's events, kills it and
starts another one on the same database. Only the model is scripted.
"""

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

from holdfast.cli.demo_worker import COUNT, HELLO, LIST_PROMPT, LONG_PROMPT, NOTES, TIDE, WorkerCommand, WorkerOutput
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

__all__ = ["DemoPrinter", "DemoRecord", "Worker", "command"]


_TIMEOUT = 30.0
_COLOURS = {"completed": "green", "cancelled": "yellow", "interrupted": "magenta", "failed": "red"}


class DemoRecord:
    """Prompts and their outcomes, across both worker processes."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}
        self.ends: dict[str, RunComplete] = {}


class DemoPrinter:
    """Prints the demonstration, with colours and pauses on a terminal."""

    def __init__(self, console: Console, *, fast: bool) -> None:
        self.console = console
        self._pause = 0.0 if fast else 1.0
        self._column = 0

    def title(self) -> None:
        """Print the title."""
        self.console.print()
        self.console.print("[bold cyan]Holdfast[/] [dim]— a coding agent that holds on when you let go[/]")
        self.console.print("[dim]A demonstration with a scripted model. Everything else is real.[/]")

    async def section(self, number: str, name: str, text: str) -> None:
        """Print the heading of a section."""
        self.end_line()
        await asyncio.sleep(self._pause)
        self.console.print()
        self.console.print(Rule(f"[bold]{number} · {name}[/]", align="left", style="cyan"))
        self.console.print(f"[dim]{text}[/]")
        await asyncio.sleep(self._pause)

    async def prompt(self, worker: "Worker", session: str, run_id: str, text: str) -> None:
        """Send a prompt and print it."""
        worker.record.prompts[run_id] = text
        began = time.perf_counter()
        answer = await worker.send("prompt", session, run_id, text)
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

    def summary(self, record: DemoRecord) -> None:
        """Print the table of outcomes."""
        self.end_line()
        table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="dim")
        table.add_column("prompt")
        table.add_column("outcome")
        for run_id, text in record.prompts.items():
            outcome = record.ends[run_id].outcome
            table.add_row(text, f"[{_COLOURS[outcome]}]{outcome}[/]")
        self.console.print()
        self.console.print(Rule("[bold]Every prompt ended exactly once[/]", align="left", style="cyan"))
        self.console.print(table)
        self.console.print()
        self.console.print("[dim]More: README.md, ARCHITECTURE.md, docs/promises.md[/]")


class _Tagged(msgspec.Struct, frozen=True):
    """The type of an event, decoded before the event itself: the worker also forwards `hello` and `gap`."""

    type: str


class Worker:
    """The worker process, controlled over its standard streams."""

    def __init__(self, printer: DemoPrinter, process: asyncio.subprocess.Process, record: DemoRecord) -> None:
        self.record = record
        self._printer = printer
        self._process = process
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._pieces: dict[str, int] = {}
        self._runs: dict[str, str] = {}
        self._tasks = TaskOwner()

    @classmethod
    async def start(
        cls, printer: DemoPrinter, data: Path, project: Path, *, fast: bool, record: DemoRecord | None = None
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
        worker = cls(printer, process, record or DemoRecord())
        worker._tasks.start(worker._read_output(), name="listen")
        return worker

    async def send(self, do: str, session: str = "", run_id: str = "", text: str = "") -> str:
        """Send a command and return its response."""
        assert self._process.stdin is not None
        command = WorkerCommand(do, SessionId(session), RunId(run_id), text)
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        async with asyncio.timeout(_TIMEOUT):
            return await self._answers.get()

    async def wait_for_end(self, run_id: str) -> None:
        """Wait for the end of a run."""
        await self._wait_until(lambda: run_id in self.record.ends)

    async def wait_for_pieces(self, run_id: str, count: int) -> None:
        """Wait until this many pieces of the text of a run have arrived."""
        await self._wait_until(lambda: self._pieces.get(run_id, 0) >= count)

    async def stop(self) -> None:
        """Close the worker's input and wait until it has exited."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(_TIMEOUT):
            await self._process.wait()
        await self._tasks.drain()

    def kill(self) -> None:
        """Kill the process."""
        if self._process.returncode is None:
            self._process.kill()

    async def wait_for_exit(self) -> int:
        """Wait for the process and return its exit code."""
        code = await self._process.wait()
        await self._tasks.drain()
        return code

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_TIMEOUT):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            output = msgspec.json.decode(line, type=WorkerOutput)
            # A line contains either an event or the response to a command.
            if bytes(output.event):
                self._handle_event(bytes(output.event))
            else:
                self._answers.put_nowait(output.answer)
            self._changed.set()
        self._changed.set()

    def _handle_event(self, body: bytes) -> None:
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
                self._printer.stream(delta.text)
            case MessagePartEvent(payload=part):
                self._show_part(part.session_id, part.content)
            case RunCompleteEvent(change=change) if change.object.run_id not in self.record.ends:
                self.record.ends[change.object.run_id] = change.object
                self._printer.end(change.object)
            case _:
                pass

    def _show_part(self, session: str, part: Part) -> None:
        match part:
            case TextPart(data=text):
                self._count(session)
                self._printer.stream(text.text)
            case ReasoningPart(data=thought) if not thought.finished_at:
                self._printer.end_line()
                self._printer.stream(thought.thinking, style="italic dim")
            case ReasoningPart():
                self._printer.end_line()
            case ToolCallPart(data=call) if call.finished:
                self._printer.note(f"tool {call.name}", call.input)
            case _:
                pass

    def _count(self, session: str) -> None:
        run = self._runs.get(session, "")
        self._pieces[run] = self._pieces.get(run, 0) + 1


@click.command("demo")
@click.option("--fast", is_flag=True, help="Omit the pauses.")
@click.option("--keep", is_flag=True, help="Keep the directory with the database and print its path.")
@click.option("--worker", nargs=2, type=click.Path(path_type=Path), hidden=True, default=None)
def command(*, fast: bool, keep: bool, worker: tuple[Path, Path] | None) -> None:
    """Demonstrate a prompt, a cancel, a kill -9 and a recovery.

    Only the model is scripted. The process that is killed, its database, and the tools that read and write a file
    are real. No key and no network are needed, and only a temporary directory is changed.
    """
    pause = 0.002 if fast else 0.035
    if worker is not None:
        from holdfast.cli.demo_worker import serve

        serve(*worker, pause)
        return
    directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        finished = asyncio.run(_run_demo(directory, fast=fast))
    except KeyboardInterrupt:
        finished = False
        Console().print("\n[dim]Stopped.[/dim]")
    finally:
        if keep:
            Console().print(f"[dim]Kept: {directory} (the database is data/holdfast.db)[/dim]", soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(0 if finished else 130)


async def _run_demo(directory: Path, *, fast: bool) -> bool:
    project, data = directory / "project", directory / "data"
    project.mkdir()
    (project / "notes.txt").write_text(NOTES, "utf-8")
    printer = DemoPrinter(Console(highlight=False), fast=fast)
    printer.title()
    worker = await Worker.start(printer, data, project, fast=fast)
    try:
        session = await worker.send("session")
        await _show_prompt(printer, worker, session)
        await _show_cancel(printer, worker, session)
        worker = await _show_crash(printer, worker, session, data, project, fast=fast)
        await worker.stop()
    finally:
        worker.kill()
    printer.summary(worker.record)
    return True


async def _show_prompt(printer: DemoPrinter, worker: Worker, session: str) -> None:
    await printer.section(
        "1", "A prompt", "It is stored before the response. From then on it belongs to the workspace."
    )
    await printer.prompt(worker, session, "look", LIST_PROMPT)
    await worker.wait_for_end("look")
    printer.line("The model is scripted; the tools were real, and so is the file they changed.")


async def _show_cancel(printer: DemoPrinter, worker: Worker, session: str) -> None:
    await printer.section(
        "2", "A cancel", "It stops every prompt that was sent before it, and none that is sent later."
    )
    await printer.prompt(worker, session, "story", LONG_PROMPT)
    await worker.wait_for_pieces("story", 18)
    await printer.prompt(worker, session, "again", "And another one after that.")
    began = time.perf_counter()
    covered = await worker.send("cancel", session)
    printer.note("cancel", f"covers {covered.replace(' ', ' and ')}, stored in {_ms(began)}")
    await worker.wait_for_end("story")
    await worker.wait_for_end("again")
    await printer.prompt(worker, session, "hello", HELLO)
    await worker.wait_for_end("hello")


async def _show_crash(
    printer: DemoPrinter, worker: Worker, session: str, data: Path, project: Path, *, fast: bool
) -> Worker:
    await printer.section(
        "3", "A crash", "One run is streaming, one prompt is queued. Then the process is killed with -9."
    )
    await printer.prompt(worker, session, "count", COUNT)
    await worker.wait_for_pieces("count", 16)
    await printer.prompt(worker, session, "tide", TIDE)
    await worker.wait_for_pieces("count", 24)
    worker.kill()
    code = await worker.wait_for_exit()
    printer.note("kill -9", f"the process is gone ({signal.Signals(-code).name})")
    await printer.section("4", "A recovery", "A new process opens the same directory. No prompt is sent again.")
    began = time.perf_counter()
    fresh = await Worker.start(printer, data, project, fast=fast, record=worker.record)
    await fresh.wait_for_end("count")
    printer.note("recovered", f"{_ms(began)} after the start; the text so far is kept")
    await fresh.wait_for_end("tide")
    return fresh


def _ms(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1000:.1f} ms"
