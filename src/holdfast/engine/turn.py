"""What one run has said and done so far, on its way to the store and to those who listen.

A turn outlives its task: when the task is cancelled or abandoned, whoever ends the run still finds here
what has to be settled. Once closed, it lets nothing of its task through any more.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from holdfast.domain.errors import Conflict, HoldfastError, StorageError
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    MessageDelta,
    MessageDeltaEvent,
    MessagePart,
    MessagePartEvent,
    ToolOutputEvent,
)
from holdfast.domain.ids import MessageId, SessionId, ToolCallId
from holdfast.domain.ledger import (
    DeleteMessage,
    GrowMessage,
    Operation,
    PatchSession,
    PutMessage,
    Receipt,
    Refusal,
    StartRun,
    StepRun,
)
from holdfast.domain.messages import Finish, Message, ReasoningPart, ToolCallPart
from holdfast.domain.models import ModelInfo, StreamPart, TextDelta
from holdfast.domain.runs import Brief, Run
from holdfast.domain.sessions import SessionPatch
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.ports import Clock, NewId, Outlet
from holdfast.engine.recorder import Recorder
from holdfast.engine.response_builder import Growth, ResponseBuilder

__all__ = ["Pace", "Turn", "TurnClosed"]


class TurnClosed(HoldfastError):
    """This turn is over; what its task still does is not recorded."""


class Pace(msgspec.Struct, frozen=True):
    """How often a growing message reaches the store. A crash loses at most this much of what was streamed."""

    seconds: float = 0.25
    characters: int = 4_096


class Turn:
    """The conversation of one run, and the answer that is being written now."""

    def __init__(
        self, run: Run, *, recorder: Recorder, outlet: Outlet, clock: Clock, new_id: NewId, pace: Pace
    ) -> None:
        self.run = run
        self.brief: Brief | None = None
        """What its prompt stands for, if that is more than it says."""
        self.messages: list[Message] = []
        """All messages of this run that do not grow any more, in order."""
        self.is_started = False
        self.parting: tuple[Operation, ...] = ()
        """What is to be stored with the end of a turn that came to its end by itself."""
        self.step = 0
        self._began = asyncio.get_running_loop().time()
        self.cost = 0.0
        """Cost of all reported responses on behalf of this run, its title and its sub-agents included."""
        self.sender: Turn | None = None
        """The turn that waits for this one, if this is a sub-agent's."""
        self.payers: tuple[SessionId, ...] = (run.session_id,)
        """The sessions whose cost grows with this run: its own, and those above a sub-agent's."""
        self._charged = 0.0
        self._paid = 0.0
        self.acting: set[ToolCallId] = set()
        """Calls that may have had effects."""
        self.takes_images = False
        self._recorder = recorder
        self._outlet = outlet
        self._clock = clock
        self._new_id = new_id
        self._pace = pace
        self._open: ResponseBuilder | None = None
        self._growth: list[Growth] = []
        self._grown = 0
        self._spent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unstored: dict[MessageId, Message] = {}
        self._unanswered = 0
        self._later: list[Message] = []
        self._earlier_calls: frozenset[ToolCallId] = frozenset()
        self._closed = False
        self._said: tuple[Message, ...] = ()

    @property
    def author(self) -> MessageFactory:
        return MessageFactory(self.run.session_id, self.run.run_id, self._clock.now_ms() // 1000, self._new_id)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    @property
    def minutes(self) -> float:
        """How long it has worked. A clock that is set, or went on while the machine slept, does not count."""
        return (asyncio.get_running_loop().time() - self._began) / 60

    async def record(self, *operations: Operation, sync: bool = False) -> Receipt:
        """Store operations of this run; a refusal is a fault of this turn."""
        if self._closed:
            raise TurnClosed
        for operation in operations:
            if isinstance(operation, PutMessage):
                self._unstored[operation.message.id] = operation.message
        due, self._paid = self._due, self._charged
        self._unanswered += 1

        def unpaid() -> None:
            self._paid -= due

        try:
            answer = await self._recorder.put(
                *self._with_cost(operations, due),
                sync=sync,
                then=lambda answer: unpaid() if isinstance(answer, Refusal) else self._stored(operations),
                otherwise=unpaid,
            )
        except StorageError:
            self._unanswered -= 1
            raise
        self._unanswered -= 1
        if isinstance(answer, Refusal):
            raise Conflict(f"The store refused a write of this run: {answer.reason}.")
        return answer

    def charge(self, cost: float) -> None:
        """Count what a response costs, for the limits now and for the sessions with the next write."""
        self._charged += cost
        self.spend(cost)

    def spend(self, cost: float) -> None:
        """Count a cost that is stored elsewhere: of a title, or of a sub-agent."""
        self.cost += cost
        if self.sender is not None:
            self.sender.spend(cost)

    @property
    def _due(self) -> float:
        return self._charged - self._paid

    def with_cost(self, operations: Sequence[Operation]) -> list[Operation]:
        """The operations that end the run, with the cost that is not stored yet."""
        return self._with_cost(operations, self._due)

    def _with_cost(self, operations: Sequence[Operation], due: float) -> list[Operation]:
        """A cost goes into the patch of its session that is written anyway, or gets one."""
        changed = list(operations)
        for session in self.payers if due else ():
            patches = ((place, item.patch) for place, item in enumerate(changed) if isinstance(item, PatchSession))
            place, patch = next(
                ((place, patch) for place, patch in patches if patch.session_id == session),
                (len(changed), SessionPatch(session, self.now_ms() // 1000)),
            )
            changed[place : place + 1] = [PatchSession(msgspec.structs.replace(patch, add_cost=patch.add_cost + due))]
        return changed

    @property
    def is_unsure(self) -> bool:
        """Whether the task has a write on its way, or was cut off while it waited for one."""
        return self._unanswered > 0

    def expect(self, message: Message) -> None:
        """The prompt has to be stored, by this turn or by whoever settles it. The first to say so counts."""
        if not self.messages:
            self.messages.append(message)
            self._unstored[message.id] = message

    async def start(self) -> None:
        """The run begins: a fact on disk before the model hears of it. It begins once."""
        if beginning := self._beginning():
            await self.record(*beginning, sync=True)

    def _beginning(self) -> list[Operation]:
        """What has to be stored before anything else of this run."""
        if self.is_started:
            return []
        return [StartRun(self.run.run_id, self.now_ms()), *(PutMessage(message) for message in self.messages)]

    def add_later(self, message: Message) -> None:
        """A message that was stored elsewhere; the model sees it with the next step."""
        self._later.append(message)

    def take_later(self) -> None:
        """A step boundary: what came meanwhile is part of the conversation now."""
        self.messages.extend(self._later)
        self._later.clear()

    def follows(self, conversation: Iterable[Message]) -> None:
        """What was said before. Some models give their calls the same ids in every turn, and screens match results by
        them: an id that the session has seen is not used again.
        """
        self._earlier_calls = frozenset(call.id for message in conversation for call in message.tool_calls)

    async def begin_step(self, info: ModelInfo, *, is_summary: bool = False) -> Message:
        """A provider request begins: an empty answer that will grow."""
        message = self.author.assistant(info, is_summary=is_summary)
        self.takes_images = info.supports_images
        self.step += 1
        taken = self._earlier_calls.union(call.id for old in self.messages for call in old.tool_calls)
        # Known here before it is stored, so that whoever settles this turn cannot miss it.
        self._open = ResponseBuilder(message, taken)
        self._spent = 0
        beginning = self._beginning()
        step = (StepRun(self.run.run_id, self.step), PutMessage(message))
        await self.record(*beginning, *step, sync=bool(beginning))
        return message

    def feed(self, part: StreamPart) -> None:
        """Take a part of the answer. Its cost does not depend on how long the answer is."""
        if self._closed or self._open is None:
            raise TurnClosed
        if type(part) is TextDelta and (delta := self._open.extend(part.text)) is not None:
            self._grow(delta)
            return
        for growth in self._open.feed(part, self._clock.now_ms() // 1000):
            if isinstance(growth, MessageDelta):
                self._grow(growth)
            else:
                self._publish(growth)

    def _grow(self, delta: MessageDelta) -> None:
        self._outlet.publish_live(MessageDeltaEvent(delta))
        self._growth.append(delta)
        self._grown += len(delta.text)
        if self._timer is None or self._grown >= self._pace.characters:
            self._flush_in_time()

    async def withdraw(self) -> None:
        """Take back what the open answer has said so far: it is asked for again."""
        if self._closed or self._open is None:
            raise TurnClosed
        said_nothing = self._open.is_empty
        self._open = self._open.anew()
        if not said_nothing or self._due:
            self._drop_growth()
            await self.record(PutMessage(self._open.message()))

    async def discard(self) -> None:
        """Remove the open answer: something else has to be said before it."""
        if self._open is None:
            raise TurnClosed
        await self.record(DeleteMessage(self._open.id))
        self.drop_open()

    def tell(self, notice: AgentNotice) -> None:
        """What those who watch should know and nobody needs to keep."""
        if not self._closed:
            self._outlet.publish_live(AgentEvent(Change("created", notice)))

    def say(self, event: ToolOutputEvent) -> None:
        """What a tool prints while it works. Nobody keeps it: the result tells what counts."""
        if not self._closed:
            self._outlet.publish_live(event)

    @property
    def open(self) -> ResponseBuilder | None:
        return self._open

    async def put_open(self) -> Message:
        """Store the growing message whole, so that its tool calls are on record before they run."""
        message = self._take_whole()
        await self.record(PutMessage(message))
        return message

    async def rewrite_call(self, call: ToolCallId, text: str) -> None:
        """Something else is asked for than the model wrote: that is what is stored, shown and done."""
        if self._open is None:
            raise TurnClosed
        self._open.rewrite(call, text)
        await self.put_open()

    async def finish_step(self, finish: Finish, *also: Operation) -> Message:
        """The answer is complete."""
        message = self._complete(finish)
        await self.record(*also, PutMessage(message))
        return message

    def leave(self, finish: Finish, *parting: Operation) -> None:
        """The answer is complete, and it is the last: it is stored together with the run's end."""
        message = self._complete(finish)
        self._unstored[message.id] = message
        self.parting = parting

    def _complete(self, finish: Finish) -> Message:
        """Nothing takes its end back, also not a cancel that comes while it is being stored."""
        if self._open is None:
            raise TurnClosed
        message = self._open.message(finish)
        self.drop_open()
        self.insert_answer(message)
        return message

    def insert_answer(self, message: Message) -> None:
        """An answer stands before the results of its tools, which were stored while it was still open."""
        calls = {call.id for call in message.tool_calls}
        place = len(self.messages)
        while place and any(result.tool_call_id in calls for result in self.messages[place - 1].tool_results):
            place -= 1
        self.messages.insert(place, message)

    def add(self, messages: Iterable[Message]) -> None:
        """Messages of this run that were stored elsewhere: the prompt, folded prompts."""
        self.messages.extend(messages)

    async def add_result(self, message: Message) -> None:
        self.messages.append(message)
        await self.record(PutMessage(message))

    def drop_open(self) -> None:
        """Forget the growing message: it was removed."""
        self._drop_growth()
        self._open = None

    def close(self) -> Sequence[Message]:
        """Let nothing of the task through from now on; answer all that was said, the open message included.

        A task that was given up may go on for a while: what it adds to its own list is no part of this any more.
        """
        if not self._closed:
            self._closed = True
            self._drop_growth()
            if self._open is not None:
                self.insert_answer(self._open.message())
                self._open = None
            self._said = tuple(self.messages)
        return self._said

    def unstored(self) -> list[Message]:
        """Messages whose write failed, in order."""
        return [message for message in self._said if message.id in self._unstored]

    def _stored(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            if isinstance(operation, StartRun):
                self.is_started = True
            elif isinstance(operation, PutMessage) and operation.message is self._unstored.get(operation.message.id):
                del self._unstored[operation.message.id]

    def open_parts(self) -> tuple[MessagePart, ...]:
        return () if self._open is None else self._open.open_parts()

    def open_message(self) -> Message | None:
        """The growing message as it is now, with all that was streamed."""
        return None if self._open is None else self._open.message()

    def _publish(self, growth: MessagePart) -> None:
        self._outlet.publish_live(MessagePartEvent(growth))
        if _is_structural(growth) and self._may_put_whole():
            message = self._take_whole()
            self._recorder.put(PutMessage(message), sync=False, announce=partial(self._announce, message))
            return
        self._growth.append(growth)
        self._flush_in_time()

    def _flush_in_time(self) -> None:
        if self._grown >= self._pace.characters:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pace.seconds, self._flush)

    def _announce(self, message: Message, receipt: Receipt) -> None:
        """The message went on growing while it was stored: say again what its readers would otherwise lose."""
        self._outlet.publish(receipt.entries)
        now = self._open
        if now is not None and now.id == message.id:
            stored = dict(enumerate(message.parts))
            for part in now.open_parts():
                if part.content != stored.get(part.part):
                    self._outlet.publish_live(MessagePartEvent(part))

    def _may_put_whole(self) -> bool:
        """A change of structure is told durably, unless such updates already cost more than the message.

        So the bytes written stay proportional to its length, however many tool calls it holds.
        """
        size = 0 if self._open is None else self._open.size
        return self._spent <= 2 * size + 8_192

    def _take_whole(self) -> Message:
        if self._open is None:
            raise TurnClosed
        self._spent += self._open.size + 256
        self._drop_growth()
        return self._open.message()

    def _flush(self) -> None:
        growth = tuple(_merged(self._growth))
        self._drop_growth()
        if growth:
            self._recorder.put(GrowMessage(growth), sync=False)

    def _drop_growth(self) -> None:
        self._growth = []
        self._grown = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_structural(growth: MessagePart) -> bool:
    """A call that began or is complete, a thought that is over; not the first words of a part that grows on."""
    match growth.content:
        case ToolCallPart():
            return True
        case ReasoningPart(data=reasoning):
            return bool(reasoning.finished_at)
        case _:
            return False


def _merged(growth: list[Growth]) -> Iterable[Growth]:
    """Adjacent deltas of one part become one, so that a flush costs rows by parts, not by tokens."""
    run: list[MessageDelta] = []
    for item in growth:
        if run and not (isinstance(item, MessageDelta) and item.part == run[0].part):
            yield _joined(run)
            run = []
        if isinstance(item, MessageDelta):
            run.append(item)
        else:
            yield item
    if run:
        yield _joined(run)


def _joined(run: list[MessageDelta]) -> MessageDelta:
    return msgspec.structs.replace(run[0], text="".join(item.text for item in run))
