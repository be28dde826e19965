"""Generates session titles with the small model, in parallel to the first turn. A cancel of the turn does not stop
it.
"""

import re
from collections.abc import Callable
from contextlib import aclosing, suppress

from holdfast.domain.errors import ProviderError, StorageError
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, text_of
from holdfast.domain.model_requests import FinishedPart, ModelRequest, TextDelta, UsagePart
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Briefing, PatchSession
from holdfast.domain.surrogates import replace_surrogates
from holdfast.domain.usage import cost_of
from holdfast.engine.history import conversation, has_user_text
from holdfast.engine.ports import Clock, Model
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_context import RunContext, text
from holdfast.engine.turn import Turn
from holdfast.tasks import TaskOwner

__all__ = ["FALLBACK_LENGTH", "TitleGenerator", "clean_title", "fallback_title", "generate_title"]

FALLBACK_LENGTH = 50
_MAX_TOKENS = 40
_REASONING = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


def clean_title(raw: str) -> str:
    """Return the title as one line without reasoning and surrounding quotation marks."""
    return " ".join(_REASONING.sub("", raw).split()).strip("\"'` ")


def fallback_title(prompt: str) -> str:
    """Return the beginning of the prompt, used if no model generates a title."""
    line = " ".join(prompt.split())
    return line if len(line) <= FALLBACK_LENGTH else line[: FALLBACK_LENGTH - 1].rstrip() + "…"


async def generate_title(model: Model, session: SessionId, prompt: Message, charge: Callable[[float], None]) -> str:
    """Generate a title. `charge` is called with its cost, even if it fails. Raises `ProviderError`, also if it is cut
    off.
    """
    messages = conversation((prompt,), model.info)
    request = ModelRequest(session, text("title.md"), messages, (), _MAX_TOKENS)
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
    return clean_title(replace_surrogates("".join(pieces)))


class TitleGenerator:
    """Generates titles in background tasks."""

    def __init__(self, run_context: RunContext, recorder: Recorder, clock: Clock) -> None:
        self._run_context = run_context
        self._recorder = recorder
        self._clock = clock
        self._tasks = TaskOwner()

    def generate_for_first_prompt(self, turn: Turn, prompt: Message, briefing: Briefing) -> None:
        """Start generating a title if this is the first prompt of the session."""
        run = turn.run
        if not self._run_context.settings.titles or run.parent_run_id or not text_of(prompt).strip():
            return
        if not has_user_text(message for message in briefing.messages if message.run_id != run.run_id):
            self._tasks.start(self._set_title(turn, prompt, briefing.session.title), name=f"title {run.session_id}")

    def stop(self) -> None:
        """Cancel all tasks."""
        self._tasks.cancel_all()

    async def drain(self) -> None:
        """Wait until all tasks have ended."""
        await self._tasks.drain()

    async def _set_title(self, turn: Turn, prompt: Message, before: str) -> None:
        """Generate the title and store it, unless the session no longer has the title `before`."""
        run = turn.run
        costs: list[float] = []
        title: str | None = None

        def charge(cost: float) -> None:
            costs.append(cost)
            turn.spend(cost)

        try:
            title = await self._generate(run.session_id, prompt, charge)
        finally:
            # Store the cost of a reported response even if the workspace closes before the title is complete.
            if title is not None or costs:
                now = self._clock.now_ms() // 1000
                patch = SessionPatch(run.session_id, now, title=title, only_if_title=before, add_cost=sum(costs))
                stored = self._recorder.put(PatchSession(patch), sync=False)
        # A title is optional: a failing store is reported by other writes.
        with suppress(StorageError):
            await stored

    async def _generate(self, session: SessionId, prompt: Message, charge: Callable[[float], None]) -> str:
        for choose in (self._run_context.models.small, self._run_context.models.large):
            try:
                title = await generate_title(await choose(), session, prompt, charge)
            except ProviderError:
                continue
            return title or fallback_title(text_of(prompt))
        return fallback_title(text_of(prompt))
