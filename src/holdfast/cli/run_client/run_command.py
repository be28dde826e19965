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

from holdfast.cli.console.run_output import Mode, RunOutput, print_result, print_stderr
from holdfast.cli.fast_msgspec_import import load_msgspec, signals_blocked
from holdfast.cli.run_client.run_arg_parser import RunArgs, parse_fast
from holdfast.cli.run_client.signals import Signals
from holdfast.cli.server_connection import FROM_NOW, ServerConnection, new_id, required_text
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.server_launcher import locate
from holdfast.domain.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO, TypeAlias, TypeVar

    from holdfast.client.sync_client import SyncEventStream

    _Source: TypeAlias = "BinaryIO | _StdinReader"
    T = TypeVar("T")

__all__ = ["REFUSED", "UsageError", "execute", "run_fast"]

REFUSED = 4
"""Exit code if no server answers, or it refuses."""

_CONNECTION_ERRORS = (ConnectionLost, TimedOut, Unreachable)
_MAX_TITLE = 50
_ID_LENGTH = 32
"""Length of a generated id."""
_READ_SIZE = 1 << 20
_STDIN_NOTICE_DELAY = 3.0
"""After this many seconds without input on stdin, a notice is printed on a terminal."""
_MAX_INPUT = 24 << 20
"""Encoded as base64, with the rest of the request, this is the maximum body of a server."""

Message = dict[str, object]


class _SentPrompt(NamedTuple):
    """A prompt that has been sent. `may_be_old`: the run may have existed before."""

    run: str
    session: str
    deadline: float | None
    may_be_old: bool


class UsageError(Exception):
    """The command line is invalid: an error message, and exit code 2."""


def run_fast(arguments: list[str]) -> int | None:
    """Run the command and return the exit code, or None if click has to parse the command line."""
    args = parse_fast(arguments)
    if args is None:
        return None
    try:
        return execute(args)
    except UsageError as error:
        from holdfast.cli.run import print_usage_error

        return print_usage_error(error)


def execute(args: RunArgs) -> int:
    """Run the command and return the exit code. Raises `UsageError` before anything is sent."""
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    try:
        text = _prompt(args, deadline)
    except KeyboardInterrupt:
        return 130
    except TimeoutError:
        print_stderr("holdfast: timed out waiting for end of stdin; redirect it with < /dev/null.")
        return 124
    if not text.strip() and not args.attach:
        raise UsageError('There is no prompt: give one as an argument, as in holdfast run "…", or pipe it in.')
    attachments = [_read_attachment(path) for path in args.attach]
    try:
        return _execute(args, text, attachments, deadline)
    except HoldfastError as error:
        print_stderr(f"holdfast: {error}")
    except UnicodeEncodeError:
        print_stderr("holdfast: A path or name is not valid UTF-8 and cannot be sent.")
    except KeyboardInterrupt:
        return 130
    return REFUSED


def _prompt(args: RunArgs, deadline: float | None) -> str:
    """Return stdin, if it is a pipe or a file, followed by the arguments."""
    pieces = [" ".join(args.prompt).encode("utf-8", "replace").decode()]
    if _has_piped_stdin():
        fed = _read_limited("The input on stdin", _StdinReader(deadline, is_quiet=args.is_quiet))
        pieces.insert(0, fed.decode("utf-8", "replace").strip("\r\n"))
    return "\n\n".join(piece for piece in pieces if piece)


class _StdinReader:
    """Reads stdin until the deadline. Prints a notice while it waits, because a pipe may have been left open."""

    def __init__(self, deadline: float | None, *, is_quiet: bool) -> None:
        self._deadline = deadline
        self._has_notified = is_quiet or not os.isatty(2)

    def read(self, most: int) -> bytes:
        """Read up to `most` bytes."""
        pieces: list[bytes] = []
        while most > 0:
            self._wait()
            piece = os.read(0, min(most, _READ_SIZE))
            if not piece:
                break
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    def _wait(self) -> None:
        while True:
            left = _STDIN_NOTICE_DELAY if self._deadline is None else self._deadline - time.monotonic()
            if select.select([0], [], [], max(0.0, min(left, _STDIN_NOTICE_DELAY)))[0]:
                return
            if self._deadline is not None and time.monotonic() >= self._deadline:
                raise TimeoutError
            if not self._has_notified:
                self._has_notified = True
                print_stderr("holdfast: waiting for the end of stdin; Ctrl-C exits.")


def _read_limited(what: str, file: "_Source") -> bytes:
    """Read everything, up to the limit of the server. The input may be endless."""
    content = file.read(_MAX_INPUT + 1)
    if len(content) > _MAX_INPUT:
        raise UsageError(
            f"{what} is larger than {_MAX_INPUT >> 20} MiB: shorten it, or give the path of a file in the prompt."
        )
    return content


def _has_piped_stdin() -> bool:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _execute(args: RunArgs, text: str, attachments: list[Message], deadline: float | None) -> int:
    signals = Signals()
    signals.install()
    connection = ServerConnection(locate(args.host, args.data_dir), args.cwd)
    connection.deadline = deadline
    connection.while_starting = _import_follower
    try:
        connection.open(signals.wait)
        session, is_new = _retry_once(connection, signals, lambda: _choose_session(connection, args, text))
        message = _message(connection, args, session, text)
        if attachments:
            message["attachments"] = attachments
        run = str(message["run_id"])
        for problem in () if args.is_quiet else connection.problems:
            print_stderr(f"holdfast: error in the settings: {problem}")
        if args.is_verbose:
            print_stderr(f"run {run}, session {session}")
        stream = None if args.detach else _retry_once(connection, signals, lambda: connection.stream(FROM_NOW))
        is_old = _submit(connection, message, signals, is_new=is_new) or args.run_id is not None
        if stream is None:
            return _detach(connection, args, run, session)
        connection.deadline = None
        return _follow(connection, signals, args, _SentPrompt(run, session, deadline, is_old), stream)
    except TimedOut as error:
        if deadline is None or time.monotonic() < deadline:
            raise
        print_stderr(f"holdfast: timed out. {error}")
        return 124


def _retry_once(connection: ServerConnection, signals: Signals, work: "Callable[[], T]") -> "T":
    """Retry once with a new connection. Before the prompt is sent this is safe; at worst an empty session is left."""
    try:
        return work()
    except (ConnectionLost, Unreachable):
        connection.open(signals.wait)
        return work()


def _message(connection: ServerConnection, args: RunArgs, session: str, text: str) -> Message:
    message: Message = {
        "session_id": session,
        "prompt": text,
        "run_id": args.run_id or new_id(),
        "delivery": args.delivery,
        "client_id": connection.client_id,
        "interactive": False,
    }
    if _requires_real_model(args):
        message["require_model"] = True
    if args.yolo:
        message["yolo"] = True
        if os.isatty(2) and not args.is_quiet:
            print_stderr("holdfast: auto-approve is on: the tools of this run act without approval.")
    elif connection.is_yolo:
        print_stderr(
            "holdfast: auto-approve is on in this workspace, set by another client: tools act without approval."
        )
    return message


def _requires_real_model(args: RunArgs) -> bool:
    """Return True if programs read the answer: the scripted model must not answer in place of a missing one.

    A command that names a model gets that model or an error.
    """
    if args.model:
        return False
    return args.is_quiet or args.as_json or not os.isatty(1) or bool(os.environ.get("CI"))


def _choose_session(connection: ServerConnection, args: RunArgs, text: str) -> tuple[str, bool]:
    """Return the session and whether it is new: the given one, that of an earlier run with this run id, the last one,
    or a new one.
    """
    if args.model or args.small_model:
        from holdfast.cli.run_client.run_lookup import select_models

        select_models(connection, args.model, args.small_model)
    if args.session:
        return _resolve_session(connection, args.session), False
    if args.run_id and (known := _existing_session(connection, args.run_id)) is not None:
        return known, False
    if args.continues:
        from holdfast.cli.run_client.run_lookup import latest_session

        if (latest := latest_session(connection)) is not None:
            return latest.id, False
    return required_text(
        connection.request_json("POST", connection.path("sessions"), body={"title": _title(text)}), "id"
    ), True


def _resolve_session(connection: ServerConnection, session: str) -> str:
    """Resolve an abbreviated id. A complete id is left to the server."""
    if len(session) >= _ID_LENGTH:
        return session
    from holdfast.cli.run_client.run_lookup import resolve_session

    return resolve_session(connection, session)


def _existing_session(connection: ServerConnection, run: str) -> str | None:
    """Return the session of an existing run: in a new session the same prompt would start another run."""
    try:
        return required_text(connection.request_json("GET", connection.path("runs", run)), "session_id")
    except ServerProblem as problem:
        if problem.status != 404:
            raise
        return None


def _title(text: str) -> str:
    """Return the first words of a prompt."""
    line = " ".join(text[:400].split())
    if len(line) <= _MAX_TITLE:
        return line or "New session"
    head = line[:_MAX_TITLE]
    return (head.rpartition(" ")[0] or head) + "…"


def _submit(connection: ServerConnection, message: Message, signals: Signals, *, is_new: bool) -> bool:
    """Send the prompt. Returns True if it was sent twice, which is harmless because of its run id."""
    signals.is_running = True
    try:
        connection.send("POST", connection.path("agent"), body=message, can_repeat=True)
    except _CONNECTION_ERRORS:
        connection.open(signals.wait)
        connection.send("POST", connection.path("agent"), body=message, can_repeat=True)
        return True
    except ServerProblem as problem:
        if is_new and 400 <= problem.status < 500:
            _delete_session(connection, str(message["session_id"]))
        raise
    return False


def _delete_session(connection: ServerConnection, session: str) -> None:
    """Delete a session that was created for a prompt that was refused."""
    try:
        connection.send("DELETE", connection.path("sessions", session))
    except HoldfastError:
        return


def _detach(connection: ServerConnection, args: RunArgs, run: str, session: str) -> int:
    """Print the run id and exit as soon as the prompt is stored."""
    from holdfast.cli.run_client.run_lookup import record_directory

    record_directory(connection.location.data_dir, run, args.cwd)
    text = run
    if args.as_json:
        from json import dumps

        text = dumps({"run_id": run, "session_id": session}, separators=(",", ":"))
    output = RunOutput("stream")
    output.remedy = f"The prompt is accepted: its run id is {run}."
    output.write(text + "\n")
    return 0


def _import_follower() -> None:
    """Import the modules that follow a run."""
    with signals_blocked():
        load_msgspec()
        import_module("holdfast.cli.console.approvals")
        import_module("holdfast.cli.run_client.run_follow")


def _follow(
    connection: ServerConnection, signals: Signals, args: RunArgs, sent: _SentPrompt, stream: "SyncEventStream"
) -> int:
    """Wait for the end of the run."""
    _import_follower()
    from holdfast.cli.console.approvals import ApprovalPrompt
    from holdfast.cli.console.terminal_keys import Terminal
    from holdfast.cli.run_client.run_events import RunEvents
    from holdfast.cli.run_client.run_follow import RunFollower, ServerGone
    from holdfast.cli.run_client.run_lookup import record_directory
    from holdfast.domain.ids import RunId, SessionId

    output = RunOutput(_output_mode(args), is_quiet=args.is_quiet, is_verbose=args.is_verbose, is_raw=args.is_raw)
    output.remedy = f"The answer is stored: holdfast runs wait {sent.run} prints it."
    events = RunEvents(RunId(sent.run), SessionId(sent.session), output)
    follower = RunFollower(
        connection,
        signals,
        output,
        events,
        approvals=ApprovalPrompt(connection, output, events.run, Terminal(uses_tty=True)),
    )
    try:
        end = follower.run(stream, sent.deadline, may_be_old=sent.may_be_old)
        return print_result(end, events.shown_length(end), output, is_overdue=follower.is_overdue)
    except SystemExit:
        # The user leaves without the answer and can fetch it later from any directory.
        record_directory(connection.location.data_dir, sent.run, args.cwd)
        raise
    except ServerGone as error:
        record_directory(connection.location.data_dir, sent.run, args.cwd)
        print_stderr(f"holdfast: {error}")
        return 124 if follower.is_overdue else 130 if signals.stops else REFUSED


def _output_mode(args: RunArgs) -> Mode:
    if args.as_json:
        return "json"
    return "stream" if args.streams or os.isatty(1) else "final"


def _read_attachment(path: str) -> Message:
    from binascii import b2a_base64
    from mimetypes import guess_type

    try:
        with open(path, "rb") as file:
            content = _read_limited(path, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    kind = guess_type(path)[0] or ("application/octet-stream" if b"\0" in content[:4096] else "text/plain")
    return {
        "content": b2a_base64(content, newline=False).decode(),
        "file_path": os.path.abspath(path),
        "file_name": os.path.basename(path),
        "mime_type": kind,
    }
