"""Prompts on their way to a model: what was typed is shown, what it stands for is read, and hooks have a say first."""

from collections.abc import Sequence

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.hooks import Ruling
from holdfast.domain.ledger import Briefing, PutMessage, RunRecord
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.run_context import RunContext
from holdfast.engine.turn import Turn

__all__ = ["PromptRefused", "hear_folded", "opening", "prompt_message"]

_WITHHELD = "(The user sent a message here, but a hook of theirs held it back: {})"


class PromptRefused(HoldfastError):
    """A hook refused the prompt."""


def prompt_message(record: RunRecord, author: MessageFactory, context: str = "") -> Message:
    """The message of a prompt. `context` is what hooks add for the model."""
    run, brief = record.run, record.brief
    meant = brief.text if brief is not None else ""
    if context:
        meant = f"{meant or run.prompt}\n\n{context}"
    return author.user(run.prompt, record.attachments, meant)


async def opening(turn: Turn, run_context: RunContext, briefing: Briefing) -> Message:
    """The message that begins a turn. Raises `PromptRefused`; the message is part of the turn then all the same."""
    record = briefing.record
    ruling = Ruling()
    if not record.run.parent_run_id:
        ruling = await run_context.hooks.before_prompt(record.run, record.run.prompt, is_first=not briefing.messages)
    prompt = prompt_message(record, turn.author, ruling.context)
    turn.expect(prompt)
    if _refuses(ruling):
        raise PromptRefused(ruling.reason or None)
    return prompt


async def hear_folded(turn: Turn, run_context: RunContext, folded: Sequence[Message]) -> None:
    """Prompts that joined a turn. One that is refused stays in its place, but the model does not get to read it."""
    for message in folded:
        text = next((part.data for part in message.parts if isinstance(part, TextPart)), Text(""))
        ruling = await run_context.hooks.before_prompt(turn.run, text.text, is_first=False)
        if _refuses(ruling):
            meant = _WITHHELD.format(ruling.reason or "it gave no reason")
        elif ruling.context:
            meant = f"{text.meant or text.text}\n\n{ruling.context}"
        else:
            continue
        parts = tuple(
            TextPart(Text(text.text, meant)) if isinstance(part, TextPart) else part for part in message.parts
        )
        changed = msgspec.structs.replace(message, parts=parts)
        turn.messages[turn.messages.index(message)] = changed
        await turn.record(PutMessage(changed))


def _refuses(ruling: Ruling) -> bool:
    return ruling.halts or ruling.decision == "deny"
