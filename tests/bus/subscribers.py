"""A subscriber for tests that reads to the end and folds the events."""

from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame
from holdfast.domain.events import MessageDeltaEvent, MessagePart, MessagePartEvent
from holdfast.domain.messages import TextPart


class Ear:
    """Reads a subscription to its end and folds the text."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.numbers: list[int] = []
        self.text = ""
        self.size = 0

    async def listen(self, subscription: Subscription, limit: int = 512) -> "Ear":
        while heard := await subscription.take(limit):
            self.hear(heard)
        return self

    def hear(self, heard: list[Frame]) -> None:
        for frame in heard:
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
