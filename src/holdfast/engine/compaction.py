"""Compaction: replaces the beginning of a conversation by a summary that the model writes.

Theory of operation. After each step the loop compares the tokens used with the context window. When the rest is smaller
than a reserve, enough for one more step and the summary itself, the whole conversation is sent once more with the
instruction to summarise it. The summary is an ordinary assistant message of the session, marked as summary; the session
records its id, and later requests begin with it (`history.conversation`). Nothing is deleted: clients still show the
whole conversation. The summary and the session's new start are stored in one write, so a crash leaves either the old
conversation or the new one.

A conversation can be too long even for its summary, for example after a change to a model with a smaller window. It is
then shortened step by step: long tool results are cut, then the older half of the messages is dropped.
"""

from collections.abc import Sequence

from holdfast.domain.errors import ProviderError
from holdfast.domain.messages import Finish, Message, text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.sessions import Session, SessionPatch
from holdfast.domain.store_operations import PatchSession
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
_MAX_CUTS = 12

_INSTRUCTION = "Write the summary of this conversation now, as your instructions say."


def is_nearly_full(window: int, used: int) -> bool:
    """Return whether the next step might not fit into the context window. False for an unknown window (0)."""
    if not window:
        return False
    reserve = _RESERVE if window > _LARGE_WINDOW else window * _RESERVED_SHARE
    return window - used <= reserve


def continuation_note(prompt: str) -> str:
    """Return the text that follows the summary: the model continues the interrupted work."""
    return (
        "The conversation up to here was summarised above because it became too long. "
        f"Go on with the work; the user's request was:\n\n{prompt}"
    )


async def summarize(turn: Turn, model_call: ModelCall, session: Session, history: Sequence[Message]) -> Message:
    """Stream a summary of `history` into the session and make it the start of the conversation."""
    model = model_call.model
    sent = conversation(history, model.info, summary=session.summary_message_id or None)
    await turn.begin_step(model.info, is_summary=True)
    assembly = await _request_summary(turn, model_call, session, sent)
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


async def _request_summary(
    turn: Turn, model_call: ModelCall, session: Session, sent: Sequence[Message]
) -> ResponseBuilder:
    """Request the summary. If the conversation is too long even for that, shorten it and retry."""
    instruction = turn.factory.user("\n\n".join((_INSTRUCTION, *_todo_lines(session))))
    for _ in range(_MAX_CUTS):
        messages = conversation((*sent, instruction), model_call.model.info)
        try:
            return await model_call.answer(ModelRequest(session.id, text("summary.md"), messages))
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
    return [f"The current to-do list; keep it in the summary so that it can be restored:\n{lines}"]
