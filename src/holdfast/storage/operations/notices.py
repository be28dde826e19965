"""What is said and changes no row."""

from holdfast.domain.ledger import Announce
from holdfast.storage.operations.context import Context

__all__ = ["perform"]


def perform(operation: Announce, context: Context) -> None:
    context.say(operation.event)
