"""Worker process of the demonstration: runs an engine and communicates over its standard streams.

It reads one JSON command per line and writes one JSON line for each event and each response. The demonstration kills it
on purpose.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from holdfast.cli.demo_script import script
from holdfast.core import App, Bare, Workspace
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Prompt
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted import ScriptedModel, ScriptedModels
from holdfast.tasks import TaskOwner

__all__ = ["Command", "Line", "serve"]


class Command(msgspec.Struct, frozen=True):
    """A command of the demonstration: `session`, `prompt` or `cancel`."""

    do: str
    session_id: SessionId = SessionId("")
    run_id: RunId = RunId("")
    text: str = ""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output line: the response to a command, or an event."""

    answer: str = ""
    event: msgspec.Raw = msgspec.Raw()


def serve(data_dir: Path, project: Path, pause: float) -> None:
    """Run the worker until its input ends."""
    asyncio.run(_serve(data_dir, project, pause))


async def _serve(data_dir: Path, project: Path, pause: float) -> None:
    model = ScriptedModel(script, pause=lambda: pause)
    settings = EngineSettings(titles=False)
    app = App(data_dir, lambda ledger: Bare(ledger, ScriptedModels(model), settings))
    workspace = await app.workspace(project)
    tasks = TaskOwner()
    tasks.start(_report(workspace), name="events")
    try:
        async for command in _commands():
            _say(Line(answer=await _obey(workspace, command)))
    finally:
        await app.close()
        await tasks.drain()


async def _commands() -> AsyncIterator[Command]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield msgspec.json.decode(line, type=Command)


async def _obey(workspace: Workspace, command: Command) -> str:
    try:
        match command.do:
            case "session":
                return (await workspace.sessions.create("The demonstration")).id
            case "prompt":
                prompt = Prompt(command.session_id, command.text, run_id=command.run_id, delivery="queue")
                return (await workspace.inputs.submit(prompt)).run_id
            case "cancel":
                return " ".join(await workspace.inputs.cancel(command.session_id))
            case _:
                return f"unknown: {command.do}"
    except HoldfastError as error:
        return f"error: {error}"


async def _report(workspace: Workspace) -> None:
    subscription = workspace.bus.subscribe(0)
    while frames := await subscription.take():
        for frame in frames:
            _say(Line(event=msgspec.Raw(frame.body)))


def _say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()
