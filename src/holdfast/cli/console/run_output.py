"""Output of a run: only the answer on stdout, progress on stderr."""

import errno
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Literal

from holdfast.client.terminal_text import EscapeFilter, sanitize, strip_escapes
from holdfast.domain.ids import MessageId

if TYPE_CHECKING:
    from holdfast.domain.events import RunComplete

__all__ = ["BROKEN_PIPE", "Mode", "RunOutput", "print_result", "print_stderr", "sanitize_for_stdout"]

Mode = Literal["final", "stream", "json"]

BROKEN_PIPE = 141
"""Exit code that a shell reports for a write to a closed pipe."""

_CLEAR = "\r\x1b[K"
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def sanitize_for_stdout(text: str) -> str:
    """Remove terminal control sequences, also for a pipe or file, which may be displayed later. On a terminal, also
    characters that change the order of the text.
    """
    return sanitize(text) if _is_terminal(1) else strip_escapes(text)


def print_stderr(text: str) -> None:
    """Print a line on stderr. A closed stderr is ignored."""
    try:
        sys.stderr.write(sanitize(text).rstrip() + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


class RunOutput:
    """Writes the output of a run. `mode` selects stdout: the final text once, pieces as they arrive, or events.
    Terminal control sequences in the text are removed unless `is_raw`.
    """

    def __init__(self, mode: Mode, *, is_quiet: bool = False, is_verbose: bool = False, is_raw: bool = False) -> None:
        self.mode = mode
        self.remedy = ""
        """Advice that is printed if an answer cannot be written."""
        self._is_quiet = is_quiet
        self._is_verbose = is_verbose
        self._can_clear = os.environ.get("TERM") != "dumb"
        self._draws = not is_quiet and not is_verbose and self._can_clear and _is_terminal(2)
        self._shows = _is_terminal(1)
        self._shares_terminal = self._draws and self._shows
        self._began = time.monotonic()
        self._activity = "working"
        self._frame = 0
        self._is_drawn = False
        self._prompt = ""
        self._message = MessageId("")
        self._is_inside_line = False
        self._filter = None if is_raw else EscapeFilter()

    @property
    def draws(self) -> bool:
        """True if progress is drawn."""
        return self._draws

    def write_piece(self, message: MessageId, piece: str) -> None:
        """Write a piece of an answer in stream mode."""
        if self.mode != "stream":
            return
        if message != self._message and self._is_inside_line:
            piece = "\n" + piece
        self._message = message
        self.write(piece)

    def set_activity(self, activity: str) -> None:
        """Set the current activity."""
        if activity == self._activity:
            return
        self._activity = activity
        if self._is_verbose:
            print_stderr(f"{time.monotonic() - self._began:7.1f} s  {activity}")

    def print_notice(self, text: str) -> None:
        """Print a notice on stderr."""
        if not self._is_quiet:
            self.clear()
            if self._shares_terminal:
                self.end_line()
            print_stderr(f"holdfast: {text}")

    def retract(self) -> None:
        """Begin a new line: text that was already written is replaced by what follows."""
        if self.mode == "stream":
            self.end_line()

    def finish(self, message: MessageId, text: str, shown_length: int) -> None:
        """Write the final text, or the rest of it (C-30)."""
        if self.mode == "json":
            return
        missing = text[shown_length:] if self.mode == "stream" else text
        if self.mode == "stream" and not shown_length and missing:
            self.write_piece(message, missing)
        elif missing:
            self.write(missing)
        self.end_line(always=True)

    def end_line(self, *, always: bool = False) -> None:
        """End the current line, also of a streamed text that breaks off."""
        if self._is_inside_line or (always and self.mode == "final"):
            self.write("\n")

    def write_event(self, raw: bytes) -> None:
        """Write an event unchanged in JSON mode."""
        if self.mode == "json":
            self._write_bytes(raw + b"\n")

    def write(self, text: str) -> None:
        """Write text to stdout."""
        if self._filter is not None:
            # A sequence may be split between two pieces.
            text = self._filter.feed(text)
            text = sanitize(text) if self._shows else text
        if not text:
            return
        self._is_inside_line = not text.endswith("\n")
        self._write_bytes(text.encode("utf-8", "replace"))

    def _write_bytes(self, data: bytes) -> None:
        self.clear()
        try:
            _write(data)
        except BrokenPipeError:
            raise SystemExit(BROKEN_PIPE) from None
        except OSError as error:
            print_stderr(f"holdfast: the answer could not be written: {error.strerror}. {self.remedy}")
            raise SystemExit(1) from None

    def draw(self) -> None:
        """Redraw the progress line, unless an incomplete line of the answer is on the same terminal."""
        if not self._draws or (self._shares_terminal and self._is_inside_line):
            return
        self._frame = (self._frame + 1) % len(_SPINNER)
        seconds = int(time.monotonic() - self._began)
        self._is_drawn = True
        self._to_stderr(f"{_CLEAR}{_SPINNER[self._frame]} {_one_line(self._activity)} · {seconds} s")

    def prompt(self, text: str) -> bool:
        """Draw an input line in place of the progress line. Returns False if the terminal cannot."""
        if not self._can_clear:
            return False
        if not self._is_drawn or text != self._prompt:
            self._is_drawn, self._prompt = True, text
            self._to_stderr(f"{_CLEAR}{text}")
        return True

    def clear(self) -> None:
        """Remove the progress line."""
        if self._is_drawn:
            self._is_drawn, self._prompt = False, ""
            self._to_stderr(_CLEAR)

    def _to_stderr(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            # The terminal is gone; the run continues.
            self._draws = False


def _write(data: bytes) -> None:
    """Write to stdout without a buffer, so that nothing is left when the process exits at once."""
    if sys.stdout is None:
        # Closed before this process began: the descriptor may belong to another file by now.
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(1, rest) :]
        except BlockingIOError:
            select.select([], [1], [])


def _one_line(text: str) -> str:
    """Cut text to the width of the terminal: a line that wraps cannot be cleared."""
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 0
    return " ".join(sanitize(text).split())[: max(1, min(60, (columns or 80) - 16))]


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def print_result(end: "RunComplete", shown_length: int, output: RunOutput, *, is_overdue: bool) -> int:
    """Print the result and return the exit code. Only the answer is written to stdout; everything else is a message on
    stderr.
    """
    if end.outcome == "completed":
        output.finish(end.message_id, end.text, shown_length)
        return 0
    output.end_line()
    match end.outcome:
        case "failed":
            print_stderr(f"holdfast: the run failed: {end.error or 'no reason was given'}")
            return 4 if end.model_unreachable else 1
        case "interrupted":
            print_stderr(
                "holdfast: the run was interrupted, because the server stopped. Show the text so far: "
                f"holdfast sessions show {end.session_id}; continue: holdfast run --session {end.session_id} …"
            )
            return 3
        case "cancelled":
            print_stderr("holdfast: timed out and cancelled." if is_overdue else "holdfast: cancelled.")
            return 124 if is_overdue else 130
