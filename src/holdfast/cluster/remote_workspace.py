"""A workspace on a node that does not own it: accepts inputs, serves reads and event streams.

Inputs are stored without the owner (`SharedLedger.accept`), also while it is dead or being replaced; the owner reads
them from the log. Everything that this node knows about the workspace comes from rows and stored events, so it is the
same on every node. `catch_up` after an input lets the client that sent it see its effects in its next request.
"""

from collections.abc import Callable, Sequence

from holdfast.bus.bus import Bus
from holdfast.cluster.live_events import OpenMessages
from holdfast.cluster.log_reader import POLL_SECONDS, LogReader
from holdfast.cluster.remote_approvals import RemoteApprovals
from holdfast.cluster.stored_inputs import InputStore, StoredInputs, StoredSessions
from holdfast.cluster.stored_state import OpenRequests, StoredRuns, may_rearrange
from holdfast.domain.events import AgentEvent, LiveEvent, MessagePart
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.store_operations import Entry, WorkspaceRecord
from holdfast.engine.ports import Clock, NewId, SharedLedger
from holdfast.engine.recorder import decode_entries
from holdfast.engine.run_lifecycle import Lane
from holdfast.tasks import TaskOwner

__all__ = ["RemoteWorkspace", "open_remote_workspace"]

_PAGE_SIZE = 500


class RemoteWorkspace:
    """A workspace that another node owns, or none. `start` must be called first.

    `notify_owner` is called after each stored input; the owner finds it within a second without. With a `bus` the
    events continue after its newest one: this node was the owner before.
    """

    def __init__(
        self,
        record: WorkspaceRecord,
        ledger: SharedLedger,
        clock: Clock,
        new_id: NewId,
        notify_owner: Callable[[], None] = lambda: None,
        bus: Bus | None = None,
    ) -> None:
        self.record = record
        self.ledger = ledger
        self.clock = clock
        self.new_id = new_id
        self._open_messages = OpenMessages(self.publish_live, lambda run: ledger.messages_of_run(record.id, run))
        if bus is None:
            bus = Bus(record, ledger, self.open_parts)
        else:
            bus.change_source(record, self.open_parts)
        self.bus = bus
        self._runs = StoredRuns(())
        self._requests = OpenRequests()
        self._tasks = TaskOwner()
        self._reader = LogReader(ledger, record.id, bus.newest, self._deliver)
        store = InputStore(ledger, record.id, self._reader, notify_owner)
        self.inputs = StoredInputs(store, clock, new_id)
        self.sessions = StoredSessions(store, clock, new_id)
        self.approvals = RemoteApprovals(store, self._requests)

    async def start(self, poll_seconds: float | None = POLL_SECONDS) -> None:
        """Read the state, then follow the log. With `poll_seconds` None the caller polls, and calls `wake`."""
        open_runs = await self.ledger.open_runs(self.id)
        # A request is stored after its run, so older events need not be read. Events that are read again later repeat
        # the same changes.
        cursor = min((run.number - 1 for run in open_runs), default=self._reader.cursor)
        while page := await self.ledger.events_after(self.id, cursor, _PAGE_SIZE):
            for entry in decode_entries(page):
                self._requests.apply(entry.event)
            cursor = page[-1][0]
        self._runs = StoredRuns(open_runs)
        for run in open_runs:
            if run.started_at:
                self._open_messages.add(await self.ledger.messages_of_run(self.id, run.run_id))
        self._reader.start(poll_seconds)

    @property
    def id(self) -> WorkspaceId:
        """The id of the workspace."""
        return self.record.id

    @property
    def path(self) -> str:
        """The real path of the directory."""
        return self.record.path

    def publish_live(self, event: LiveEvent) -> None:
        """Publish an event that is not stored to the subscribers of this node."""
        self.bus.publish_live(event)

    def is_busy(self, session: SessionId | None = None) -> bool:
        """Return True while a run of the session, or of any session, has no end."""
        return self._runs.is_busy(session)

    def lane(self, session: SessionId) -> Lane:
        """Return the scheduling state of a session, as far as it is stored."""
        return self._runs.lane(session)

    def open_parts(self) -> list[MessagePart]:
        """Return the message parts that the owner is streaming, as far as they are known here."""
        return self._open_messages.open_parts()

    def open_messages(self, session: SessionId) -> list[Message]:
        """Return the messages of a session that the owner is streaming."""
        return self._open_messages.open_messages(session)

    def receive(self, event: LiveEvent) -> None:
        """Publish an event that the owner has sent."""
        if isinstance(event, AgentEvent) and event.change.object.type == "agent_finished":
            # It follows the end of its run, and notifications arrive before the log is read. Crush clients read the
            # state of the session again when they receive it.
            self._tasks.start(self._publish_after_log(event), name="end of a turn")
        else:
            self._open_messages.receive(event)

    async def _publish_after_log(self, event: LiveEvent) -> None:
        await self._reader.catch_up()
        self.publish_live(event)

    def wake(self, on_found: Callable[[], None] | None = None) -> None:
        """Read the log again soon. Called after a wake-up. `on_found` is called when new events were published."""
        self._reader.wake(on_found)

    async def catch_up(self) -> None:
        """Return when every event that is stored by now is published here."""
        await self._reader.catch_up()

    @property
    def cursor(self) -> int:
        """The last number that was published here."""
        return self._reader.cursor

    def stop(self) -> None:
        """Stop following the log. The event streams continue with the next source of the bus."""
        self._reader.close()
        self._open_messages.close()

    async def close(self) -> None:
        """Stop following the log and end the event streams."""
        self.stop()
        self.bus.close()

    async def _deliver(self, entries: Sequence[Entry]) -> None:
        order = None
        if any(may_rearrange(entry.event) for entry in entries):
            order = [run.run_id for run in await self.ledger.open_runs(self.id)]
        for entry in entries:
            self._runs.apply(entry.event)
            self._open_messages.apply(entry.event)
            if self._requests.apply(entry.event):
                self.approvals.batch_closed()
        if order is not None:
            self._runs.arrange(order)
        self.bus.publish(entries)


async def open_remote_workspace(
    path: str,
    ledger: SharedLedger,
    clock: Clock,
    new_id: NewId,
    notify_owner: Callable[[], None] = lambda: None,
) -> RemoteWorkspace:
    """Open the workspace of a directory without becoming its owner."""
    workspace = RemoteWorkspace(await ledger.join_workspace(path), ledger, clock, new_id, notify_owner)
    await workspace.start()
    return workspace
