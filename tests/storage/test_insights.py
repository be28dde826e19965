"""What is counted of a message."""

import msgspec
import pytest

from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Finish, FinishPart, FinishReason, Message, Text, TextPart
from holdfast.storage.insights import _Tally


@pytest.mark.parametrize(("reason", "seconds"), [("end_turn", 7), ("tool_use", 7), ("canceled", 0), ("error", 0)])
def test_an_answer_that_was_cut_says_nothing_about_how_long_answers_take(reason: FinishReason, seconds: int) -> None:
    parts = (TextPart(Text("so")), FinishPart(Finish(reason, 1_007)))
    message = Message(parts, MessageId("m"), "assistant", SessionId("s"), "big", "acme", 1_000, 1_007)
    tally = _Tally(0)
    tally.add_message(msgspec.json.encode(message))
    found = tally.result(())
    assert found.response_seconds == seconds
    assert [(item.model, item.messages, item.seconds) for item in found.models] == [("big", 1, seconds)]
