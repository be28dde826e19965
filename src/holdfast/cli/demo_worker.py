"""Worker process of the demonstration: runs an engine and communicates over its standard streams.

It reads one JSON command per line and writes one JSON line for each event and each response. The demonstration kills it
on purpose. The responses of the scripted model are defined here, too.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import TextPart
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.domain.usage import Usage
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Act, Call, Say, ScriptedModel, ScriptedModels, Step, Think
from holdfast.runtime.workspace import FixedServices, Workspace, open_workspace
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.tasks import TaskOwner

__all__ = [
    "COUNT",
    "HELLO",
    "LIST_PROMPT",
    "LONG_PROMPT",
    "NOTES",
    "TIDE",
    "WorkerCommand",
    "WorkerOutput",
    "script",
    "serve",
]


LIST_PROMPT = "What is in this directory? Add a line to notes.txt that says hello."
LONG_PROMPT = "Tell me a long story about a lighthouse."
HELLO = "Are you still there?"
COUNT = "Count the waves, slowly."
TIDE = "When you are done: when is high tide?"

NOTES = "Things to remember:\n- the tide\n"

_LONG_RESPONSE = (
    "Once there was a lighthouse at the end of a long spit of sand. Its keeper lit the lamp each evening, and each "
    "evening the same ship went by without ever landing. The keeper wrote it down in a book: the hour, the wind, the "
    "colour of the sails. Years went by, and the book grew thick, and one night the lamp went out and the ship"
)
_COUNT_TEXT = ", ".join(f"wave {number}" for number in range(1, 60)) + ", and the last wave."

_ANSWERS = {
    LONG_PROMPT: _LONG_RESPONSE,
    HELLO: "Yes. The cancel covered what was asked before it, and nothing after it.",
    COUNT: _COUNT_TEXT,
    TIDE: "High tide is at six. You asked before the crash; the question was on disk, so here is the answer.",
}


def script(request: ModelRequest) -> Step:
    """Return the response to the last prompt."""
    asked = [part.data.text for message in request.messages for part in message.parts if isinstance(part, TextPart)]
    results = 0
    for message in reversed(request.messages):
        if message.role == "user":
            break
        results += message.role == "tool"
    prompt = next((text for text in reversed(asked) if text in _ANSWERS or text == LIST_PROMPT), "")
    acts = _directory_step(results) if prompt == LIST_PROMPT else (Say(_ANSWERS.get(prompt, "I only know my script.")),)
    return Step(acts, Usage(120 + 40 * results, 60))


def _directory_step(results: int) -> tuple[Act, ...]:
    if results == 0:
        return (Think("I should look before I change anything."), Say("Let me look around."), Call("ls"))
    if results == 1:
        return (Call("view", '{"file_path": "notes.txt"}'),)
    if results == 2:
        text = (NOTES + "- hello from Holdfast\n").replace("\n", "\\n")
        return (Say("Now I add the line."), Call("write", f'{{"file_path": "notes.txt", "content": "{text}"}}'))
    return (Say("Done: there is one file, notes.txt, and it has one line more than before."),)


class WorkerCommand(msgspec.Struct, frozen=True):
    """A command of the demonstration: `session`, `prompt` or `cancel`."""

    do: str
    session_id: SessionId = SessionId("")
    run_id: RunId = RunId("")
    text: str = ""


class WorkerOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output line: the response to a command, or an event."""

    answer: str = ""
    event: msgspec.Raw = msgspec.Raw()


def serve(data_dir: Path, project: Path, pause: float) -> None:
    """Run the worker until its input ends."""
    asyncio.run(_serve(data_dir, project.resolve(), pause))


async def _serve(data_dir: Path, project: Path, pause: float) -> None:
    model = ScriptedModel(script, pause=lambda: pause)
    # Titles would add model requests that are not part of the script.
    settings = EngineSettings(titles=False)
    ledger = SqliteLedger(data_dir)
    services = FixedServices(ledger, ScriptedModels(model), settings=settings)
    workspace = await open_workspace(str(project), services)
    tasks = TaskOwner()
    tasks.start(_forward_events(workspace), name="events")
    try:
        async for command in _commands():
            _write(WorkerOutput(answer=await _execute(workspace, command)))
    finally:
        await workspace.close()
        await ledger.close()
        await tasks.drain()


async def _commands() -> AsyncIterator[WorkerCommand]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield msgspec.json.decode(line, type=WorkerCommand)


async def _execute(workspace: Workspace, command: WorkerCommand) -> str:
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


async def _forward_events(workspace: Workspace) -> None:
    subscription = workspace.bus.subscribe(0)
    while frames := await subscription.take():
        for frame in frames:
            _write(WorkerOutput(event=msgspec.Raw(frame.body)))


def _write(line: WorkerOutput) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()
