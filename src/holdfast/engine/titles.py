"""A session's title, made by the small model beside the first turn. A cancel of the turn leaves it alone."""

import re
from collections.abc import Callable
from contextlib import aclosing, suppress

from holdfast.domain.errors import ProviderError, StorageError
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import PatchSession
from holdfast.domain.messages import Message, text_of
from holdfast.domain.models import FinishedPart, ModelRequest, TextDelta, UsagePart
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.surrogates import encodable
from holdfast.domain.usage import cost_of
from holdfast.engine.history import conversation, has_user_text
from holdfast.engine.ports import Clock, Model
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_context import RunContext, text
from holdfast.engine.turn import Turn
from holdfast.tasks import TaskOwner

__all__ = ["FALLBACK_LENGTH", "Titler", "clean_title", "fallback_title", "make_title"]

FALLBACK_LENGTH = 50
_MOST_TOKENS = 40
_THOUGHTS = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


def clean_title(raw: str) -> str:
    """One line, without thoughts and surrounding quotation marks."""
    return " ".join(_THOUGHTS.sub("", raw).split()).strip("\"'` ")


def fallback_title(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= FALLBACK_LENGTH else line[: FALLBACK_LENGTH - 1].rstrip() + "…"


async def make_title(model: Model, session: SessionId, prompt: Message, charge: Callable[[float], None]) -> str:
    """A title. Raises `ProviderError`, also for a title that was cut off. `charge` is told what it cost in any case."""
    messages = conversation((prompt,), model.info)
    request = ModelRequest(session, text("title.md"), messages, (), _MOST_TOKENS)
    pieces: list[str] = []
    charged = 0.0
    reason = ""
    async with aclosing(model.stream(request)) as stream:
        async for part in stream:
            match part:
                case TextDelta(text=piece):
                    pieces.append(piece)
                case UsagePart(usage=reported):
                    cost = cost_of(reported, model.info.price)
                    charge(cost - charged)
                    charged = cost
                case FinishedPart(reason=why):
                    reason = why
                case _:
                    pass
    if reason != "stop":
        raise ProviderError("The title was cut off.")
    return clean_title(encodable("".join(pieces)))


class Titler:
    """Names sessions in the background, and stops when the workspace does."""

    def __init__(self, run_context: RunContext, recorder: Recorder, clock: Clock) -> None:
        self._run_context = run_context
        self._recorder = recorder
        self._clock = clock
        self._tasks = TaskOwner()

    def consider(self, turn: Turn, prompt: Message) -> None:
        """Name the session if this is the first thing anybody said in it."""
        run = turn.run
        if self._run_context.settings.titles and not run.parent_run_id and text_of(prompt).strip():
            self._tasks.start(self._name(turn, prompt), name=f"title {run.session_id}")

    def stop(self) -> None:
        self._tasks.cancel_all()

    async def drain(self) -> None:
        await self._tasks.drain()

    async def _name(self, turn: Turn, prompt: Message) -> None:
        # A title is a nicety: a store that fails now has more important things to say.
        with suppress(StorageError):
            await self._name_if_first(turn, prompt)

    async def _name_if_first(self, turn: Turn, prompt: Message) -> None:
        run = turn.run
        messages = await self._run_context.ledger.messages(self._run_context.workspace, run.session_id)
        if has_user_text(message for message in messages if message.run_id != run.run_id):
            return
        session = await self._run_context.ledger.session(self._run_context.workspace, run.session_id)
        before = session.title if session else ""
        costs: list[float] = []
        title: str | None = None

        def charge(cost: float) -> None:
            costs.append(cost)
            turn.spend(cost)

        try:
            title = await self._best(run.session_id, prompt, charge)
        finally:
            # A response that was reported is paid for, also if the workspace closes before the title is there.
            if title is not None or costs:
                now = self._clock.now_ms() // 1000
                patch = SessionPatch(run.session_id, now, title=title, only_if_title=before, add_cost=sum(costs))
                stored = self._recorder.put(PatchSession(patch), sync=False)
        await stored

    async def _best(self, session: SessionId, prompt: Message, charge: Callable[[float], None]) -> str:
        for choose in (self._run_context.models.small, self._run_context.models.large):
            try:
                title = await make_title(await choose(), session, prompt, charge)
            except ProviderError:
                continue
            return title or fallback_title(text_of(prompt))
        return fallback_title(text_of(prompt))
