"""The conversation of one run while it is active: records and publishes what its task produces.

A turn outlives its task: when the task is cancelled or abandoned, the engine finds here the messages to repair and the
costs to store. After `close`, everything that the task still produces is discarded.

Text deltas are published at once and stored in groups (`Pace`): the work per delta does not depend on the length of the
message. A change of structure (a tool call, the end of reasoning) stores the whole message, unless such writes already
cost more than the message itself.
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
from holdfast.domain.messages import Finish, Message, ReasoningPart, ToolCallPart
from holdfast.domain.model_requests import ModelInfo, StreamPart, TextDelta
from holdfast.domain.runs import PromptExpansion, Run
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
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
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.ports import Clock, NewId, Outlet
from holdfast.engine.recorder import Recorder
from holdfast.engine.response_builder import Growth, ResponseBuilder
from holdfast.engine.settings import Pace

__all__ = ["Turn", "TurnClosed"]


class TurnClosed(HoldfastError):
    """The turn is closed; operations of its task are no longer recorded."""


class Turn:
    """The messages of one run, including the response that is being streamed."""

    def __init__(
        self, run: Run, *, recorder: Recorder, outlet: Outlet, clock: Clock, new_id: NewId, pace: Pace
    ) -> None:
        self.run = run
        self.brief: PromptExpansion | None = None
        """The expansion of the prompt, if it is a command."""
        self.messages: list[Message] = []
        """All complete messages of this run, in order."""
        self.is_started = False
        self.last_operations: tuple[Operation, ...] = ()
        """Operations to store with the end of a turn that was not cut off."""
        self.step = 0
        self._began = asyncio.get_running_loop().time()
        self.cost = 0.0
        """Cost of all reported responses on behalf of this run, its title and its sub-agents included."""
        self.parent: Turn | None = None
        """The turn that waits for this one, if this is a sub-agent's."""
        self.charged_sessions: tuple[SessionId, ...] = (run.session_id,)
        """The sessions whose cost grows with this run: its own, and those above a sub-agent's."""
        self._charged = 0.0
        self._paid = 0.0
        self.running_calls: set[ToolCallId] = set()
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
        self._queued: list[Message] = []
        self._used_call_ids: frozenset[ToolCallId] = frozenset()
        self._closed = False
        self._final_messages: tuple[Message, ...] = ()

    @property
    def factory(self) -> MessageFactory:
        """Creates messages of this run with the current time."""
        return MessageFactory(self.run.session_id, self.run.run_id, self._clock.now_ms() // 1000, self._new_id)

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return self._clock.now_ms()

    @property
    def minutes(self) -> float:
        """Duration of the turn by the monotonic clock: neither setting the clock nor suspending the machine counts."""
        return (asyncio.get_running_loop().time() - self._began) / 60

    async def record(self, *operations: Operation, sync: bool = False) -> Receipt:
        """Store operations of this run, with the cost that is due. Raises `Conflict` if the store refuses them."""
        if self._closed:
            raise TurnClosed
        for operation in operations:
            if isinstance(operation, PutMessage):
                self._unstored[operation.message.id] = operation.message
        # Counted as paid before the write, so that a concurrent write does not charge it again.
        due, self._paid = self._due, self._charged
        self._unanswered += 1

        def unpaid() -> None:
            self._paid -= due

        try:
            answer = await self._recorder.put(
                *self._with_cost(operations, due),
                sync=sync,
                on_answer=lambda answer: unpaid() if isinstance(answer, Refusal) else self._stored(operations),
                on_failure=unpaid,
            )
        except StorageError:
            self._unanswered -= 1
            raise
        self._unanswered -= 1
        if isinstance(answer, Refusal):
            raise Conflict(f"The store refused a write of this run: {answer.reason}.")
        return answer

    def charge(self, cost: float) -> None:
        """Add the cost of a response: to the limits at once, to the sessions with the next write."""
        self._charged += cost
        self.spend(cost)

    def spend(self, cost: float) -> None:
        """Add a cost that is stored elsewhere, of a title or a sub-agent, to the limits of this run and its parents."""
        self.cost += cost
        if self.parent is not None:
            self.parent.spend(cost)

    @property
    def _due(self) -> float:
        return self._charged - self._paid

    def with_cost(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations that end the run, extended by the cost that is not stored yet."""
        return self._with_cost(operations, self._due)

    def _with_cost(self, operations: Sequence[Operation], due: float) -> list[Operation]:
        """Add the cost to the patch of each charged session; add a patch where there is none."""
        changed = list(operations)
        for session in self.charged_sessions if due else ():
            patches = ((place, item.patch) for place, item in enumerate(changed) if isinstance(item, PatchSession))
            place, patch = next(
                ((place, patch) for place, patch in patches if patch.session_id == session),
                (len(changed), SessionPatch(session, self.now_ms() // 1000)),
            )
            changed[place : place + 1] = [PatchSession(msgspec.structs.replace(patch, add_cost=patch.add_cost + due))]
        return changed

    @property
    def has_pending_write(self) -> bool:
        """Whether a write of the task is pending, or the task was cancelled while it waited for one."""
        return self._unanswered > 0

    def add_prompt(self, message: Message) -> None:
        """Add the message of the prompt, to be stored by this turn or with its end. Only the first call counts."""
        if not self.messages:
            self.messages.append(message)
            self._unstored[message.id] = message

    async def start(self) -> None:
        """Store the start of the run, once: it is on disk before the first provider request."""
        if beginning := self._beginning():
            await self.record(*beginning, sync=True)

    def _beginning(self) -> list[Operation]:
        """Return the operations that precede all others of this run; none if they are stored."""
        if self.is_started:
            return []
        return [StartRun(self.run.run_id, self.now_ms()), *(PutMessage(message) for message in self.messages)]

    def queue_message(self, message: Message) -> None:
        """Queue an already stored message for the next model request."""
        self._queued.append(message)

    def add_queued_messages(self) -> None:
        """Append the queued messages to the conversation. Called at step boundaries."""
        self.messages.extend(self._queued)
        self._queued.clear()

    def reserve_call_ids(self, conversation: Iterable[Message]) -> None:
        """Reserve the tool call ids of the earlier conversation. Some models reuse ids in every turn, and screens match
        results by id, so an id must be unique in its session.
        """
        self._used_call_ids = frozenset(call.id for message in conversation for call in message.tool_calls)

    async def begin_step(self, info: ModelInfo, *, is_summary: bool = False) -> Message:
        """Begin a step: store an empty assistant message, which the response will fill."""
        message = self.factory.assistant(info, is_summary=is_summary)
        self.takes_images = info.supports_images
        self.step += 1
        taken = self._used_call_ids.union(call.id for old in self.messages for call in old.tool_calls)
        # Set before the write, so that an end in between includes the message.
        self._open = ResponseBuilder(message, taken)
        self._spent = 0
        beginning = self._beginning()
        step = (StepRun(self.run.run_id, self.step), PutMessage(message))
        await self.record(*beginning, *step, sync=bool(beginning))
        return message

    def feed(self, part: StreamPart) -> None:
        """Add a part of the response. The work does not depend on the length of the response."""
        if self._closed or self._open is None:
            raise TurnClosed
        # The usual case, once per token: text that continues the open part.
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
        """Reset the open response: the request is retried."""
        if self._closed or self._open is None:
            raise TurnClosed
        was_empty = self._open.is_empty
        self._open = self._open.anew()
        if not was_empty or self._due:
            self._drop_growth()
            await self.record(PutMessage(self._open.message()))

    async def discard(self) -> None:
        """Delete the open response, because other messages have to precede it."""
        if self._open is None:
            raise TurnClosed
        await self.record(DeleteMessage(self._open.id))
        self.drop_open()

    def notify(self, notice: AgentNotice) -> None:
        """Publish a notice to current subscribers. It is not stored."""
        if not self._closed:
            self._outlet.publish_live(AgentEvent(Change("created", notice)))

    def publish_output(self, event: ToolOutputEvent) -> None:
        """Publish output of a running tool. It is not stored, because the result contains the relevant part."""
        if not self._closed:
            self._outlet.publish_live(event)

    @property
    def open(self) -> ResponseBuilder | None:
        """The response that is being streamed."""
        return self._open

    async def store_open_message(self) -> Message:
        """Store the open message in full, so that its tool calls are stored before they run."""
        message = self._complete_message()
        await self.record(PutMessage(message))
        return message

    async def rewrite_call(self, call: ToolCallId, text: str) -> None:
        """Replace the arguments of a tool call: the new ones are stored, shown and executed."""
        if self._open is None:
            raise TurnClosed
        self._open.rewrite(call, text)
        await self.store_open_message()

    async def finish_step(self, finish: Finish, *also: Operation) -> Message:
        """Store the complete response."""
        message = self._complete(finish)
        await self.record(*also, PutMessage(message))
        return message

    def finish_last_step(self, finish: Finish, *last_operations: Operation) -> None:
        """Complete the last response of the turn. It is stored together with the run's end."""
        message = self._complete(finish)
        self._unstored[message.id] = message
        self.last_operations = last_operations

    def _complete(self, finish: Finish) -> Message:
        """Return the complete response. A cancel that arrives while it is being stored does not change it."""
        if self._open is None:
            raise TurnClosed
        message = self._open.message(finish)
        self.drop_open()
        self.insert_response(message)
        return message

    def insert_response(self, message: Message) -> None:
        """Insert a response before the results of its tool calls, which were stored while it was open."""
        calls = {call.id for call in message.tool_calls}
        place = len(self.messages)
        # Providers reject a conversation in which a result precedes its call.
        while place and any(result.tool_call_id in calls for result in self.messages[place - 1].tool_results):
            place -= 1
        self.messages.insert(place, message)

    def add(self, messages: Iterable[Message]) -> None:
        """Append messages of this run that are stored elsewhere: the prompt, folded prompts."""
        self.messages.extend(messages)

    def remove(self, messages: Iterable[Message]) -> None:
        """Remove prompts that were added, because the store refused to fold them."""
        removed = {message.id for message in messages}
        self.messages = [message for message in self.messages if message.id not in removed]
        for message_id in removed:
            self._unstored.pop(message_id, None)

    async def add_result(self, message: Message) -> None:
        """Append and store a tool result."""
        self.messages.append(message)
        await self.record(PutMessage(message))

    def drop_open(self) -> None:
        """Forget the open message, which was deleted or completed."""
        self._drop_growth()
        self._open = None

    def close(self) -> Sequence[Message]:
        """Discard everything that the task produces from now on, and return all messages, including the open one.

        An abandoned task may run for a while; the messages that it still adds are not part of the result.
        """
        if not self._closed:
            self._closed = True
            self._drop_growth()
            if self._open is not None:
                self.insert_response(self._open.message())
                self._open = None
            self._final_messages = tuple(self.messages)
        return self._final_messages

    def unstored(self) -> list[Message]:
        """Return the messages whose write failed or is pending, in order."""
        return [message for message in self._final_messages if message.id in self._unstored]

    def _stored(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            if isinstance(operation, StartRun):
                self.is_started = True
            # By identity: a later version of the same message may still be unstored.
            elif isinstance(operation, PutMessage) and operation.message is self._unstored.get(operation.message.id):
                del self._unstored[operation.message.id]

    def open_parts(self) -> tuple[MessagePart, ...]:
        """Return the parts of the response that is being streamed, in full."""
        return () if self._open is None else self._open.open_parts()

    def open_message(self) -> Message | None:
        """Return the open message with all text streamed so far."""
        return None if self._open is None else self._open.message()

    def _publish(self, growth: MessagePart) -> None:
        self._outlet.publish_live(MessagePartEvent(growth))
        # Structure is stored at once, so that a crash cannot lose a tool call; text may lose its last deltas.
        if _is_structural(growth) and self._may_store_whole():
            message = self._complete_message()
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
        """Publish the stored message, then the parts that have grown since: subscribers would lose their deltas."""
        self._outlet.publish(receipt.entries)
        now = self._open
        if now is not None and now.id == message.id:
            stored = dict(enumerate(message.parts))
            for part in now.open_parts():
                if part.content != stored.get(part.part):
                    self._outlet.publish_live(MessagePartEvent(part))

    def _may_store_whole(self) -> bool:
        """Return whether a change of structure stores the whole message: not if such writes already cost more than the
        message. The bytes written stay proportional to its length, whatever the number of tool calls.
        """
        size = 0 if self._open is None else self._open.size
        return self._spent <= 2 * size + 8_192

    def _complete_message(self) -> Message:
        if self._open is None:
            raise TurnClosed
        self._spent += self._open.size + 256
        self._drop_growth()
        return self._open.message()

    def _flush(self) -> None:
        growth = tuple(_merge_deltas(self._growth))
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
    """Return whether a part begins or completes a tool call or completes reasoning; not the first text of a part."""
    match growth.content:
        case ToolCallPart():
            return True
        case ReasoningPart(data=reasoning):
            return bool(reasoning.finished_at)
        case _:
            return False


def _merge_deltas(growth: list[Growth]) -> Iterable[Growth]:
    """Merge adjacent deltas of one part, so that a flush writes one row per part, not per token."""
    run: list[MessageDelta] = []
    for item in growth:
        if run and not (isinstance(item, MessageDelta) and item.part == run[0].part):
            yield _join(run)
            run = []
        if isinstance(item, MessageDelta):
            run.append(item)
        else:
            yield item
    if run:
        yield _join(run)


def _join(run: list[MessageDelta]) -> MessageDelta:
    return msgspec.structs.replace(run[0], text="".join(item.text for item in run))
