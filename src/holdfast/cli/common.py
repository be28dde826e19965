"""What the commands share: options, and how an error becomes a sentence."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import combining, east_asian_width

import click

from holdfast.cli.oneshot import REFUSED
from holdfast.client.terminal_text import harmless

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "DefaultGroup",
    "Failure",
    "age",
    "clipped",
    "directory_option",
    "sentences",
    "server_options",
    "table",
    "where_options",
]

F = TypeVar("F", bound=Callable[..., Any])

_USUAL = 80
_NARROW = 76
_ID = 32
_SHORT_ID = 8


class Failure(click.ClickException):
    """A sentence on stderr."""

    exit_code = REFUSED

    def show(self, file: Any = None) -> None:  # noqa: ANN401
        click.echo(f"holdfast: {harmless(self.format_message())}", file=file or sys.stderr)


@contextmanager
def sentences() -> Iterator[None]:
    """Errors of ours become one sentence, never a traceback."""
    from holdfast.domain.errors import HoldfastError

    try:
        yield
    except HoldfastError as error:
        raise Failure(str(error)) from error
    except UnicodeEncodeError:
        raise Failure("A path or name is not valid UTF-8, and cannot be sent.") from None
    except KeyboardInterrupt:
        sys.exit(130)


def server_options(function: F) -> F:
    """Which server is meant."""
    host = click.option(
        "--host", metavar="URL", help="Another server: unix:///path, tcp://host:port or ssh://user@machine/directory."
    )
    data = click.option("--data-dir", metavar="DIR", help="The server's data directory; $HOLDFAST_DATA_DIR.")
    return data(host(function))


def directory_option(function: F) -> F:
    """Which directory is meant, as its real path."""
    return click.option(
        "--cwd",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False),
        callback=_real_directory,
        help="The workspace's directory; the current one.",
    )(function)


def _real_directory(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    try:
        return os.path.realpath(value or os.getcwd())
    except FileNotFoundError:
        raise click.UsageError("The current directory is gone: go to another, or name one with --cwd.") from None


def where_options(function: F) -> F:
    """Which server and which directory are meant."""
    return directory_option(server_options(function))


class DefaultGroup(click.Group):
    """A group that lists when it is called without a command."""

    default = "list"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_default = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        # A shell that completes a line has not got to its end: any command may follow.
        if is_default and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        found = super().shell_complete(ctx, incomplete)
        default = self.get_command(ctx, self.default) if incomplete.startswith("-") else None
        if default is None:
            return found
        known = {item.value for item in found}
        return [*found, *(item for item in default.shell_complete(ctx, incomplete) if item.value not in known)]


def clipped(text: str, width: int) -> str:
    """One line of at most so many columns."""
    line = "".join(character if character.isprintable() else " " for character in " ".join(text[:1000].split()))
    if _columns(line) <= width:
        return line
    while line and _columns(line) > width - 1:
        line = line[:-1]
    return line + "…"


def _columns(line: str) -> int:
    """How wide a terminal shows it: some characters take two columns, some none."""
    if line.isascii():
        return len(line)
    return sum(2 if east_asian_width(each) in "WF" else not combining(each) for each in line)


def age(seconds: float) -> str:
    """How long ago, in as few characters as make sense."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as they must be; what is last gets the rest of the terminal, or of 80 columns. Ids come first:
    where it is narrow their beginnings must do, which is all that a command needs.
    """
    room = _room()
    if room < _NARROW:
        rows = [(row[0][:_SHORT_ID] if len(row[0]) == _ID else row[0], *row[1:]) for row in rows]
    widths = [max(len(row[index]) for row in [names, *rows]) for index in range(len(names) - 1)]
    room = max(10, room - sum(widths) - 2 * len(widths))
    lines = []
    for row in [names, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, clipped(row[-1], room)]).rstrip())
    return "\n".join(lines)


def _room() -> int:
    try:
        return os.get_terminal_size(1).columns or _USUAL
    except OSError:
        return _USUAL
