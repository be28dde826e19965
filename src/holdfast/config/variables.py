r"""Expansion of values: `$VAR`, `${VAR}`, `${VAR:-default}`, `$(command)`; `$$` and `\$` are a dollar sign.

Parsing is pure. Commands run only where the caller permits it, through a replaceable function. Messages never contain
the output of a command or the value of a variable.
"""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import msgspec

from holdfast.config.line_numbers import MAX_DEPTH
from holdfast.domain.errors import BadRequest

__all__ = [
    "COMMAND_TIMEOUT",
    "MAX_OUTPUT_BYTES",
    "CommandRunner",
    "CommandSubstitution",
    "Expander",
    "ExpansionFailed",
    "Piece",
    "Variable",
    "command_output",
    "is_template",
    "read_template",
    "run_command",
    "start_error",
]

CommandRunner: TypeAlias = Callable[[str, Mapping[str, str]], str]
"""Runs a command of a settings file with an environment and returns its output."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"\$|\\\$")
COMMAND_TIMEOUT = 10.0
"""Maximum seconds for a command."""
MAX_OUTPUT_BYTES = 64 * 1024


class ExpansionFailed(BadRequest):
    """A value with a dollar sign cannot be used as it is written."""


class Variable(msgspec.Struct, frozen=True):
    """A variable, and its default when it is unset or empty; None if it has no default."""

    name: str
    default: "tuple[Piece, ...] | None" = None

    def __repr__(self) -> str:
        return f"Variable({self.name!r})"


class CommandSubstitution(msgspec.Struct, frozen=True):
    """A command that is replaced by its output."""

    text: str

    def __repr__(self) -> str:
        return "Command(…)"


Piece: TypeAlias = str | Variable | CommandSubstitution


def is_template(text: str) -> bool:
    """Return True if the text contains a variable or a command. Text with a syntax error counts as a template."""
    if "$" not in text:
        return False
    try:
        return any(not isinstance(piece, str) for piece in read_template(text))
    except ExpansionFailed:
        return True


def read_template(text: str, *, depth: int = 0) -> tuple[Piece, ...]:
    """Parse a value. Raises `ExpansionFailed` if a brace or parenthesis is not closed."""
    if depth > MAX_DEPTH:
        raise ExpansionFailed(f"The value is nested deeper than {MAX_DEPTH} levels.")
    pieces: list[Piece] = []
    at = 0
    while (found := _SPECIAL.search(text, at)) is not None:
        pieces.append(text[at : found.start()])
        piece, at = _read_special(text, found, depth)
        pieces.append(piece)
    pieces.append(text[at:])
    return tuple(piece for piece in pieces if piece != "")


def _read_special(text: str, found: re.Match[str], depth: int) -> tuple[Piece, int]:
    at = found.end()
    if found[0] == "\\$":
        return "$", at
    follows = text[at : at + 1]
    if follows == "$":
        return "$", at + 1
    if follows == "{":
        return _read_braced(text, at + 1, depth)
    if follows == "(":
        end = _find_closing(text, at + 1, "(", ")")
        return CommandSubstitution(text[at + 1 : end]), end + 1
    name = _NAME.match(text, at)
    return (Variable(name[0]), name.end()) if name else ("$", at)


def _read_braced(text: str, at: int, depth: int) -> tuple[Piece, int]:
    end = _find_closing(text, at, "{", "}")
    name = _NAME.match(text, at)
    if name is None:
        raise ExpansionFailed("After ${ a name is expected; write $$ for a dollar sign.")
    if name.end() == end:
        return Variable(name[0]), end + 1
    if not text.startswith(":-", name.end()):
        raise ExpansionFailed(f"${{{name[0]}…}} is not valid: write ${{{name[0]}}} or ${{{name[0]}:-default}}.")
    return Variable(name[0], read_template(text[name.end() + 2 : end], depth=depth + 1)), end + 1


def _find_closing(text: str, at: int, opening: str, closing: str) -> int:
    """Return the index of the closing bracket. Quoted brackets do not count."""
    depth, quote = 1, ""
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and opening == "(":
            quote = letter
        elif letter == opening:
            depth += 1
        elif letter == closing:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise ExpansionFailed(f"${opening} is never closed: a {closing} is missing; write $$ for a dollar sign.")


class Expander:
    """Expands values with a given environment, never with that of this process."""

    def __init__(self, environment: Mapping[str, str], run: CommandRunner | None = None) -> None:
        self._environment = environment
        self._run = run or run_command

    def expand(self, text: str, *, may_run: bool) -> str:
        """Expand a value. Blocks while its commands run, at most 10 seconds each. Raises `ExpansionFailed`."""
        return text if "$" not in text else self._expand_pieces(read_template(text), may_run=may_run)

    def _expand_pieces(self, pieces: tuple[Piece, ...], *, may_run: bool) -> str:
        return "".join(self._expand_piece(piece, may_run=may_run) for piece in pieces)

    def _expand_piece(self, piece: Piece, *, may_run: bool) -> str:
        match piece:
            case str():
                return piece
            case CommandSubstitution():
                if not may_run:
                    raise ExpansionFailed(
                        "$(command) is run only in your own files, and in those of a project you trust: use a variable."
                    )
                return self._run(piece.text, self._environment)
            case Variable():
                value = self._environment.get(piece.name)
                if piece.default is not None:
                    return value or self._expand_pieces(piece.default, may_run=may_run)
                if value is None:
                    raise ExpansionFailed(
                        f"The variable {piece.name} is not set: export it, or write $$ for a dollar sign."
                    )
                return value


def run_command(command: str, environment: Mapping[str, str]) -> str:
    """Run a shell command and return its output without surrounding white space. Its process group is always killed."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError):
        raise start_error() from None
    try:
        return command_output(*_read_output(process))
    finally:
        _kill(process)


def start_error() -> ExpansionFailed:
    """Return the error for a command that cannot be started."""
    return ExpansionFailed("The command in $(…) cannot be started.")


def command_output(output: bytes, status: int | None) -> str:
    """Return the output of a finished command as text. `status` is None if it was still running at the time limit.

    Raises `ExpansionFailed` unless the command succeeded within its limits.
    """
    if status is None:
        raise ExpansionFailed(f"The command in $(…) did not end within {COMMAND_TIMEOUT:.0f} seconds.")
    if len(output) > MAX_OUTPUT_BYTES:
        raise ExpansionFailed(f"The command in $(…) printed more than {MAX_OUTPUT_BYTES // 1024} KiB.")
    if status != 0:
        raise ExpansionFailed(f"The command in $(…) failed with status {status}: run it in a terminal to see why.")
    try:
        return output.decode().strip()
    except UnicodeDecodeError:
        raise ExpansionFailed("The output of the command in $(…) is not UTF-8.") from None


def _read_output(process: subprocess.Popen[bytes]) -> tuple[bytes, int | None]:
    """Read output and status until the time limit. A process that left the group may keep the pipe open, so the end of
    the output cannot be relied on.
    """
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + COMMAND_TIMEOUT
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    output = bytearray()
    while len(output) <= MAX_OUTPUT_BYTES:
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return bytes(output), None
        piece = os.read(descriptor, MAX_OUTPUT_BYTES)
        if not piece:
            break
        output += piece
    else:
        return bytes(output), 0
    try:
        return bytes(output), process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return bytes(output), None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
