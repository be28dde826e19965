"""Output of a run: only the answer on stdout, progress on stderr."""

import errno
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Literal

from holdfast.client.terminal_text import EscapeFilter, harmless, strip_escapes
from holdfast.domain.ids import MessageId

if TYPE_CHECKING:
    from holdfast.domain.events import RunComplete

__all__ = ["BROKEN_PIPE", "Mode", "RunOutput", "complain", "conclude", "for_stdout"]

Mode = Literal["final", "stream", "json"]

BROKEN_PIPE = 141
"""Exit code that a shell reports for a write to a closed pipe."""

_CLEAR = "\r\x1b[K"
_TURNS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def for_stdout(text: str) -> str:
    """Remove terminal control sequences, also for a pipe or file, which may be displayed later. On a terminal, also
    characters that change the order of the text.
    """
    return harmless(text) if _is_terminal(1) else strip_escapes(text)


def complain(text: str) -> None:
    """Print a line on stderr. A closed stderr is ignored."""
    try:
        sys.stderr.write(harmless(text).rstrip() + "\n")
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
        self._what = "working"
        self._turn = 0
        self._is_drawn = False
        self._prompt = ""
        self._message = MessageId("")
        self._is_inside_line = False
        self._filter = None if is_raw else EscapeFilter()

    @property
    def draws(self) -> bool:
        """True if progress is drawn."""
        return self._draws

    def text(self, message: MessageId, piece: str) -> None:
        """Write a piece of an answer in stream mode."""
        if self.mode != "stream":
            return
        if message != self._message and self._is_inside_line:
            piece = "\n" + piece
        self._message = message
        self.write(piece)

    def doing(self, what: str) -> None:
        """Set the current activity."""
        if what == self._what:
            return
        self._what = what
        if self._is_verbose:
            complain(f"{time.monotonic() - self._began:7.1f} s  {what}")

    def note(self, text: str) -> None:
        """Print a notice on stderr."""
        if not self._is_quiet:
            self.clear()
            if self._shares_terminal:
                self.end_line()
            complain(f"holdfast: {text}")

    def withdrawn(self) -> None:
        """Begin a new line: text that was already written is replaced by what follows."""
        if self.mode == "stream":
            self.end_line()

    def finish(self, message: MessageId, text: str, said: int) -> None:
        """Write the final text, or the rest of it (C-30)."""
        if self.mode == "json":
            return
        missing = text[said:] if self.mode == "stream" else text
        if self.mode == "stream" and not said and missing:
            self.text(message, missing)
        elif missing:
            self.write(missing)
        self.end_line(always=True)

    def end_line(self, *, always: bool = False) -> None:
        """End the current line, also of a streamed text that breaks off."""
        if self._is_inside_line or (always and self.mode == "final"):
            self.write("\n")

    def line(self, raw: bytes) -> None:
        """Write an event unchanged in JSON mode."""
        if self.mode == "json":
            self._put(raw + b"\n")

    def write(self, text: str) -> None:
        """Write text to stdout."""
        if self._filter is not None:
            # A sequence may be split between two pieces.
            text = self._filter.feed(text)
            text = harmless(text) if self._shows else text
        if not text:
            return
        self._is_inside_line = not text.endswith("\n")
        self._put(text.encode("utf-8", "replace"))

    def _put(self, data: bytes) -> None:
        self.clear()
        try:
            _write(data)
        except BrokenPipeError:
            raise SystemExit(BROKEN_PIPE) from None
        except OSError as error:
            complain(f"holdfast: the answer could not be written: {error.strerror}. {self.remedy}")
            raise SystemExit(1) from None

    def draw(self) -> None:
        """Redraw the progress line, unless an incomplete line of the answer is on the same terminal."""
        if not self._draws or (self._shares_terminal and self._is_inside_line):
            return
        self._turn = (self._turn + 1) % len(_TURNS)
        seconds = int(time.monotonic() - self._began)
        self._is_drawn = True
        self._to_stderr(f"{_CLEAR}{_TURNS[self._turn]} {_in_a_line(self._what)} · {seconds} s")

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


def _in_a_line(text: str) -> str:
    """Cut text to the width of the terminal: a line that wraps cannot be cleared."""
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 0
    return " ".join(harmless(text).split())[: max(1, min(60, (columns or 80) - 16))]


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def conclude(end: "RunComplete", said: int, speaker: RunOutput, *, is_overdue: bool) -> int:
    """Print the result and return the exit code. Only the answer is written to stdout; everything else is a message on
    stderr.
    """
    if end.outcome == "completed":
        speaker.finish(end.message_id, end.text, said)
        return 0
    speaker.end_line()
    match end.outcome:
        case "failed":
            complain(f"holdfast: the run failed: {end.error or 'no reason was given'}")
            return 4 if end.model_unreachable else 1
        case "interrupted":
            complain(
                "holdfast: the run was interrupted: the server stopped while it worked. What it said so far is kept: "
                f"holdfast sessions show {end.session_id}; go on with: holdfast run --session {end.session_id} …"
            )
            return 3
        case "cancelled":
            complain("holdfast: timed out, and cancelled." if is_overdue else "holdfast: cancelled.")
            return 124 if is_overdue else 130
