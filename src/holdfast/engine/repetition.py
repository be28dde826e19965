"""Notice a model that asks for the same thing over and over. Pure."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from holdfast.domain.messages import Message

__all__ = ["WINDOW", "is_repeating", "signature"]

WINDOW = 10
"""How many of the last steps are looked at; with fewer, nothing is said."""

_TOLERATED = 5


def signature(assistant: Message, results: Sequence[Message]) -> bytes | None:
    """What a step asked for and what it got, as a digest; None for a step without tool calls."""
    if not assistant.tool_calls:
        return None
    answers = {result.tool_call_id: result.content for message in results for result in message.tool_results}
    digest = hashlib.sha256()
    for call in assistant.tool_calls:
        for text in (call.name, call.input, answers.get(call.id, "")):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def is_repeating(signatures: Sequence[bytes | None]) -> bool:
    """True if one of the last steps happened more often than is sensible."""
    if len(signatures) < WINDOW:
        return False
    counts = Counter(item for item in signatures[-WINDOW:] if item is not None)
    return any(count > _TOLERATED for count in counts.values())
