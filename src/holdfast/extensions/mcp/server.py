"""One server and its owner: a task that connects, keeps the lists, and connects again.

The connection is opened and closed in that task and nowhere else. Others ask for it with `connection()`; what they
learn of its end, they tell with `connection.end()`.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast.domain.errors import HoldfastError
from holdfast.domain.mcp import NEVER, McpChange, McpInfo, McpNotice
from holdfast.domain.settings import McpSettings
from holdfast.extensions.base import Ground
from holdfast.extensions.mcp import states
from holdfast.extensions.mcp.memory import Remembered
from holdfast.extensions.mcp.names import is_wanted, tool_names
from holdfast.extensions.mcp.patience import Doors, Patience
from holdfast.extensions.mcp.shapes import LISTS, ListName, Plan, Way
from holdfast.extensions.mcp.tokens import Tokens
from holdfast.extensions.mcp.troubles import CallFailed, CannotBegin, Gone, LoginNeeded, innermost, sentence
from holdfast.providers.client import in_thread
from holdfast.tasks import TaskOwner
from holdfast.workspace.environment import command_environment
from holdfast.workspace.output import Output
from holdfast.workspace.secrets import redacted

if TYPE_CHECKING:
    from holdfast.extensions.mcp.wire import Connection

__all__ = ["McpServer", "Shared", "way_of"]

WIRE = "holdfast.extensions.mcp.wire"
PING = 10.0
"""Seconds in which a server that is asked for a sign of life gives one."""
IDLE = 30.0
"""After so many quiet seconds a connection is tried before it is used."""
_MOST = 256
"""Entries of a list that are taken from one server."""
_LOG = 32_768
_LAST = 2_048
_LONGEST_WORDS = 8_192
_CHANGES: dict[ListName, McpChange] = {
    "tools": "tools_list_changed",
    "prompts": "prompts_list_changed",
    "resources": "resources_list_changed",
}
_NEEDS_LOGIN = "It wants a login: holdfast mcp login {}"


def way_of(settings: McpSettings) -> Way:
    """An address alone says enough."""
    return "http" if settings.type == "stdio" and settings.url and not settings.command else settings.type


class Shared(msgspec.Struct, frozen=True):
    """What the servers of a workspace have in common. `doors` lets in a few at a time, `tell` hears of changes,
    `look_after` is given one that may have stalled or gone.
    """

    tokens_for: Callable[[str], Tokens]
    doors: Doors
    patience: Patience
    tell: Callable[["McpServer", McpChange], None]
    look_after: Callable[["McpServer"], None]


class McpServer:
    """`settings` are as they were written; they are expanded before every try."""

    def __init__(
        self, name: str, settings: McpSettings, ground: Ground, shared: Shared, *, is_lent: bool = False
    ) -> None:
        self.name = name
        self.settings = settings
        self.is_lent = is_lent
        """A client brought it along: what it says is meant as it stands there."""
        self.url = settings.url
        """Expanded, once it was tried."""
        self.standing = states.DISABLED if settings.disabled else states.WAITING
        self.lists: dict[ListName, tuple[dict[str, Any], ...]] = dict.fromkeys(LISTS, ())
        self.names: dict[str, str] = {}
        """What models know its tools by."""
        self.instructions = ""
        self.is_remembered = False
        """Whether it is known what it offers, though it may not be connected."""
        self.tries = 0
        self._ground = ground
        self._shared = shared
        self._log = Output(_LOG)
        self._last = b""
        self._connection: Connection | None = None
        self._connected_at = NEVER
        self._stale: set[ListName] = set()
        self._bell = asyncio.Event()
        self._wake = asyncio.Event()
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # What others may know

    @property
    def seconds(self) -> float:
        """How long it has to answer what is asked of it in passing."""
        return float(self.settings.timeout or 10)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing more to wait for: it is known, or its first try is over."""
        return self.settings.disabled or self.is_remembered or self.standing.state != "starting" or self.tries > 1

    def info(self) -> McpInfo:
        return McpInfo(
            self.name,
            self.standing.state,
            self._connected_at,
            self.standing.reason,
            len(self.names),
            len(self.lists["prompts"]),
            len(self.lists["resources"]),
            way_of(self.settings),
            tuple(self.names.values()),
        )

    def notice(self, change: McpChange) -> McpNotice:
        info = self.info()
        counts = info.tool_count, info.prompt_count, info.resource_count
        return McpNotice(change, self.name, info.state, info.error, *counts)

    def _tell(self, change: McpChange) -> None:
        self._shared.tell(self, change)

    def log(self) -> str:
        """What it has printed for people, its middle left out if there is too much."""
        return self._log.shown(2 * _LOG)

    def remember(self, known: Remembered) -> None:
        """What it offered the last time, until it says something else."""
        for what in LISTS:
            self._take(what, list(known.lists.get(what, ())))
        self.instructions = known.instructions
        self.is_remembered = True

    # The owner

    async def own(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._pause()
            self.tries += 1
            self._stand(states.begun(self.standing))
            joined_at: list[float] = []
            try:
                await self._live(joined_at)
            except Exception as error:
                lasted = asyncio.get_running_loop().time() - joined_at[0] if joined_at else None
                self._stand(self._after(error, lasted))

    async def _pause(self) -> None:
        """Until it is time for the next try, or somebody asks for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.standing.pause):
                await self._wake.wait()
        self._wake.clear()

    async def _live(self, joined_at: list[float]) -> None:
        """One connection, from its beginning to its end, which is an error."""
        self._last = b""
        try:
            wire = await in_thread(WIRE)
            plan = await self._plan()
            async with AsyncExitStack() as stack:
                async with self._shared.doors.entered():
                    connection = await stack.enter_async_context(wire.opened(plan, self.seconds))
                    await self._look(connection)
                joined_at.append(asyncio.get_running_loop().time())
                self._joined(connection)
                await self._host(connection)
            raise Gone(self._why(connection.why))
        finally:
            self._connection = None

    def _joined(self, connection: "Connection") -> None:
        self._connection = connection
        self.instructions = connection.instructions[:_LONGEST_WORDS]
        self._connected_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._stand(states.joined(self.standing))

    async def _host(self, connection: "Connection") -> None:
        """Until it ends. What it is asked meanwhile may hang with it: that is waited for elsewhere."""
        tasks = TaskOwner()
        tasks.start(self._keep_lists(connection), name=f"lists of {self.name}")
        try:
            await connection.ended.wait()
        finally:
            self._connection = None
            tasks.cancel_all()
            await tasks.drain()

    async def _keep_lists(self, connection: "Connection") -> None:
        """Those that have changed are read again: at once, then less and less often if it goes on like that."""
        pause = states.FIRST_PAUSE
        while True:
            is_quiet = not self._stale
            await self._bell.wait()
            self._bell.clear()
            stale, self._stale = self._stale, set()
            for what in stale:
                await self._renew(connection, what)
            pause = states.pause_between(pause, is_quiet=is_quiet)
            await asyncio.sleep(pause)

    async def _renew(self, connection: "Connection", what: ListName) -> None:
        before = self.lists[what]
        try:
            listing = connection.listed(what)
            items = await self._shared.patience.wait(listing, self.seconds, name=f"{what} of {self.name}")
        except TimeoutError:
            connection.end(f"It did not answer within {self.seconds:g} seconds.")
        except CallFailed as error:
            self.said(f"[{what} cannot be listed: {sentence(error)}]\n".encode())
        except Gone:
            connection.end()
        else:
            self._take(what, items)
            # Stock clients answer this by asking for the list to be read again: it is said once.
            if self.lists[what] != before:
                self._tell(_CHANGES[what])

    async def _look(self, connection: "Connection") -> None:
        """All lists, when a connection is new. A list that cannot be had is empty."""
        self._stale.clear()
        for what in LISTS:
            items: list[dict[str, Any]] = []
            if connection.offers(what):
                try:
                    async with asyncio.timeout(self.seconds):
                        items = await connection.listed(what)
                except TimeoutError:
                    raise Gone(f"It did not list its {what} within {self.seconds:g} seconds.") from None
                except CallFailed as error:
                    self.said(f"[{what} cannot be listed: {sentence(error)}]\n".encode())
            self._take(what, items)

    def _take(self, what: ListName, items: list[dict[str, Any]]) -> None:
        known = tuple(items[:_MOST])
        if what == "tools":
            settings = self.settings
            known = tuple(
                item for item in known if is_wanted(item["name"], settings.enabled_tools, settings.disabled_tools)
            )
            self.names = tool_names(self.name, (item["name"] for item in known))
        self.lists[what] = known

    def _after(self, error: Exception, lasted: float | None) -> states.Standing:
        errors = list(innermost(error))
        if any(isinstance(inside, LoginNeeded) for inside in errors):
            return states.barred(_NEEDS_LOGIN.format(self.name))
        told = next((inside for inside in errors if isinstance(inside, HoldfastError)), errors[0])
        reason = sentence(told)
        if lasted is not None:
            return states.lost(self.standing, reason, lasted)
        return states.failed(self.standing, self._why(reason), is_final=isinstance(told, CannotBegin))

    def _why(self, reason: str) -> str:
        """With the last words it printed, for a program that has gone."""
        last = redacted(self._last.decode("utf-8", "replace").strip())[:200]
        return f"{reason} It said: {last}" if last and way_of(self.settings) == "stdio" else reason

    def _stand(self, standing: states.Standing) -> None:
        is_news = (standing.state, standing.reason) != (self.standing.state, self.standing.reason)
        self.standing = standing
        if standing.state != "connected":
            self._connected_at = NEVER
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)
        if is_news:
            self._tell("state_changed")

    def retire(self) -> None:
        """It has no owner any more. Whoever waits for it learns that."""
        self._stand(states.DISABLED)

    # What it is given to begin with

    async def _plan(self) -> Plan:
        """Raises `CannotBegin`."""
        settings = self.settings
        if not self.is_lent:
            settings, problems = await asyncio.to_thread(self._ground.configuration.mcp, self.name)
            if problems:
                raise CannotBegin(str(problems[0]))
        way = way_of(settings)
        faltered = partial(self._shared.look_after, self)
        plan = Plan(way, self._ground.path, self._ground.spawn, self.said, self.refresh, faltered)
        if way == "stdio":
            if not settings.command:
                raise CannotBegin(f"It has no command: set mcp.{self.name}.command, or a url.")
            environment = self._environment() | settings.env
            return msgspec.structs.replace(plan, command=(settings.command, *settings.args), environment=environment)
        self.url = settings.url
        if urlsplit(settings.url).scheme not in ("http", "https") or not urlsplit(settings.url).hostname:
            raise CannotBegin(f"Its address is not one: mcp.{self.name}.url begins with http:// or https://.")
        has_own = any(name.lower() == "authorization" for name in settings.headers)
        tokens = None if settings.oauth is False or has_own else self._shared.tokens_for(settings.url)
        return msgspec.structs.replace(plan, url=settings.url, headers=settings.headers, tokens=tokens)

    def _environment(self) -> dict[str, str]:
        """What commands get. The keys of models are not in it, unless its settings say so."""
        withheld, secrets = self._ground.secrets()
        given = self._ground.environment
        return command_environment(os.environ, given, cwd=self._ground.path, withheld=withheld, secrets=secrets)

    def said(self, data: bytes) -> None:
        self._log.feed(data)
        lines = data[-_LAST:].splitlines()
        if any(line.strip() for line in lines):
            self._last = next(line for line in reversed(lines) if line.strip())

    # What others ask for

    def wake(self) -> None:
        """Try now."""
        self._wake.set()

    def refresh(self, what: ListName) -> None:
        """Read a list again, soon."""
        self._stale.add(what)
        self._bell.set()

    async def settled(self) -> None:
        while not self.is_settled:
            await asyncio.shield(self._news)

    async def tried(self) -> None:
        """Until a try is over, if one is under way."""
        while self.standing.state == "starting":
            await asyncio.shield(self._news)

    async def connection(self) -> "Connection":
        """The connection, made if need be. Raises `CallFailed`."""
        if (connection := self._connection) is not None and not connection.ended.is_set():
            # One that was heard of lately is there.
            is_idle = asyncio.get_running_loop().time() - connection.heard_at >= IDLE
            if not is_idle or await self._is_alive(connection):
                return connection
            connection.end("It did not answer any more.")
        tries = self.tries + (0 if self.standing.state == "starting" else 1)
        self.wake()
        while self._connection is None or self._connection.ended.is_set():
            if self.standing.state == "disabled":
                raise CallFailed(
                    f"The MCP server {self.name} was switched off, or its settings were changed. Try again."
                )
            if self.tries >= tries and self.standing.state in ("error", "needs auth"):
                raise CallFailed(f"The MCP server {self.name} cannot be reached. {self.standing.reason}")
            await asyncio.shield(self._news)
        self._wake.clear()
        return self._connection

    async def check(self) -> None:
        """Whether it still answers; if not, the connection is given up."""
        if (connection := self._connection) is not None and not await self._is_alive(connection):
            connection.end("It did not answer any more.")

    async def parted(self) -> None:
        """Until the owner knows that the connection has ended, and why."""
        while self.standing.state == "connected":
            await asyncio.shield(self._news)

    async def _is_alive(self, connection: "Connection") -> bool:
        """Any answer is a sign of life."""
        try:
            await self._shared.patience.wait(connection.ping(), min(self.seconds, PING), name=f"ping {self.name}")
        except (TimeoutError, Gone):
            return False
        return True
