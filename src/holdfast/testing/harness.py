"""A whole workspace for tests: the real engine and bus, with twins of the world around them.

Everything in it is deterministic: ids count up, the clock counts calls, the model plays a script, and every
event the engine tells is kept on a tape.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Event,
    LiveEvent,
    MessageEvent,
    RunComplete,
    RunCompleteEvent,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.ledger import Entry
from holdfast.domain.messages import FinishReason, Message, text_of
from holdfast.domain.models import ModelRequest
from holdfast.domain.runs import Delivery, Prompt, Run
from holdfast.domain.tools import Tool
from holdfast.engine.ports import Ledger, Model, Outlet
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, Workspace, open_workspace
from holdfast.testing.conversation_validity import problems_of_request, problems_of_session
from holdfast.testing.memory_ledger import MemoryLedger

__all__ = ["CountingClock", "FixedModels", "FixedTools", "Tape", "World", "counting_ids"]


class CountingClock:
    """Each look at it is a millisecond later."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = start

    def now_ms(self) -> int:
        self._now += 1
        return self._now


def counting_ids(prefix: str = "id") -> Callable[[], str]:
    count = 0

    def mint() -> str:
        nonlocal count
        count += 1
        return f"{prefix}-{count}"

    return mint


class FixedTools:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools = tuple(tools)

    async def current(self) -> Sequence[Tool]:
        return self._tools


class FixedModels:
    """The same models for every run. An error given in place of one is raised when it is asked for."""

    def __init__(
        self, large: Model | Exception, small: Model | Exception | None = None, *, renewed: Model | None = None
    ) -> None:
        self._large = large
        self._renewed = renewed
        self._small = small or ScriptedModel(lambda _: Step((Say("A title"),)))

    async def large(self) -> Model:
        return _model_or_raise(self._large)

    async def small(self) -> Model:
        return _model_or_raise(self._small)

    async def renewed(self, _: object) -> Model | None:
        return self._renewed


def _model_or_raise(model: Model | Exception) -> Model:
    if isinstance(model, Exception):
        raise model
    return model


class Tape:
    """Hears all that is told, in the order in which it is told, and passes it on."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.events: list[tuple[int | None, Event]] = []

    def publish(self, entries: Iterable[Entry]) -> None:
        heard = list(entries)
        self.events += [(entry.number, entry.event) for entry in heard]
        self._outlet.publish(heard)

    def publish_live(self, event: LiveEvent) -> None:
        self.events.append((None, event))
        self._outlet.publish_live(event)


class World:
    """One workspace with one session, and short words for what tests do and look at."""

    def __init__(self, workspace: Workspace, tape: Tape, session: SessionId, ledger: Ledger) -> None:
        self.workspace = workspace
        self.tape = tape
        self.session = session
        self.ledger = ledger

    @classmethod
    async def open(
        cls,
        model: Model | FixedModels,
        *,
        tools: Iterable[Tool] = (),
        settings: EngineSettings | None = None,
        ledger: Ledger | None = None,
        path: str = "/project",
        ids: str = "id",
        **others: Any,  # noqa: ANN401
    ) -> "World":
        """`others` are parts of a workspace that few tests have twins of."""
        tapes: list[Tape] = []

        def wrap_outlet(outlet: Outlet) -> Outlet:
            tapes.append(Tape(outlet))
            return tapes[0]

        store = ledger or MemoryLedger()
        models = model if isinstance(model, FixedModels) else FixedModels(model)
        parts = FixedServices(
            store,
            models,
            FixedTools(tools),
            settings or EngineSettings(titles=False),
            CountingClock(),
            counting_ids(ids),
            wrap_outlet,
            **others,
        )
        workspace = await open_workspace(path, parts)
        session = await workspace.sessions.create("Test")
        return cls(workspace, tapes[0], session.id, store)

    async def prompt(
        self,
        text: str,
        run_id: str = "",
        *,
        delivery: Delivery | None = None,
        session: SessionId | None = None,
    ) -> Run:
        prompt = Prompt(session or self.session, text, run_id=RunId(run_id), delivery=delivery)
        return await self.workspace.inputs.submit(prompt)

    async def cancel(self) -> tuple[RunId, ...]:
        return await self.workspace.inputs.cancel(self.session)

    async def quiet(self) -> None:
        await self.workspace.engine.wait_until_idle(self.session)

    async def close(self) -> None:
        await self.workspace.close()

    async def messages(self, session: SessionId | None = None) -> Sequence[Message]:
        return await self.ledger.messages(self.workspace.record.id, session or self.session)

    async def run(self, run_id: str) -> Run:
        record = await self.ledger.run(self.workspace.record.id, RunId(run_id))
        assert record is not None, f"run {run_id} is not stored"
        return record.run

    async def finishes(self) -> list[FinishReason]:
        """Why each answer of the session ended, in order."""
        messages = await self.messages()
        return [message.finish.reason for message in messages if message.role == "assistant" and message.finish]

    async def outline(self) -> list[str]:
        """The conversation as `role:text`, for comparing at a glance."""
        return [f"{message.role}:{_words(message)}" for message in await self.messages()]

    def ends(self) -> list[RunComplete]:
        """Every end that was told, in order."""
        events = (event for _, event in self.tape.events)
        return [event.change.object for event in events if isinstance(event, RunCompleteEvent)]

    def end_of(self, run_id: str) -> RunComplete:
        ends = [end for end in self.ends() if end.run_id == run_id]
        assert len(ends) == 1, f"run {run_id} ended {len(ends)} times"
        return ends[0]

    def notices(self) -> list[AgentNotice]:
        return [event.change.object for _, event in self.tape.events if isinstance(event, AgentEvent)]

    def message_events(self) -> list[MessageEvent]:
        return [event for _, event in self.tape.events if isinstance(event, MessageEvent)]

    async def assert_valid(self, requests: Iterable[ModelRequest] = ()) -> None:
        """R7: the stored conversation is settled, and every request was acceptable to all providers."""
        assert problems_of_session(await self.messages()) == []
        for request in requests:
            assert problems_of_request(request) == []


def _words(message: Message) -> str:
    calls = "".join(f"[{call.name}]" for call in message.tool_calls)
    results = "".join(result.content for result in message.tool_results)
    return text_of(message) + calls + results
