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

from holdfast.cli.fast_msgspec_import import signals_blocked
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
from holdfast.client.failover import AllFailed, Round, can_move_on
from holdfast.client.server_address import QueryItems, ServerAddress
from holdfast.client.server_check import replace_outdated
from holdfast.client.server_launcher import ServerLocation, connect_to, find, find_or_start, locate, unreachable
from holdfast.client.sync_client import SyncClient, SyncEventStream
from holdfast.domain.errors import BadRequest
from holdfast.http11.client_messages import IDEMPOTENT, quote

__all__ = [
    "CHECK_INTERVAL",
    "FROM_NOW",
    "ServerConnection",
    "environment_pairs",
    "new_id",
    "required_text",
    "resource_path",
    "sleep",
]

T = TypeVar("T")

FROM_NOW = 1 << 52
"""A number that no log has reached: the stream answers with a gap event that contains its position, and continues
there.
"""

_TOKEN_REQUIRED = (
    "The server requires its token: give the data directory that contains it, with --data-dir or HOLDFAST_DATA_DIR"
)
CHECK_INTERVAL = 5.0
"""Seconds without data after which the server of a stream is checked, if there is another one."""
_REQUEST_TIMEOUT = 30.0
"""Maximum seconds for a request."""
_OPEN_TIMEOUT = 5.0
"""Maximum seconds of retries while a workspace is opened."""


def new_id() -> str:
    """Return 32 hexadecimal digits: valid as a run id and as a UUID."""
    return os.urandom(16).hex()


def sleep(seconds: float) -> None:
    """Sleep between two attempts."""
    select.select([], [], [], seconds)


class ServerConnection:
    """Connection of a command to a server and, if there is a directory, to its workspace.

    `workspace` is empty until the directory was opened. A server that dies is started again once. With several hosts a
    request that a server cannot process is sent to the others in turn, and the one that works is used from then on.
    """

    def __init__(self, location: ServerLocation, directory: str = "") -> None:
        self.location = location
        self.client_id = new_id()
        self.workspace = ""
        self.directory = (location.directory or directory) if directory else ""
        """Directory whose workspace is opened; empty for requests to the server only."""
        self.timeout = _REQUEST_TIMEOUT
        """Maximum duration of a request in seconds."""
        self.deadline: float | None = None
        """Time after which no response is awaited."""
        self.is_yolo = False
        """True if another client has disabled approvals in the workspace."""
        self.problems: list[str] = []
        """Errors in the settings of the workspace, each with its file and line."""
        self.while_starting: Callable[[], None] = lambda: None
        """Called while a server starts, to use the time."""
        self._client: SyncClient | None = None
        self._starts = 1 if location.can_be_started else 0
        """How many more times a server may be started. One, so that a server that cannot run is not started forever."""
        self._has_checked_version = False
        self._checked_at = 0.0
        self._opened = ("", "")
        """The directory that was opened last, and the id of its workspace."""

    def connect(self, *, can_start: bool = True) -> None:
        """Find the server, or start it. Raises `Unreachable` if it must not be started."""
        self.close()
        may_start = can_start and self._starts > 0
        client = find(self.location, self._timeout())
        if client is None and not may_start:
            raise unreachable(self.location)
        if client is None or (may_start and self._is_outdated(client)):
            self._starts -= 1
            client = find_or_start(self.location, meanwhile=self.while_starting)
        self._client = client
        self._use(client)

    def _use(self, client: SyncClient) -> None:
        earlier, self._client = self._client, client
        if earlier is not None and earlier is not client:
            earlier.close()
        if self.location.alternatives:
            self.location = self.location._replace(address=client.address)

    @property
    def address(self) -> ServerAddress:
        """The address of the connected server; of several hosts the one that was used last."""
        return self.location.address if self._client is None else self._client.address

    @property
    def has_alternatives(self) -> bool:
        """True if several hosts were given."""
        return bool(self.location.alternatives)

    def _timeout(self) -> float:
        """Return the maximum duration of the next request."""
        left = self.timeout if self.deadline is None else self.deadline - time.monotonic()
        return max(0.001, min(self.timeout, left))

    def _is_outdated(self, client: SyncClient) -> bool:
        """Return True if an older server has stopped so that a new one can be started. Checked once."""
        if self._has_checked_version:
            return False
        is_outdated = replace_outdated(client)
        self._has_checked_version = True
        return is_outdated

    def open(self, pause: Callable[[float], None] = sleep) -> None:
        """Connect, and open the workspace of the directory if there is one. Waits for a server that is shutting down,
        then starts a new one.
        """
        is_first = self._client is None
        backoff = Backoff(lambda: 1.0, initial=0.02, maximum=0.5)
        deadline = min(time.monotonic() + _OPEN_TIMEOUT, self.deadline or math.inf)
        while True:
            try:
                self.connect()
                if self.directory:
                    self._open_workspace()
                break
            except (ConnectionLost, TimedOut, Unreachable, ServerProblem) as error:
                if not self._is_transient(error, is_first=is_first) or time.monotonic() > deadline:
                    self._raise_at_deadline(error)
                    raise
                pause(backoff.wait())
        if is_first and self.location.can_be_started:
            self._starts = 1

    def _raise_at_deadline(self, error: ClientError) -> None:
        """Raise `TimedOut` in place of the failures of several servers if the time of the command is over."""
        if isinstance(error, AllFailed) and self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimedOut(str(error)) from None

    def _is_transient(self, error: ClientError, *, is_first: bool) -> bool:
        if isinstance(error, ServerProblem):
            return error.status == 503
        if isinstance(error, AllFailed):
            return error.is_temporary or not is_first
        # A server that answered and has stopped since is replaced, if one can be started.
        return not (isinstance(error, Unreachable) and is_first and self._starts <= 0)

    def _open_workspace(self) -> None:
        body: dict[str, object] = {"id": "", "path": self.directory, "client_id": self.client_id}
        # Only a local server receives the environment: variables of this machine have no meaning on another one.
        if self.location.is_local:
            body["env"] = environment_pairs(os.environ)
        joined = self.request_json("POST", "/v1/workspaces", body=body, can_repeat=True)
        self.workspace = self._same_workspace(required_text(joined, "id"))
        self._opened = (self.directory, self.workspace)
        self.is_yolo = joined.get("yolo") is True
        problems = joined.get("problems")
        self.problems = [str(item) for item in problems] if isinstance(problems, list) else []

    def _same_workspace(self, found: str) -> str:
        """Return the workspace that this command uses already. A server with other disks has another one in a directory
        of the same path, and knows the first one by its id.
        """
        directory, known = self._opened
        if not self.location.alternatives or directory != self.directory or known in ("", found):
            return found
        try:
            self.send("GET", resource_path(known))
        except ServerProblem as problem:
            if problem.status != 404:
                raise
            return found
        return known

    def path(self, *names: str) -> str:
        """Return the path of a resource in the workspace."""
        return resource_path(self.workspace, *names)

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
        raw = None if body is None else _encode(body)

        def request(client: SyncClient) -> bytes:
            left = self.timeout if seconds is None else seconds
            if self.deadline is not None:
                left = max(0.001, min(left, self.deadline - time.monotonic()))
            status, answer = client.request(method, path, query, raw, timeout=left, can_repeat=can_repeat)
            if status == 401:
                raise ServerProblem(status, _TOKEN_REQUIRED)
            if not 200 <= status < 300:
                raise ServerProblem(status, message_of(answer))
            return answer

        return self._attempt(request, can_repeat=can_repeat or method in IDEMPOTENT)

    def _attempt(self, request: Callable[[SyncClient], T], *, can_repeat: bool) -> T:
        """Send a request to the current server and, if it cannot process it, to the other ones in turn. Raises
        `AllFailed` after the last one.
        """
        client = self._client
        if client is None:
            raise Unreachable
        if not self.location.alternatives:
            return request(client)
        attempts = Round(self.location.addresses, client.address)
        while True:
            try:
                if client is None:
                    client = connect_to(self.location.at(attempts.address), self._timeout())
                value = request(client)
            except ClientError as error:
                if client is not None and client is not self._client:
                    client.close()
                if not can_move_on(error, can_repeat=can_repeat):
                    raise
                client = None
                try:
                    attempts.fail(error)
                except AllFailed as last:
                    self._raise_at_deadline(last)
                    raise
            else:
                self._use(client)
                return value

    def check_stream(self, stream: SyncEventStream) -> None:
        """Raise `ConnectionLost` if the stream has to be opened at another server: this command uses another one by
        now, or the server is silent, and another one is healthy. Does nothing with one host.
        """
        if not self.location.alternatives:
            return
        if stream.address != self.address:
            raise ConnectionLost
        if min(stream.silence, time.monotonic() - self._checked_at) < CHECK_INTERVAL:
            return
        self._checked_at = time.monotonic()
        for address in Round(self.location.addresses, self.address).addresses:
            try:
                client = connect_to(self.location.at(address))
            except ClientError:
                continue
            if address == stream.address:
                client.close()
                return
            self._use(client)
            raise ConnectionLost

    def request(
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
            with signals_blocked():
                return msgspec.json.decode(raw, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokenResponse from None

    def request_json(self, method: str, path: str, *, body: object = None, can_repeat: bool = False) -> dict[str, Any]:
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
        path, query = self.path("events"), (("client_id", self.client_id), ("since", since))
        return self._attempt(lambda client: client.stream(path, query), can_repeat=True)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def open_connection(location: Mapping[str, Any]) -> ServerConnection:
    """Connect to the workspace that a command's options select."""
    connection = ServerConnection(locate(location["host"], location["data_dir"]), location["cwd"])
    connection.open()
    return connection


def required_text(answer: Mapping[str, object], name: str) -> str:
    """Return a required text field of a response."""
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise BrokenResponse
    return value


def resource_path(workspace: str, *names: str) -> str:
    """Return the path of a resource. Raises `BadRequest` for an invalid id."""
    segments = (workspace, *names)
    if any(name in {"", ".", ".."} for name in segments):
        raise BadRequest("That is not a valid id: the list command prints the ids.")
    return "/v1/workspaces/" + "/".join(quote(name) for name in segments)


def _encode(body: object) -> bytes:
    if isinstance(body, dict):
        return dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    import msgspec

    return msgspec.json.encode(body)


def environment_pairs(environment: Mapping[str, str]) -> list[str]:
    """Return the environment variables that are valid text."""
    pairs = (f"{name}={value}" for name, value in environment.items())
    return [pair for pair in pairs if pair.isascii() or pair == pair.encode("utf-8", "replace").decode()]
