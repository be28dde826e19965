"""Summaries: when a conversation has to be cut short, and how."""

from collections.abc import Sequence

from holdfast.domain.errors import ProviderError
from holdfast.domain.ledger import PatchSession
from holdfast.domain.messages import Finish, Message, text_of
from holdfast.domain.models import ModelRequest
from holdfast.domain.sessions import Session, SessionPatch
from holdfast.domain.usage import estimate_tokens
from holdfast.engine.history import conversation, shortened, size_of
from holdfast.engine.model_call import ModelCall
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.engine.run_context import text
from holdfast.engine.turn import Turn

__all__ = ["continuation_note", "is_nearly_full", "summarize"]

_LARGE_WINDOW = 200_000
_RESERVE = 20_000
_RESERVED_SHARE = 0.2
_MOST_CUTS = 12

_ASK = "Write the summary of this conversation now, as your instructions say."


def is_nearly_full(window: int, used: int) -> bool:
    """True when the next step might not fit any more. An unknown window (0) never is."""
    if not window:
        return False
    reserve = _RESERVE if window > _LARGE_WINDOW else window * _RESERVED_SHARE
    return window - used <= reserve


def continuation_note(prompt: str) -> str:
    """Tells the model, after the summary, that it is in the middle of something."""
    return (
        "The conversation up to here was summarised above because it became too long. "
        f"Go on with the work; the user's request was:\n\n{prompt}"
    )


async def summarize(turn: Turn, asking: ModelCall, session: Session, history: Sequence[Message]) -> Message:
    """Stream a summary of `history` into the session and make the conversation begin there."""
    model = asking.model
    sent = conversation(history, model.info, summary=session.summary_message_id or None)
    await turn.begin_step(model.info, is_summary=True)
    assembly = await _ask_for_summary(turn, asking, session, sent)
    summary = assembly.message()
    if not text_of(summary).strip():
        raise ProviderError("The model wrote an empty summary.", title="Summary failed")
    usage = assembly.usage
    output = usage.output_tokens or estimate_tokens(size_of((summary,)))
    now = turn.now_ms() // 1000
    patch = SessionPatch(
        session.id,
        now,
        prompt_tokens=0,
        completion_tokens=output,
        estimated_usage=not usage.output_tokens,
        summary_message_id=summary.id,
    )
    return await turn.finish_step(Finish("end_turn", now), PatchSession(patch))


async def _ask_for_summary(turn: Turn, asking: ModelCall, session: Session, sent: Sequence[Message]) -> ResponseBuilder:
    """A conversation that became too long may be too long for its summary too: then less and less of it is sent."""
    ask = turn.author.user("\n\n".join((_ASK, *_todo_lines(session))))
    for _ in range(_MOST_CUTS):
        messages = conversation((*sent, ask), asking.model.info)
        try:
            return await asking.answer(ModelRequest(session.id, text("summary.md"), messages))
        except ProviderError as error:
            shorter = shortened(sent)
            if error.trouble != "overflow" or shorter == sent:
                raise
            await turn.withdraw()
            sent = shorter
    raise ProviderError("The conversation is too long even for its summary.", title="Summary failed")


def _todo_lines(session: Session) -> list[str]:
    if not session.todos:
        return []
    lines = "\n".join(f"- [{todo.status}] {todo.content}" for todo in session.todos)
    return [f"The to-do list as it stands; keep it in the summary so that it can be restored:\n{lines}"]
