"""Shared parts of the commands: options, tables, and error messages."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import combining, east_asian_width

import click

from holdfast.cli.run_client.run_command import REFUSED
from holdfast.client.terminal_text import sanitize

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "CommandError",
    "DefaultGroup",
    "age",
    "clip",
    "directory_option",
    "location_options",
    "report_errors",
    "server_options",
    "table",
]

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_WIDTH = 80
_NARROW_WIDTH = 76
_ID_LENGTH = 32
_SHORT_ID_LENGTH = 8


class CommandError(click.ClickException):
    """An error that is printed as one line on stderr."""

    exit_code = REFUSED

    def show(self, file: Any = None) -> None:  # noqa: ANN401
        """Print the message without terminal control sequences."""
        click.echo(f"holdfast: {sanitize(self.format_message())}", file=file or sys.stderr)


@contextmanager
def report_errors() -> Iterator[None]:
    """Convert Holdfast errors into one-line messages without a traceback."""
    from holdfast.domain.errors import HoldfastError

    try:
        yield
    except HoldfastError as error:
        raise CommandError(str(error)) from error
    except UnicodeEncodeError:
        raise CommandError("A path or name is not valid UTF-8 and cannot be sent.") from None
    except KeyboardInterrupt:
        sys.exit(130)


def server_options(function: F) -> F:
    """Add the options that select a server."""
    host = click.option(
        "--host",
        metavar="URL[,URL…]",
        help="Address of another server: unix:///path, tcp://host:port or ssh://user@machine/directory; "
        "several for the servers of a cluster.",
    )
    data = click.option("--data-dir", metavar="DIR", help="Data directory of the server; default: $HOLDFAST_DATA_DIR.")
    return data(host(function))


def directory_option(function: F) -> F:
    """Add the option that selects a directory, as its real path."""
    return click.option(
        "--cwd",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False),
        callback=_real_directory,
        help="Directory of the workspace; default: the current directory.",
    )(function)


def _real_directory(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    try:
        return os.path.realpath(value or os.getcwd())
    except FileNotFoundError:
        raise click.UsageError(
            "The current directory no longer exists: change to another one, or give one with --cwd."
        ) from None


def location_options(function: F) -> F:
    """Add the options that select a server and a directory."""
    return directory_option(server_options(function))


class DefaultGroup(click.Group):
    """A group that runs its default command when it is called without one."""

    default = "list"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command if none is given."""
        is_default = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        # During completion the line is incomplete: any command may follow.
        if is_default and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the options of the default command, too."""
        found = super().shell_complete(ctx, incomplete)
        default = self.get_command(ctx, self.default) if incomplete.startswith("-") else None
        if default is None:
            return found
        known = {item.value for item in found}
        return [*found, *(item for item in default.shell_complete(ctx, incomplete) if item.value not in known)]


def clip(text: str, width: int) -> str:
    """Return one line of at most `width` columns."""
    line = "".join(character if character.isprintable() else " " for character in " ".join(text[:1000].split()))
    if _columns(line) <= width:
        return line
    while line and _columns(line) > width - 1:
        line = line[:-1]
    return line + "…"


def _columns(line: str) -> int:
    """Return the width on a terminal: some characters take two columns, some none."""
    if line.isascii():
        return len(line)
    return sum(2 if east_asian_width(each) in "WF" else not combining(each) for each in line)


def age(seconds: float) -> str:
    """Format an age in a few characters."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Format columns of minimal width; the last one is cut to the terminal, or to 80 columns. On a narrow terminal ids
    in the first column are shortened, because commands accept a prefix.
    """
    width = _terminal_width()
    if width < _NARROW_WIDTH:
        rows = [(row[0][:_SHORT_ID_LENGTH] if len(row[0]) == _ID_LENGTH else row[0], *row[1:]) for row in rows]
    widths = [max(len(row[index]) for row in [names, *rows]) for index in range(len(names) - 1)]
    width = max(10, width - sum(widths) - 2 * len(widths))
    lines = []
    for row in [names, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, clip(row[-1], width)]).rstrip())
    return "\n".join(lines)


def _terminal_width() -> int:
    try:
        return os.get_terminal_size(1).columns or _DEFAULT_WIDTH
    except OSError:
        return _DEFAULT_WIDTH
