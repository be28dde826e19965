"""The app's line to the server: one workspace, its events folded into a view, and what a person can ask for.

It never gives up: a broken stream is taken up where it broke, a server that went away is started again. Who draws
is told which messages changed, and draws when it likes.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Literal

from holdfast.client.client import Client
from holdfast.client.errors import ClientError, ServerProblem
from holdfast.client.items import Item
from holdfast.client.locate import Where, find_or_start
from holdfast.client.view import View
from holdfast.domain.events import (
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    ToolOutputEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import Message, ToolResult
from holdfast.domain.runs import Attachment, Delivery, Run
from holdfast.protocol.bodies import Accepted, AgentMessage, SnapshotBody
from holdfast.tasks import TaskOwner

__all__ = ["Link", "LinkState"]

LinkState = Literal["connecting", "live", "broken"]


class Link:
    """One screen's attachment to a workspace."""

    def __init__(self, where: Where, directory: str, *, on_change: Callable[[], None], yolo: bool = False) -> None:
        self._where = where
        self._directory = directory
        self._yolo = yolo
        self._on_change = on_change
        self._tasks = TaskOwner()
        self._client: Client | None = None
        self._workspace = WorkspaceId("")
        self.view = View()
        self.session: SessionId | None = None
        self.state: LinkState = "connecting"
        self.trouble = ""
        self.dirty: dict[MessageId, None] = {}
        """Messages of the session that changed since somebody drew them."""
        self.is_new = True
        """Whether the whole session has to be drawn."""
        self.results: dict[ToolCallId, ToolResult] = {}
        self._calls: dict[ToolCallId, MessageId] = {}
        self._latest: MessageId | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None, "the link is open"
        return self._client

    @property
    def workspace(self) -> WorkspaceId:
        return self._workspace

    @property
    def directory(self) -> str:
        return self.view.workspace.path if self.view.workspace else self._directory

    async def open(self) -> None:
        """Find or start the server, enter the workspace, load what is there. Raises `ClientError`."""
        await self._enter()
        self._load(await self.client.snapshot(self._workspace))
        self._tasks.start(self._follow(), name="events")

    async def close(self) -> None:
        self._tasks.cancel_all()
        await self._tasks.drain()
        if self._client is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._client.leave_workspace(self._workspace)
            except (ClientError, TimeoutError):
                pass
            await self._client.close()

    async def _enter(self) -> None:
        thin = await asyncio.to_thread(find_or_start, self._where)
        address = thin.address
        thin.close()
        if self._client is None:
            self._client = Client(address)
        environment = tuple(f"{name}={value}" for name, value in os.environ.items())
        body = await self._client.create_workspace(self._directory, yolo=self._yolo, env=environment)
        self._workspace = body.id

    # Following.

    async def _follow(self) -> None:
        while True:
            try:
                await self._stream()
            except ClientError as error:
                self._set_state("broken", str(error))
            try:
                await self._enter()
            except ClientError as error:
                self._set_state("broken", str(error))
                await asyncio.sleep(1.0)

    async def _stream(self) -> None:
        async with self.client.events(self._workspace, since=self.view.cursor) as events:
            watching = self._tasks.start(self._watch(events), name="connection")
            try:
                async for item in events:
                    self._set_state("live", "")
                    self._take(item)
                    if self.view.is_stale:
                        self._load(await self.client.snapshot(self._workspace, self.session))
            finally:
                watching.cancel()

    async def _watch(self, events: object) -> None:
        """Say when the connection is gone for longer than a blink."""
        while True:
            await asyncio.sleep(0.5)
            if not getattr(events, "is_connected", True):
                self._set_state("broken", str(getattr(events, "trouble", "") or ""))

    def _set_state(self, state: LinkState, trouble: str) -> None:
        if (state, trouble) != (self.state, self.trouble):
            self.state, self.trouble = state, trouble
            self._on_change()

    def _load(self, snapshot: SnapshotBody) -> None:
        self.view.load(snapshot, self.session)
        self._index_all()
        self.is_new = True
        self._set_state("live", "")
        self._on_change()

    def _index_all(self) -> None:
        self.results.clear()
        self._calls.clear()
        self._latest = None
        self.dirty.clear()
        for message in self.messages():
            self._index(message)

    def _index(self, message: Message) -> None:
        if message.role == "assistant":
            self._latest = message.id
        for call in message.tool_calls:
            self._calls[call.id] = message.id
        for result in message.tool_results:
            self.results[result.tool_call_id] = result
            if (owner := self._calls.get(result.tool_call_id)) is not None:
                self.dirty[owner] = None

    def _take(self, item: Item) -> None:
        if not self.view.apply(item):
            return
        match item.event:
            case MessageEvent(payload=change) if change.payload.session_id == self.session:
                self._index(change.payload)
                self.dirty[change.payload.id] = None
            case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
                if growth.session_id == self.session:
                    self.dirty[growth.message_id] = None
            case ToolOutputEvent(payload=output) if output.session_id == self.session:
                self.dirty[output.message_id] = None
            case _:
                pass
        self._on_change()

    # What is there.

    def messages(self) -> tuple[Message, ...]:
        return self.view.messages(self.session) if self.session is not None else ()

    def message(self, message: MessageId) -> Message | None:
        return self.view.message(self.session, message) if self.session is not None else None

    def latest(self) -> Message | None:
        """The newest answer."""
        return self.message(self._latest) if self._latest else None

    def runs(self) -> list[Run]:
        """The runs of the session that have not ended, in order."""
        if self.session is None:
            return []
        return [run for run in self.view.runs_of(self.session) if run.state != "ended"]

    # What a person can ask for.

    async def choose(self, session: SessionId | None) -> None:
        """Look at another session, or at none."""
        self.session = session
        self._load(await self.client.snapshot(self._workspace, session))
        try:
            await self.client.set_current_session(self._workspace, session or SessionId(""))
        except ServerProblem:
            # Only for others to see; without an open stream there is nobody to show.
            return

    async def prompt(
        self, text: str, *, delivery: Delivery | None = None, attachments: tuple[Attachment, ...] = ()
    ) -> Accepted:
        """Send a prompt; the first one makes the session."""
        if self.session is None:
            made = await self.client.create_session(self._workspace)
            await self.choose(made.id)
        assert self.session is not None
        message = AgentMessage(
            self.session,
            text,
            attachments=attachments or None,
            delivery=delivery,
            client_id=self.client.client_id,
            interactive=True,
        )
        return await self.client.send_prompt(self._workspace, message)

    async def cancel(self) -> tuple[RunId, ...]:
        if self.session is None:
            return ()
        return tuple((await self.client.cancel_session(self._workspace, self.session)).cancelled)
