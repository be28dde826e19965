"""A reader for tests that reads a subscription to its end and folds the events."""

from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame
from holdfast.domain.events import MessageDeltaEvent, MessagePart, MessagePartEvent
from holdfast.domain.messages import TextPart


class FoldingReader:
    """Reads a subscription to its end and folds the text."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.numbers: list[int] = []
        self.text = ""
        self.size = 0

    async def read_all(self, subscription: Subscription, limit: int = 512) -> "FoldingReader":
        while frames := await subscription.take(limit):
            self.fold(frames)
        return self

    def fold(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.events.append(frame.event)
            self.size += len(frame.body)
            if frame.number is not None:
                self.numbers.append(frame.number)
            match frame.event:
                case MessageDeltaEvent(payload=delta):
                    assert delta.offset <= len(self.text), "a hole"
                    self.text += delta.text[len(self.text) - delta.offset :]
                case MessagePartEvent(payload=MessagePart(content=TextPart(data=data))):
                    self.text = data.text
                case _:
                    pass
