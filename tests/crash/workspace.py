"""Test driver of a crash trial: a real workspace on a real disk, with a journal of its acknowledgements.

Every acknowledgement of a server lifetime is written to its journal at once, unbuffered, so that it survives a kill.
Prompts are small scripts: `a1 note look / hold:x say` makes two steps, the first with two tool calls, the second a
response that waits at the gate `x`.
"""

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from holdfast.domain.approvals import GrantAction, Verdict
from holdfast.domain.events import LiveEvent, RunCompleteEvent
from holdfast.domain.files import ReadMark, UndoRequest
from holdfast.domain.ids import RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import Message, TextPart
from holdfast.domain.model_requests import FinishedPart, ModelInfo, ModelRequest, StepFinish, StreamPart
from holdfast.domain.runs import Delivery, Prompt
from holdfast.domain.store_operations import Answer, Entry, MarkRead, Operation, Receipt, Write
from holdfast.domain.tools import Permit, Tool, ToolContext, ToolOutcome
from holdfast.engine.ports import Ledger, Outlet
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings, Pace
from holdfast.providers.scripted_model import Act, Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.runtime.workspace import FixedServices, SystemClock, Workspace, open_workspace
from holdfast.storage.sqlite_ledger import SqliteLedger, WorkspaceTables
from holdfast.testing.conversation_validity import problems_of_request
from holdfast.testing.gates import Gate, SimpleTool, until
from holdfast.testing.harness import FixedModels, FixedTools, counting_ids
from holdfast.tools.agent import Agent
from holdfast.tools.write import WriteTool as WriteFile
from holdfast.workspace.files.undo import undo
from storage.faulty_disk import FaultyDisk

__all__ = [
    "ANSWER",
    "LOST",
    "WRITTEN",
    "Disk",
    "Journal",
    "Killer",
    "Level",
    "Lifetime",
    "WorkspaceDriver",
    "digest",
    "expected_answers",
    "serve",
]

Level = Literal["group", "file"]
"""The meaning of a write point: each stage of a group commit, or each write and sync of a file."""

T = TypeVar("T")
_LONG = 60.0
_STILL = 25
"""Number of loop iterations without activity after which the workspace counts as idle."""

ANSWER = "An answer of a few words."
WRITTEN = "What a tool has written."
LOST = "Words of an attempt that is withdrawn."
_TOOLS = {
    "note": "note",
    "look": "look",
    "slow": "note",
    "stiff": "note",
    "permit": "permit",
    "agent": "agent",
    "write": "write",
}
"""Words that call a tool, and the tool of each."""
_FINISH: dict[bool, StepFinish] = {True: "tool_calls", False: "stop"}


class Lifetime(msgspec.Struct, frozen=True):
    """One lifetime of the server in `folder`. Number 1 plays the scenario; later ones continue with the remaining work.

    It is killed at its `kill_at`-th write point; 0 is never. `flaw` names a planted mistake.
    """

    folder: str
    number: int = 1
    scenario: str = ""
    kill_at: int = 0
    level: Level = "group"
    flaw: str = ""


class Journal:
    """One line for each acknowledgement, passed to the disk before the next instruction."""

    def __init__(self, folder: Path, lifetime: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(folder / f"journal-{lifetime}", flags, 0o600)

    def note(self, *words: str) -> None:
        os.write(self._descriptor, (" ".join(words) + "\n").encode())

    def close(self) -> None:
        os.close(self._descriptor)


class Killer:
    """Counts write points, and kills this process at the chosen one."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at = kill_at
        self.count = 0

    def __call__(self, _point: str) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Disk(SqliteLedger):
    """The real store of one lifetime, with the killer at its level.

    A calm store replies only when all tasks wait for it, so that the same writes form the same groups each time and a
    scenario has the same write points. Random scenarios are not calm: their writes race.
    """

    def __init__(self, lifetime: Lifetime, killer: Killer) -> None:
        self._is_calm = not lifetime.scenario.startswith("random-")
        self._reads = 0
        data = Path(lifetime.folder) / "data"
        if lifetime.level == "group":
            super().__init__(data, probe=killer)
            return
        disk = FaultyDisk("deadly")
        disk.on_write = disk.on_sync = killer
        super().__init__(data, vfs=disk.name)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        answers = await super().commit(workspace, epoch, ticket, writes)
        still = 0
        while self._is_calm and still < _STILL:
            await asyncio.sleep(0)
            still = 0 if self._reads else still + 1
        return answers

    async def _read(self, workspace: WorkspaceId, look: Callable[[WorkspaceTables], T]) -> T:
        self._reads += 1
        try:
            return await super()._read(workspace, look)
        finally:
            self._reads -= 1


class _JournalOutlet:
    """Wraps the bus: published events are recorded as acknowledged."""

    def __init__(self, journal: Journal, outlet: Outlet) -> None:
        self._diary = journal
        self._outlet = outlet

    def publish(self, entries: Iterable[Entry]) -> None:
        published = tuple(entries)
        for entry in published:
            self._diary.note("event", str(entry.number), digest(entry.body))
            if isinstance(entry.event, RunCompleteEvent):
                end = entry.event.change.object
                self._diary.note("ended", end.run_id, end.outcome)
        self._outlet.publish(published)

    def publish_live(self, event: LiveEvent) -> None:
        self._outlet.publish_live(event)


class _PromptModel:
    """A model that plays the script in the prompt, and checks every request."""

    def __init__(self, driver: "WorkspaceDriver") -> None:
        self._stage = driver

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("demo", "actor", context_window=200_000, max_output_tokens=4_096)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        self._stage.journal.note("requested", request.session_id)
        for problem in problems_of_request(request):
            self._stage.journal.note("trouble", "R7: a request has", problem)
        label, number, words = _scene_of(request.messages)
        if "cut" in words:
            words = self._cut(words, f"{label}.{number}")
        scenes = _split_at_holds(words)
        calls = [word for word in words if word.partition(":")[0] in _TOOLS]
        for gate, acts in scenes:
            if gate:
                await self._stage.gate(gate)()
            played = [_act(word, ToolCallId(f"{label}.{number}.{place}")) for place, word in acts]
            step = Step(tuple(played), finish=_FINISH[bool(calls)])
            is_last = acts is scenes[-1][1]
            async with aclosing(ScriptedModel([step]).stream(request)) as parts:
                async for part in parts:
                    if is_last or not isinstance(part, FinishedPart):
                        yield part

    def _cut(self, words: list[str], step: str) -> list[str]:
        """The first attempt at a step with `cut` produces other text and fails there; the next one is complete."""
        if step in self._stage.attempted:
            return [word for word in words if word != "cut"]
        self._stage.attempted.add(step)
        return [*("lost" if word == "say" else word for word in words[: words.index("cut")]), "cut"]


class WorkspaceDriver:
    """An open workspace with short methods for the actions of a scenario. Acknowledgements are recorded."""

    def __init__(self, lifetime: Lifetime, *, is_open: bool, pace: Pace | None = None, titles: bool = False) -> None:
        self.journal = Journal(Path(lifetime.folder), lifetime.number)
        self.lifetime = lifetime
        self._is_open = is_open
        # On a busy machine a write may take seconds. No limit of time may decide how a story ends.
        self._settings = EngineSettings(
            grace=_LONG, closing=_LONG, cancel_write=_LONG, pace=pace or Pace(_LONG, 1_000_000), titles=titles
        )
        self.attempted: set[str] = set()
        """Steps that a model has started and not finished."""
        self._gates: dict[str, Gate] = {}
        self._workspace: Workspace | None = None

    @property
    def workspace(self) -> Workspace:
        assert self._workspace is not None, "the workspace is not open yet"
        return self._workspace

    async def open(self, ledger: Ledger) -> None:
        path = Path(self.lifetime.folder) / "project"
        path.mkdir(exist_ok=True)
        parts = FixedServices(
            ledger,
            FixedModels(_PromptModel(self), _PromptModel(self)),
            FixedTools([*self._tools(), Agent(), WriteFile()]),
            self._settings,
            SystemClock(),
            counting_ids(f"lifetime{self.lifetime.number}"),
            lambda outlet: _JournalOutlet(self.journal, outlet),
            subagent_types={"task": SubagentType(FixedTools(self._tools()))},
            judge=self._judge,
        )
        self._workspace = await open_workspace(str(path), parts)

    async def session(self, title: str, parent: SessionId | None = None) -> SessionId:
        return (await self.workspace.sessions.create(title, parent)).id

    async def prompt(
        self, session: SessionId, script: str, run_id: str = "", *, delivery: Delivery | None = None
    ) -> RunId:
        return await self.send(Prompt(session, script, run_id=RunId(run_id), delivery=delivery))

    async def send(self, prompt: Prompt) -> RunId:
        run = await self.workspace.inputs.submit(prompt)
        self.journal.note("accepted", run.run_id)
        return run.run_id

    async def summarize(self, session: SessionId) -> None:
        self.journal.note("accepted", (await self.workspace.inputs.summarize(session)).run_id)

    async def cancel(self, session: SessionId) -> None:
        self.journal.note("cancelled", *await self.workspace.inputs.cancel(session))

    async def clear(self, session: SessionId) -> None:
        self.journal.note("cancelled", *await self.workspace.inputs.clear(session))

    async def cancel_run(self, run_id: RunId) -> None:
        if (await self.workspace.inputs.cancel_run(run_id)).outcome is None:
            self.journal.note("cancelled", run_id)

    async def undo(self, session: SessionId) -> None:
        """Revert the changes of the last run, as the server does."""
        engine, record = self.workspace.engine, self.workspace.record

        async def put(operations: tuple[Operation, ...]) -> None:
            assert isinstance(await engine.recorder.put(*operations), Receipt)

        versions = await engine.run_context.ledger.files(record.id, session)
        report = await undo(
            UndoRequest(session_id=session),
            versions,
            root=record.path,
            record=put,
            now_ms=engine.clock.now_ms,
            new_id=engine.new_id,
        )
        for file in report.files:
            self.journal.note("undone", Path(file.path).name)

    async def move(self, run_id: RunId, position: int) -> None:
        await self.workspace.inputs.move(run_id, position)
        self.journal.note("moved", run_id)

    async def answer(self, run_id: str) -> None:
        """Let two clients answer the run's permission request at once."""
        asks = self.workspace.approvals
        await until(lambda: any(ask.run_id == run_id for ask in asks.permissions))
        request = next(ask.id for ask in asks.permissions if ask.run_id == run_id)

        async def grant(action: GrantAction) -> None:
            if await asks.grant(request, action):
                self.journal.note("answered", request, action)

        await asyncio.gather(grant("allow"), grant("deny"))

    def _judge(self, permit: Permit) -> Verdict:
        """A later lifetime has no clients, so that no request is made there."""
        return Verdict("ask" if permit.tool == "permit" and self.lifetime.number == 1 else "allow")

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate(is_open=self._is_open))

    async def held(self, name: str) -> None:
        await self.gate(name).reached.wait()

    def go(self, name: str) -> None:
        self.gate(name).open()

    def open_gates(self) -> None:
        """Open all gates, including future ones."""
        self._is_open = True
        for gate in self._gates.values():
            gate.open()

    async def wait_until_idle(self, *sessions: SessionId) -> None:
        for session in sessions:
            await self.workspace.engine.wait_until_idle(session)

    async def _wait_at(self, name: str, *, is_stiff: bool) -> None:
        """A stiff wait that is cancelled ends only when the gate `NAME-gone` is opened."""
        try:
            await self.gate(name)()
        except asyncio.CancelledError:
            if is_stiff:
                await self.gate(f"{name}-gone")()
            raise

    def _tools(self) -> list[Tool]:
        async def note(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
            self.journal.note("tool", context.run_id, context.tool_call_id)
            if name := str(arguments.get("hold", "")):
                await self._wait_at(name, is_stiff=bool(arguments.get("stiff")))
            await context.record(MarkRead(ReadMark(context.session_id, "notes", context.now_ms())))
            return ToolOutcome("noted")

        async def look(context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            self.journal.note("tool", context.run_id, context.tool_call_id)
            return ToolOutcome("seen")

        async def permit(context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            await context.permit(Permit("permit", "execute", context.workspace_path, "go on", {}))
            if self.lifetime.number == 1:
                self.journal.note("permitted", context.tool_call_id)
            return ToolOutcome("done")

        return [SimpleTool("note", note), SimpleTool("look", look, is_parallel=True), SimpleTool("permit", permit)]


async def serve(
    driver: WorkspaceDriver, ledger: Ledger, scenario: Callable[[WorkspaceDriver], Awaitable[None]] | None = None
) -> None:
    """Run a lifetime from its start to its graceful end; without a scenario, until all remaining work is done."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: driver.journal.note("trouble", "unseen:", repr(context)))
    await driver.open(ledger)
    if scenario is None:
        record = driver.workspace.record
        await driver.wait_until_idle(*(session.id for session in await ledger.sessions(record.id)))
    else:
        await scenario(driver)
    await driver.workspace.close()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _scene_of(messages: Sequence[Message]) -> tuple[str, int, list[str]]:
    """Return the label of the last prompt, the number of the next step, and the words of that step."""
    place = max(index for index, message in enumerate(messages) if message.role == "user")
    texts = [part.data.text for part in messages[place].parts if isinstance(part, TextPart)]
    label, _, script = texts[-1].partition(" ")
    steps = script.split(" / ")
    number = sum(message.role == "assistant" for message in messages[place:])
    return label, number, steps[number].split() if _is_script(script) and number < len(steps) else ["say"]


def _is_script(script: str) -> bool:
    return "/" in script or bool(set(script.split()) & {"say", "note", "look", "fail"})


def _split_at_holds(words: Iterable[str]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Split a response into pieces, each with the gate before it; words keep their position in the whole."""
    pieces: list[tuple[str, list[tuple[int, str]]]] = [("", [])]
    for place, word in enumerate(words):
        kind, _, name = word.partition(":")
        if kind == "hold":
            pieces.append((name, []))
        else:
            pieces[-1][1].append((place, word))
    return pieces


def _act(word: str, call_id: ToolCallId) -> Act:
    kind, _, name = word.partition(":")
    match kind:
        case "note" | "look" | "permit":
            return Call(kind, "{}", call_id)
        case "agent":
            return Call("agent", f'{{"prompt": "{name} note look / say"}}', call_id)
        case "write":
            return Call("write", f'{{"file_path": "{name}.txt", "content": "{WRITTEN}"}}', call_id)
        case "slow":
            return Call("note", f'{{"hold": "{name}"}}', call_id)
        case "stiff":
            return Call("note", f'{{"hold": "{name}", "stiff": true}}', call_id)
        case "think":
            return Think("Let me think about it.", "signed")
        case "fail":
            return Fail("The scenario requests it.")
        case "cut":
            return Fail("The scenario requests a retry.", trouble="cut", retry_after=0.0)
        case "lost":
            return Say(LOST)
        case _:
            return Say(ANSWER)


def expected_answers(prompt: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the text and the tools of each response that the prompt asks for, in order."""
    script = prompt.partition(" ")[2]
    steps = [step.split() for step in script.split(" / ")] if _is_script(script) else [["say"]]
    answers = [_answer(words) for words in steps]
    # After the last tools follows a response without tools.
    return answers if not answers[-1][1] else [*answers, (ANSWER, ())]


def _answer(words: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    kinds = [word.partition(":")[0] for word in words]
    return ANSWER * kinds.count("say"), tuple(_TOOLS[kind] for kind in kinds if kind in _TOOLS)
