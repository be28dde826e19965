"""`holdfast run`, from parsed arguments to the exit code.

Until the prompt is sent it imports as little as possible: no click, no event types. The modules that follow the run are
imported while the server is already working.
"""

import os
import select
import stat
import time
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.console.run_output import Mode, RunOutput, complain, conclude
from holdfast.cli.fast_import import load_msgspec, undisturbed
from holdfast.cli.run_client.run_args import RunArgs, read_quickly
from holdfast.cli.run_client.signals import Signals
from holdfast.cli.server_connection import FROM_NOW, ServerConnection, new_id, text_in
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.locate import locate
from holdfast.domain.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO, TypeAlias, TypeVar

    from holdfast.client.sync_client import SyncEventStream

    _Source: TypeAlias = "BinaryIO | _Fed"
    T = TypeVar("T")

__all__ = ["REFUSED", "UsageError", "execute", "run_quickly"]

REFUSED = 4
"""Exit code if no server answers, or it refuses."""

_LOST = (ConnectionLost, TimedOut, Unreachable)
_LONGEST_TITLE = 50
_ID = 32
"""Length of a generated id."""
_AT_ONCE = 1 << 20
_LOOKING = 3.0
"""After this many seconds without input on stdin, a notice is printed on a terminal."""
_LARGEST = 24 << 20
"""Encoded as base64, with the rest of the request, this is the maximum body of a server."""

Message = dict[str, object]


class _Sent(NamedTuple):
    """A prompt that has been sent. `may_be_old`: the run may have existed before."""

    run: str
    session: str
    deadline: float | None
    may_be_old: bool


class UsageError(Exception):
    """The command line is invalid: an error message, and exit code 2."""


def run_quickly(arguments: list[str]) -> int | None:
    """Run the command and return the exit code, or None if click has to parse the command line."""
    asked = read_quickly(arguments)
    if asked is None:
        return None
    try:
        return execute(asked)
    except UsageError as misuse:
        from holdfast.cli.run import complain_of_usage

        return complain_of_usage(misuse)


def execute(asked: RunArgs) -> int:
    """Run the command and return the exit code. Raises `UsageError` before anything is sent."""
    deadline = None if asked.timeout is None else time.monotonic() + asked.timeout
    try:
        text = _prompt(asked, deadline)
    except KeyboardInterrupt:
        return 130
    except TimeoutError:
        complain("holdfast: timed out. What comes on stdin has no end: < /dev/null leaves it out.")
        return 124
    if not text.strip() and not asked.attach:
        raise UsageError('There is no prompt: write one behind the command, as in holdfast run "…", or pipe it in.')
    attachments = [_attachment(path) for path in asked.attach]
    try:
        return _execute(asked, text, attachments, deadline)
    except HoldfastError as error:
        complain(f"holdfast: {error}")
    except UnicodeEncodeError:
        complain("holdfast: A path or name is not valid UTF-8, and cannot be sent.")
    except KeyboardInterrupt:
        return 130
    return REFUSED


def _prompt(asked: RunArgs, deadline: float | None) -> str:
    """Return stdin, if it is a pipe or a file, followed by the arguments."""
    pieces = [" ".join(asked.prompt).encode("utf-8", "replace").decode()]
    if _is_fed():
        fed = _read("What comes on stdin", _Fed(deadline, is_told=asked.is_quiet))
        pieces.insert(0, fed.decode("utf-8", "replace").strip("\r\n"))
    return "\n\n".join(piece for piece in pieces if piece)


class _Fed:
    """Reads stdin until the deadline. Prints a notice while it waits, because a pipe may have been left open."""

    def __init__(self, deadline: float | None, *, is_told: bool) -> None:
        self._deadline = deadline
        self._is_told = is_told or not os.isatty(2)

    def read(self, most: int) -> bytes:
        """Read up to `most` bytes."""
        pieces: list[bytes] = []
        while most > 0:
            self._wait()
            piece = os.read(0, min(most, _AT_ONCE))
            if not piece:
                break
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    def _wait(self) -> None:
        while True:
            left = _LOOKING if self._deadline is None else self._deadline - time.monotonic()
            if select.select([0], [], [], max(0.0, min(left, _LOOKING)))[0]:
                return
            if self._deadline is not None and time.monotonic() >= self._deadline:
                raise TimeoutError
            if not self._is_told:
                self._is_told = True
                complain("holdfast: waiting for the end of stdin; Ctrl-C leaves.")


def _read(what: str, file: "_Source") -> bytes:
    """Read everything, up to the limit of the server. The input may be endless."""
    content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise UsageError(
            f"{what} is larger than {_LARGEST >> 20} MiB: send less, or name a file by its path in the prompt."
        )
    return content


def _is_fed() -> bool:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _execute(asked: RunArgs, text: str, attachments: list[Message], deadline: float | None) -> int:
    signals = Signals()
    signals.install()
    link = ServerConnection(locate(asked.host, asked.data_dir), asked.cwd)
    link.deadline = deadline
    link.meanwhile = _load
    try:
        link.enter(signals.wait)
        session, is_new = _surely(link, signals, lambda: _session(link, asked, text))
        message = _message(link, asked, session, text)
        if attachments:
            message["attachments"] = attachments
        run = str(message["run_id"])
        for problem in () if asked.is_quiet else link.problems:
            complain(f"holdfast: error in the settings: {problem}")
        if asked.is_verbose:
            complain(f"run {run}, session {session}")
        stream = None if asked.detach else _surely(link, signals, lambda: link.stream(FROM_NOW))
        is_old = _post(link, message, signals, is_new=is_new) or asked.run_id is not None
        if stream is None:
            return _detach(link, asked, run, session)
        link.deadline = None
        return _follow(link, signals, asked, _Sent(run, session, deadline, is_old), stream)
    except TimedOut as late:
        if deadline is None or time.monotonic() < deadline:
            raise
        complain(f"holdfast: timed out. {late}")
        return 124


def _surely(link: ServerConnection, signals: Signals, work: "Callable[[], T]") -> "T":
    """Retry once with a new connection. Before the prompt is sent this is safe; at worst an empty session is left."""
    try:
        return work()
    except (ConnectionLost, Unreachable):
        link.enter(signals.wait)
        return work()


def _message(link: ServerConnection, asked: RunArgs, session: str, text: str) -> Message:
    message: Message = {
        "session_id": session,
        "prompt": text,
        "run_id": asked.run_id or new_id(),
        "delivery": asked.delivery,
        "client_id": link.client_id,
        "interactive": False,
    }
    if _requires_model(asked):
        message["require_model"] = True
    if asked.yolo:
        message["yolo"] = True
        if os.isatty(2) and not asked.is_quiet:
            complain("holdfast: auto-approve is on: the tools of this run act without asking.")
    elif link.is_yolo:
        complain("holdfast: auto-approve is on: in this workspace tools act without asking, as a client of it has set.")
    return message


def _requires_model(asked: RunArgs) -> bool:
    """Return True if programs read the answer: the scripted model must not answer in place of a missing one.

    A command that names a model gets that model or an error.
    """
    if asked.model:
        return False
    return asked.is_quiet or asked.as_json or not os.isatty(1) or bool(os.environ.get("CI"))


def _session(link: ServerConnection, asked: RunArgs, text: str) -> tuple[str, bool]:
    """Return the session and whether it is new: the given one, that of an earlier run with this run id, the last one,
    or a new one.
    """
    if asked.model or asked.small_model:
        from holdfast.cli.run_client.run_lookup import choose_models

        choose_models(link, asked.model, asked.small_model)
    if asked.session:
        return _named(link, asked.session), False
    if asked.run_id and (known := _session_of(link, asked.run_id)) is not None:
        return known, False
    if asked.continues:
        from holdfast.cli.run_client.run_lookup import latest_session

        if (latest := latest_session(link)) is not None:
            return latest.id, False
    return text_in(link.ask_plainly("POST", link.path("sessions"), body={"title": _title(text)}), "id"), True


def _named(link: ServerConnection, session: str) -> str:
    """Resolve an abbreviated id. A complete id is left to the server."""
    if len(session) >= _ID:
        return session
    from holdfast.cli.run_client.run_lookup import session_named

    return session_named(link, session)


def _session_of(link: ServerConnection, run: str) -> str | None:
    """Return the session of an existing run: in a new session the same prompt would start another run."""
    try:
        return text_in(link.ask_plainly("GET", link.path("runs", run)), "session_id")
    except ServerProblem as problem:
        if problem.status != 404:
            raise
        return None


def _title(text: str) -> str:
    """Return the first words of a prompt."""
    line = " ".join(text[:400].split())
    if len(line) <= _LONGEST_TITLE:
        return line or "New session"
    head = line[:_LONGEST_TITLE]
    return (head.rpartition(" ")[0] or head) + "…"


def _post(link: ServerConnection, message: Message, signals: Signals, *, is_new: bool) -> bool:
    """Send the prompt. Returns True if it was sent twice, which is harmless because of its run id."""
    signals.is_running = True
    try:
        link.send("POST", link.path("agent"), body=message, can_repeat=True)
    except _LOST:
        link.enter(signals.wait)
        link.send("POST", link.path("agent"), body=message, can_repeat=True)
        return True
    except ServerProblem as problem:
        if is_new and 400 <= problem.status < 500:
            _take_back(link, str(message["session_id"]))
        raise
    return False


def _take_back(link: ServerConnection, session: str) -> None:
    """Delete a session that was created for a prompt that was refused."""
    try:
        link.send("DELETE", link.path("sessions", session))
    except HoldfastError:
        return


def _detach(link: ServerConnection, asked: RunArgs, run: str, session: str) -> int:
    """Print the run id and exit as soon as the prompt is stored."""
    from holdfast.cli.run_client.run_lookup import remember

    remember(link.where.data_dir, run, asked.cwd)
    text = run
    if asked.as_json:
        from json import dumps

        text = dumps({"run_id": run, "session_id": session}, separators=(",", ":"))
    speaker = RunOutput("stream")
    speaker.remedy = f"The prompt is accepted: its run is {run}."
    speaker.write(text + "\n")
    return 0


def _load() -> None:
    """Import the modules that follow a run."""
    with undisturbed():
        load_msgspec()
        import_module("holdfast.cli.console.approvals")
        import_module("holdfast.cli.run_client.run_follow")


def _follow(link: ServerConnection, signals: Signals, asked: RunArgs, sent: _Sent, stream: "SyncEventStream") -> int:
    """Wait for the end of the run."""
    _load()
    from holdfast.cli.console.approvals import ApprovalPrompt
    from holdfast.cli.console.terminal import Terminal
    from holdfast.cli.run_client.run_events import RunEvents
    from holdfast.cli.run_client.run_follow import RunFollower, ServerGone
    from holdfast.cli.run_client.run_lookup import remember
    from holdfast.domain.ids import RunId, SessionId

    speaker = RunOutput(_mode(asked), is_quiet=asked.is_quiet, is_verbose=asked.is_verbose, is_raw=asked.is_raw)
    speaker.remedy = f"It is kept: holdfast runs wait {sent.run} prints it."
    watch = RunEvents(RunId(sent.run), SessionId(sent.session), speaker)
    conduct = RunFollower(
        link, signals, speaker, watch, asker=ApprovalPrompt(link, speaker, watch.run, Terminal(opens=True))
    )
    try:
        end = conduct.run(stream, sent.deadline, may_be_old=sent.may_be_old)
        return conclude(end, watch.said(end), speaker, is_overdue=conduct.is_overdue)
    except SystemExit:
        # The user leaves without the answer and can fetch it later from any directory.
        remember(link.where.data_dir, sent.run, asked.cwd)
        raise
    except ServerGone as gone:
        remember(link.where.data_dir, sent.run, asked.cwd)
        complain(f"holdfast: {gone}")
        return 124 if conduct.is_overdue else 130 if signals.stops else REFUSED


def _mode(asked: RunArgs) -> Mode:
    if asked.as_json:
        return "json"
    return "stream" if asked.streams or os.isatty(1) else "final"


def _attachment(path: str) -> Message:
    from binascii import b2a_base64
    from mimetypes import guess_type

    try:
        with open(path, "rb") as file:
            content = _read(path, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    kind = guess_type(path)[0] or ("application/octet-stream" if b"\0" in content[:4096] else "text/plain")
    return {
        "content": b2a_base64(content, newline=False).decode(),
        "file_path": os.path.abspath(path),
        "file_name": os.path.basename(path),
        "mime_type": kind,
    }
