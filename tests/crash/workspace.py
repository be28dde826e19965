"""The world of a crash trial: a real workspace on a real disk that writes down what it promises, as it promises it.

Everything a life of the server tells anybody goes to its diary at once, unbuffered, so that it outlives a kill.
Prompts are small scripts: `a1 note look / hold:x say` makes two steps, the first with two tool calls, the second
an answer that waits at the gate `x`.
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
from holdfast.domain.ledger import Answer, Entry, MarkRead, Operation, Receipt, Write
from holdfast.domain.messages import Message, TextPart
from holdfast.domain.model_requests import FinishedPart, ModelInfo, ModelRequest, StepFinish, StreamPart
from holdfast.domain.runs import Delivery, Prompt
from holdfast.domain.tools import Permit, Tool, ToolContext, ToolOutcome
from holdfast.engine.ports import Ledger, Outlet
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings, Pace
from holdfast.providers.scripted_model import Act, Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.runtime.workspace import FixedServices, SystemClock, Workspace, open_workspace
from holdfast.storage.ledger import SqliteLedger, WorkspaceTables
from holdfast.testing.conversation_validity import problems_of_request
from holdfast.testing.gates import Gate, SimpleTool, until
from holdfast.testing.harness import FixedModels, FixedTools, counting_ids
from holdfast.tools.agent import Agent
from holdfast.tools.write import Write as WriteFile
from holdfast.workspace.files.undo import undo
from storage.faulty_disk import FaultyDisk

__all__ = [
    "ANSWER",
    "LOST",
    "WRITTEN",
    "Diary",
    "Disk",
    "Killer",
    "Level",
    "Life",
    "Stage",
    "digest",
    "expected_answers",
    "serve",
]

Level = Literal["group", "file"]
"""What counts as a write point: each stage of a group commit, or each write and sync of a file."""

T = TypeVar("T")
_STILL = 25
"""So many rounds of the loop without a sign of life: nothing goes on."""

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
"""Words that call a tool, and which one."""
_FINISH: dict[bool, StepFinish] = {True: "tool_calls", False: "stop"}


class Life(msgspec.Struct, frozen=True):
    """One life of the server in `folder`. Number 1 plays the story; later ones go on with what is left.

    It is killed at its `kill_at`-th write point; 0 is never. `flaw` names a planted mistake.
    """

    folder: str
    number: int = 1
    story: str = ""
    kill_at: int = 0
    level: Level = "group"
    flaw: str = ""


class Diary:
    """One line for each promise, on its way to the disk before the next instruction."""

    def __init__(self, folder: Path, life: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(folder / f"diary-{life}", flags, 0o600)

    def note(self, *words: str) -> None:
        os.write(self._descriptor, (" ".join(words) + "\n").encode())

    def close(self) -> None:
        os.close(self._descriptor)


class Killer:
    """Counts write points, and is the end of this process at the chosen one."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at = kill_at
        self.count = 0

    def __call__(self, _point: str) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Disk(SqliteLedger):
    """The real store of one life, with the killer where its level wants it.

    A calm one answers only when nobody has anything to do but wait for it. So the same writes go into the same
    groups each time, and a story has the same write points. Random stories are not calm: there it is a race.
    """

    def __init__(self, life: Life, killer: Killer) -> None:
        self._is_calm = not life.story.startswith("random-")
        self._reads = 0
        data = Path(life.folder) / "data"
        if life.level == "group":
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


class _Listener:
    """Stands before the bus: what is published has been told to the world."""

    def __init__(self, diary: Diary, outlet: Outlet) -> None:
        self._diary = diary
        self._outlet = outlet

    def publish(self, entries: Iterable[Entry]) -> None:
        heard = tuple(entries)
        for entry in heard:
            self._diary.note("event", str(entry.number), digest(entry.body))
            if isinstance(entry.event, RunCompleteEvent):
                end = entry.event.change.object
                self._diary.note("ended", end.run_id, end.outcome)
        self._outlet.publish(heard)

    def publish_live(self, event: LiveEvent) -> None:
        self._outlet.publish_live(event)


class _Actor:
    """A model that plays the script it finds in the prompt, and looks at every request it gets."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("demo", "actor", context_window=200_000, max_output_tokens=4_096)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        self._stage.diary.note("asked", request.session_id)
        for problem in problems_of_request(request):
            self._stage.diary.note("trouble", "R7: a request has", problem)
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
        """The first attempt at a step with `cut` says something else and breaks there; the next one is whole."""
        if step in self._stage.attempted:
            return [word for word in words if word != "cut"]
        self._stage.attempted.add(step)
        return [*("lost" if word == "say" else word for word in words[: words.index("cut")]), "cut"]


class Stage:
    """A workspace that is open, with short words for what a story does. What is answered is written down."""

    def __init__(self, life: Life, *, is_open: bool, pace: Pace | None = None, titles: bool = False) -> None:
        self.diary = Diary(Path(life.folder), life.number)
        self.life = life
        self._is_open = is_open
        self._settings = EngineSettings(pace=pace or Pace(60.0, 1_000_000), titles=titles)
        self.attempted: set[str] = set()
        """Steps that a model has begun and not finished."""
        self._gates: dict[str, Gate] = {}
        self._workspace: Workspace | None = None

    @property
    def workspace(self) -> Workspace:
        assert self._workspace is not None, "the workspace is not open yet"
        return self._workspace

    async def open(self, ledger: Ledger) -> None:
        path = Path(self.life.folder) / "project"
        path.mkdir(exist_ok=True)
        parts = FixedServices(
            ledger,
            FixedModels(_Actor(self), _Actor(self)),
            FixedTools([*self._tools(), Agent(), WriteFile()]),
            self._settings,
            SystemClock(),
            counting_ids(f"life{self.life.number}"),
            lambda outlet: _Listener(self.diary, outlet),
            subagent_types={"task": SubagentType(FixedTools(self._tools()))},
            judge=self._judge,
        )
        self._workspace = await open_workspace(str(path), parts)

    async def session(self, title: str, parent: SessionId | None = None) -> SessionId:
        return (await self.workspace.sessions.create(title, parent)).id

    async def ask(
        self, session: SessionId, script: str, run_id: str = "", *, delivery: Delivery | None = None
    ) -> RunId:
        return await self.send(Prompt(session, script, run_id=RunId(run_id), delivery=delivery))

    async def send(self, prompt: Prompt) -> RunId:
        run = await self.workspace.inputs.submit(prompt)
        self.diary.note("accepted", run.run_id)
        return run.run_id

    async def summarize(self, session: SessionId) -> None:
        self.diary.note("accepted", (await self.workspace.inputs.summarize(session)).run_id)

    async def cancel(self, session: SessionId) -> None:
        self.diary.note("cancelled", *await self.workspace.inputs.cancel(session))

    async def clear(self, session: SessionId) -> None:
        self.diary.note("cancelled", *await self.workspace.inputs.clear(session))

    async def cancel_run(self, run_id: RunId) -> None:
        if (await self.workspace.inputs.cancel_run(run_id)).outcome is None:
            self.diary.note("cancelled", run_id)

    async def undo(self, session: SessionId) -> None:
        """Take back what the last run changed, as the server does."""
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
            self.diary.note("undone", Path(file.path).name)

    async def move(self, run_id: RunId, position: int) -> None:
        await self.workspace.inputs.move(run_id, position)
        self.diary.note("moved", run_id)

    async def answer(self, run_id: str) -> None:
        """Two clients answer the run's request for permission at once."""
        asks = self.workspace.approvals
        await until(lambda: any(ask.run_id == run_id for ask in asks.permissions), most=1_000_000)
        request = next(ask.id for ask in asks.permissions if ask.run_id == run_id)

        async def grant(action: GrantAction) -> None:
            if await asks.grant(request, action):
                self.diary.note("answered", request, action)

        await asyncio.gather(grant("allow"), grant("deny"))

    def _judge(self, permit: Permit) -> Verdict:
        """A later life has no clients: nothing waits for them there."""
        return Verdict("ask" if permit.tool == "permit" and self.life.number == 1 else "allow")

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate(is_open=self._is_open))

    async def held(self, name: str) -> None:
        await self.gate(name).reached.wait()

    def go(self, name: str) -> None:
        self.gate(name).open()

    def open_gates(self) -> None:
        """From now on nobody waits at any gate."""
        self._is_open = True
        for gate in self._gates.values():
            gate.open()

    async def quiet(self, *sessions: SessionId) -> None:
        for session in sessions:
            await self.workspace.engine.wait_until_idle(session)

    async def _wait_at(self, name: str, *, is_stiff: bool) -> None:
        """A stiff one that is cancelled takes its time, until the gate `NAME-gone` is opened."""
        try:
            await self.gate(name)()
        except asyncio.CancelledError:
            if is_stiff:
                await self.gate(f"{name}-gone")()
            raise

    def _tools(self) -> list[Tool]:
        async def note(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
            self.diary.note("tool", context.run_id, context.tool_call_id)
            if name := str(arguments.get("hold", "")):
                await self._wait_at(name, is_stiff=bool(arguments.get("stiff")))
            await context.record(MarkRead(ReadMark(context.session_id, "notes", context.now_ms())))
            return ToolOutcome("noted")

        async def look(context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            self.diary.note("tool", context.run_id, context.tool_call_id)
            return ToolOutcome("seen")

        async def permit(context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            await context.permit(Permit("permit", "execute", context.workspace_path, "go on", {}))
            if self.life.number == 1:
                self.diary.note("permitted", context.tool_call_id)
            return ToolOutcome("done")

        return [SimpleTool("note", note), SimpleTool("look", look, is_parallel=True), SimpleTool("permit", permit)]


async def serve(stage: Stage, ledger: Ledger, story: Callable[[Stage], Awaitable[None]] | None = None) -> None:
    """A life from its start to its graceful end; without a story it waits until all that was left is done."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: stage.diary.note("trouble", "unseen:", repr(context)))
    await stage.open(ledger)
    if story is None:
        record = stage.workspace.record
        await stage.quiet(*(session.id for session in await ledger.sessions(record.id)))
    else:
        await story(stage)
    await stage.workspace.close()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _scene_of(messages: Sequence[Message]) -> tuple[str, int, list[str]]:
    """The label of the last prompt, which of its steps is due, and the words of that step."""
    place = max(index for index, message in enumerate(messages) if message.role == "user")
    texts = [part.data.text for part in messages[place].parts if isinstance(part, TextPart)]
    label, _, script = texts[-1].partition(" ")
    steps = script.split(" / ")
    number = sum(message.role == "assistant" for message in messages[place:])
    return label, number, steps[number].split() if _is_script(script) and number < len(steps) else ["say"]


def _is_script(script: str) -> bool:
    return "/" in script or bool(set(script.split()) & {"say", "note", "look", "fail"})


def _split_at_holds(words: Iterable[str]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Pieces of an answer, each with the gate before it; words keep their place in the whole."""
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
            return Fail("The story wants it so.")
        case "cut":
            return Fail("The story wants it tried again.", trouble="cut", retry_after=0.0)
        case "lost":
            return Say(LOST)
        case _:
            return Say(ANSWER)


def expected_answers(prompt: str) -> list[tuple[str, tuple[str, ...]]]:
    """The text and the tools of each answer that the prompt asks for, in their order."""
    script = prompt.partition(" ")[2]
    steps = [step.split() for step in script.split(" / ")] if _is_script(script) else [["say"]]
    answers = [_answer(words) for words in steps]
    # After the last tools there is an answer without any.
    return answers if not answers[-1][1] else [*answers, (ANSWER, ())]


def _answer(words: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    kinds = [word.partition(":")[0] for word in words]
    return ANSWER * kinds.count("say"), tuple(_TOOLS[kind] for kind in kinds if kind in _TOOLS)
