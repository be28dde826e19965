"""Preparation of a prompt for the model: hooks, command expansion, and the text that is shown instead."""

from collections.abc import Sequence

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.hooks import HookOutcome
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.store_operations import Briefing, PutMessage, RunRecord
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.run_context import RunContext
from holdfast.engine.turn import Turn

__all__ = ["PromptRefused", "apply_hooks_to_folded", "opening_message", "prompt_message"]

_WITHHELD = "(The user sent a message here, but a hook of the user withheld it: {})"


class PromptRefused(HoldfastError):
    """A hook refused the prompt."""


def prompt_message(record: RunRecord, factory: MessageFactory, context: str = "") -> Message:
    """Return the message of a prompt. `context` is text that hooks add for the model."""
    run, brief = record.run, record.brief
    meant = brief.text if brief is not None else ""
    if context:
        meant = f"{meant or run.prompt}\n\n{context}"
    return factory.user(run.prompt, record.attachments, meant)


async def opening_message(turn: Turn, run_context: RunContext, briefing: Briefing) -> Message:
    """Return the message that starts a turn. Raises `PromptRefused`; the message is part of the turn nevertheless."""
    record = briefing.record
    ruling = HookOutcome()
    if not record.run.parent_run_id:
        ruling = await run_context.hooks.before_prompt(record.run, record.run.prompt, is_first=not briefing.messages)
    prompt = prompt_message(record, turn.factory, ruling.context)
    turn.add_prompt(prompt)
    if _refuses(ruling):
        raise PromptRefused(ruling.reason or None)
    return prompt


async def apply_hooks_to_folded(turn: Turn, run_context: RunContext, folded: Sequence[Message]) -> None:
    """Run the hooks for folded prompts. A refused prompt stays in the conversation, but is withheld from the model."""
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


def _refuses(ruling: HookOutcome) -> bool:
    return ruling.halts or ruling.decision == "deny"
