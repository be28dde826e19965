"""A command's connection to the server: finds or starts it, opens the workspace of a directory, and sends requests
synchronously.
"""

import math
import os
import select
import time
from collections.abc import Callable, Mapping
from json import dumps, loads
from typing import Any, TypeVar

from holdfast.cli.fast_import import undisturbed
from holdfast.client.address import Address, QueryItems
from holdfast.client.backoff import Backoff
from holdfast.client.errors import (
    BrokenResponse,
    ClientError,
    ConnectionLost,
    ServerProblem,
    TimedOut,
    Unreachable,
    message_of,
)
from holdfast.client.locate import ServerLocation, find, find_or_start, locate, unreachable
from holdfast.client.server_check import gives_way
from holdfast.client.sync_client import SyncClient, SyncEventStream
from holdfast.domain.errors import BadRequest
from holdfast.http11.messages import quote

__all__ = ["FROM_NOW", "ServerConnection", "environment_of", "new_id", "path_of", "text_in", "wait_quietly"]

T = TypeVar("T")

FROM_NOW = 1 << 52
"""A number that no log has reached: the stream answers with a gap event that contains its position, and continues
there.
"""

_NO_TOKEN = "The server wants its token: name its data directory, which has it, with --data-dir or HOLDFAST_DATA_DIR"
_ANSWER = 30.0
_PATIENCE = 5.0


def new_id() -> str:
    """Return 32 hexadecimal digits: valid as a run id and as a UUID."""
    return os.urandom(16).hex()


def wait_quietly(seconds: float) -> None:
    """Sleep between two attempts."""
    select.select([], [], [], seconds)


class ServerConnection:
    """Connection of a command. `workspace` is empty until a directory was opened. A server that dies is started again
    once.
    """

    def __init__(self, where: ServerLocation, directory: str = "") -> None:
        self.where = where
        self.client_id = new_id()
        self.workspace = ""
        self.directory = (where.directory or directory) if directory else ""
        self.patience = _ANSWER
        """Maximum duration of a request in seconds."""
        self.deadline: float | None = None
        """Time after which no response is awaited."""
        # True if another client has disabled approvals in the workspace.
        self.is_yolo = False
        self.problems: list[str] = []
        """Errors in the settings of the workspace, each with its file and line."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while a server starts, to use the time."""
        self._thin: SyncClient | None = None
        self._starts = 1 if where.can_be_started else 0
        self._has_looked = False

    def connect(self, *, can_start: bool = True) -> None:
        """Find the server, or start it. Raises `Unreachable` if it must not be started."""
        self.close()
        may_start = can_start and self._starts > 0
        thin = find(self.where, self._seconds())
        if thin is None and not may_start:
            raise unreachable(self.where)
        if thin is None or (may_start and self._is_outdated(thin)):
            self._starts -= 1
            thin = find_or_start(self.where, meanwhile=self.meanwhile)
        self._thin = thin

    @property
    def address(self) -> Address:
        """The address of the connected server."""
        return self.where.address if self._thin is None else self._thin.address

    def _seconds(self) -> float:
        """Return the maximum duration of the next request."""
        left = self.patience if self.deadline is None else self.deadline - time.monotonic()
        return max(0.001, min(self.patience, left))

    def _is_outdated(self, thin: SyncClient) -> bool:
        """Return True if an older server has stopped so that a new one can be started. Checked once."""
        if self._has_looked:
            return False
        is_outdated = gives_way(thin)
        self._has_looked = True
        return is_outdated

    def enter(self, pause: Callable[[float], None] = wait_quietly) -> None:
        """Connect, and open the workspace of the directory if there is one. Waits for a server that is shutting down,
        then starts a new one.
        """
        is_first = self._thin is None
        backoff = Backoff(lambda: 1.0, first=0.02, most=0.5)
        deadline = min(time.monotonic() + _PATIENCE, self.deadline or math.inf)
        while True:
            try:
                self.connect()
                if self.directory:
                    self._join()
                break
            except (ConnectionLost, TimedOut, Unreachable, ServerProblem) as error:
                if not self._may_pass(error, is_first=is_first) or time.monotonic() > deadline:
                    raise
                pause(backoff.wait())
        if is_first and self.where.can_be_started:
            self._starts = 1

    def _may_pass(self, error: ClientError, *, is_first: bool) -> bool:
        if isinstance(error, ServerProblem):
            return error.status == 503
        # A server that answered and has stopped since is replaced, if one can be started.
        return not (isinstance(error, Unreachable) and is_first and self._starts <= 0)

    def _join(self) -> None:
        asked: dict[str, object] = {"id": "", "path": self.directory, "client_id": self.client_id}
        if self.where.address.path and self.where.again is None:
            asked["env"] = environment_of(os.environ)
        joined = self.ask_plainly("POST", "/v1/workspaces", body=asked, can_repeat=True)
        self.workspace = text_in(joined, "id")
        self.is_yolo = joined.get("yolo") is True
        problems = joined.get("problems")
        self.problems = [str(item) for item in problems] if isinstance(problems, list) else []

    def path(self, *names: str) -> str:
        """Return the path of a resource in the workspace."""
        return path_of(self.workspace, *names)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: QueryItems = (),
        can_repeat: bool = False,
        seconds: float | None = None,
    ) -> bytes:
        """Send a request and return the body of the response. Every status from 200 to 299 is a success (C-28)."""
        if self._thin is None:
            raise Unreachable
        raw = None if body is None else _encoded(body)
        seconds = self.patience if seconds is None else seconds
        if self.deadline is not None:
            seconds = max(0.001, min(seconds, self.deadline - time.monotonic()))
        status, answer = self._thin.request(method, path, query, raw, timeout=seconds, can_repeat=can_repeat)
        if status == 401:
            raise ServerProblem(status, _NO_TOKEN)
        if not 200 <= status < 300:
            raise ServerProblem(status, message_of(answer))
        return answer

    def ask(
        self,
        answer: type[T],
        method: str,
        path: str,
        *,
        body: object = None,
        query: QueryItems = (),
        can_repeat: bool = False,
    ) -> T:
        """Send a request and decode the response."""
        import msgspec

        raw = self.send(method, path, body=body, query=query, can_repeat=can_repeat)
        try:
            with undisturbed():
                return msgspec.json.decode(raw, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokenResponse from None

    def ask_plainly(self, method: str, path: str, *, body: object = None, can_repeat: bool = False) -> dict[str, Any]:
        """Send a request and decode the response without types, before msgspec is imported, because the import takes
        longer than the request.
        """
        raw = self.send(method, path, body=body, can_repeat=can_repeat)
        try:
            answer = loads(raw)
        except (ValueError, RecursionError):
            raise BrokenResponse from None
        if not isinstance(answer, dict):
            raise BrokenResponse
        return answer

    def stream(self, since: int) -> SyncEventStream:
        """Open the event stream after a number."""
        if self._thin is None:
            raise Unreachable
        return self._thin.stream(self.path("events"), (("client_id", self.client_id), ("since", since)))

    def close(self) -> None:
        """Close the connection."""
        thin, self._thin = self._thin, None
        if thin is not None:
            thin.close()


def entered(where: Mapping[str, Any]) -> ServerConnection:
    """Connect to the workspace that a command's options select."""
    link = ServerConnection(locate(where["host"], where["data_dir"]), where["cwd"])
    link.enter()
    return link


def text_in(answer: Mapping[str, object], name: str) -> str:
    """Return a required text field of a response."""
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise BrokenResponse
    return value


def path_of(workspace: str, *names: str) -> str:
    """Return the path of a resource. Raises `BadRequest` for an invalid id."""
    segments = (workspace, *names)
    if any(name in {"", ".", ".."} for name in segments):
        raise BadRequest("That is not an id: look at the list for one.")
    return "/v1/workspaces/" + "/".join(quote(name) for name in segments)


def _encoded(body: object) -> bytes:
    if isinstance(body, dict):
        return dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    import msgspec

    return msgspec.json.encode(body)


def environment_of(known: Mapping[str, str]) -> list[str]:
    """Return the environment variables that are valid text."""
    pairs = (f"{name}={value}" for name, value in known.items())
    return [pair for pair in pairs if pair.isascii() or pair == pair.encode("utf-8", "replace").decode()]
