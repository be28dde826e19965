"""`holdfast demo`: shows the guarantees in half a minute with a real process and a real database."""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from holdfast.cli.demo_script import COUNT, HELLO, LOOK, NOTES, STORY, TIDE
from holdfast.cli.demo_stage import Stage, Worker

__all__ = ["command"]


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
