"""A complete workspace in one process: the real engine and bus, with a deterministic environment.

Ids and the clock count up, the model replays a script, and every published event is recorded.
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
from holdfast.domain.messages import FinishReason, Message, text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Delivery, Prompt, Run
from holdfast.domain.store_operations import Entry
from holdfast.domain.tools import Tool
from holdfast.engine.ports import Ledger, Model, Outlet
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, Workspace, open_workspace
from holdfast.testing.conversation_validity import problems_of_request, problems_of_session
from holdfast.testing.memory_ledger import MemoryLedger

__all__ = ["CountingClock", "FixedModels", "FixedTools", "Harness", "PublishedEvents", "counting_ids"]

_CANCEL_WRITE = 30.0
"""Seconds that the response to a cancel waits for its write: a busy machine must not decide the result of a test."""


class CountingClock:
    """A clock that advances by one millisecond per reading."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = start

    def now_ms(self) -> int:
        """Advance the clock and return its time."""
        self._now += 1
        return self._now


def counting_ids(prefix: str = "id") -> Callable[[], str]:
    """Return a generator of ids that count up."""
    count = 0

    def mint() -> str:
        nonlocal count
        count += 1
        return f"{prefix}-{count}"

    return mint


class FixedTools:
    """A fixed list of tools."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools = tuple(tools)

    async def current(self) -> Sequence[Tool]:
        """Return the tools."""
        return self._tools


class FixedModels:
    """The same models for every run. An exception in place of a model is raised when the model is requested."""

    def __init__(
        self, large: Model | Exception, small: Model | Exception | None = None, *, renewed: Model | None = None
    ) -> None:
        self._large = large
        self._renewed = renewed
        self._small = small or ScriptedModel(lambda _: Step((Say("A title"),)))

    async def large(self) -> Model:
        """Return the large model."""
        return _model_or_raise(self._large)

    async def small(self) -> Model:
        """Return the small model."""
        return _model_or_raise(self._small)

    async def renewed(self, _: object) -> Model | None:
        """Return the model that replaces one with expired credentials."""
        return self._renewed


def _model_or_raise(model: Model | Exception) -> Model:
    if isinstance(model, Exception):
        raise model
    return model


class PublishedEvents:
    """Records published events in order and passes them on."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.events: list[tuple[int | None, Event]] = []

    def publish(self, entries: Iterable[Entry]) -> None:
        """Record and publish durable events."""
        received = list(entries)
        self.events += [(entry.number, entry.event) for entry in received]
        self._outlet.publish(received)

    def publish_live(self, event: LiveEvent) -> None:
        """Record and publish a live event."""
        self.events.append((None, event))
        self._outlet.publish_live(event)


class Harness:
    """A workspace with one session, and shortcuts for actions and observations of tests."""

    def __init__(self, workspace: Workspace, published: PublishedEvents, session: SessionId, ledger: Ledger) -> None:
        self.workspace = workspace
        self.published = published
        self.session = session
        self.ledger = ledger

    @classmethod
    async def open(  # noqa: PLR0913 - each is set by itself in some tests
        cls,
        model: Model | FixedModels,
        *,
        tools: Iterable[Tool] = (),
        settings: EngineSettings | None = None,
        ledger: Ledger | None = None,
        path: str = "/project",
        ids: str = "id",
        is_shared: bool = False,
        **others: Any,  # noqa: ANN401
    ) -> "Harness":
        """Open the workspace. `is_shared`: it applies inputs that are stored without it, as those of other nodes.
        `others` are further fields of `FixedServices`.
        """
        recorded: list[PublishedEvents] = []

        def wrap_outlet(outlet: Outlet) -> Outlet:
            recorded.append(PublishedEvents(outlet))
            return recorded[0]

        store = ledger or MemoryLedger()
        models = model if isinstance(model, FixedModels) else FixedModels(model)
        parts = FixedServices(
            store,
            models,
            FixedTools(tools),
            settings or EngineSettings(titles=False, cancel_write=_CANCEL_WRITE),
            CountingClock(),
            counting_ids(ids),
            wrap_outlet,
            **others,
        )
        workspace = await open_workspace(path, parts, is_shared=is_shared)
        session = await workspace.sessions.create("Test")
        return cls(workspace, recorded[0], session.id, store)

    async def prompt(
        self,
        text: str,
        run_id: str = "",
        *,
        delivery: Delivery | None = None,
        session: SessionId | None = None,
    ) -> Run:
        """Submit a prompt and return its run."""
        prompt = Prompt(session or self.session, text, run_id=RunId(run_id), delivery=delivery)
        return await self.workspace.inputs.submit(prompt)

    async def cancel(self) -> tuple[RunId, ...]:
        """Cancel the runs of the session."""
        return await self.workspace.inputs.cancel(self.session)

    async def wait_until_idle(self) -> None:
        """Wait until the session is idle."""
        await self.workspace.engine.wait_until_idle(self.session)

    async def close(self) -> None:
        """Close the workspace."""
        await self.workspace.close()

    async def messages(self, session: SessionId | None = None) -> Sequence[Message]:
        """Return the stored messages of a session."""
        return await self.ledger.messages(self.workspace.record.id, session or self.session)

    async def run(self, run_id: str) -> Run:
        """Return a stored run."""
        record = await self.ledger.run(self.workspace.record.id, RunId(run_id))
        assert record is not None, f"run {run_id} is not stored"
        return record.run

    async def finishes(self) -> list[FinishReason]:
        """Return the finish reason of each response of the session, in order."""
        messages = await self.messages()
        return [message.finish.reason for message in messages if message.role == "assistant" and message.finish]

    async def outline(self) -> list[str]:
        """Return the conversation as `role:text`, for short comparisons."""
        return [f"{message.role}:{_words(message)}" for message in await self.messages()]

    def ends(self) -> list[RunComplete]:
        """Return every published end, in order."""
        events = (event for _, event in self.published.events)
        return [event.change.object for event in events if isinstance(event, RunCompleteEvent)]

    def end_of(self, run_id: str) -> RunComplete:
        """Return the end of a run. Raises `AssertionError` unless there is exactly one."""
        ends = [end for end in self.ends() if end.run_id == run_id]
        assert len(ends) == 1, f"run {run_id} ended {len(ends)} times"
        return ends[0]

    def notices(self) -> list[AgentNotice]:
        """Return the published notices."""
        return [event.change.object for _, event in self.published.events if isinstance(event, AgentEvent)]

    def message_events(self) -> list[MessageEvent]:
        """Return the published message events."""
        return [event for _, event in self.published.events if isinstance(event, MessageEvent)]

    async def assert_valid(self, requests: Iterable[ModelRequest] = ()) -> None:
        """R7: check that the stored conversation is complete, and that every provider accepts the requests."""
        assert problems_of_session(await self.messages()) == []
        for request in requests:
            assert problems_of_request(request) == []


def _words(message: Message) -> str:
    calls = "".join(f"[{call.name}]" for call in message.tool_calls)
    results = "".join(result.content for result in message.tool_results)
    return text_of(message) + calls + results
