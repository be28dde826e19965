"""`holdfast logs`: the log of a server that was started by a client."""

import os
from collections import deque

import click

from holdfast.cli.common import Failure, sentences
from holdfast.client.locate import locate
from holdfast.client.terminal_text import harmless

__all__ = ["command"]

_BETWEEN_LOOKS = 0.2


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="How many at first.")
@click.option("--data-dir", metavar="DIR", help="The server's data directory; $HOLDFAST_DATA_DIR.")
def command(*, follow: bool, lines: int, data_dir: str | None) -> None:
    """Show the server's log. One that runs as `holdfast serve` writes to its own terminal instead.

    \b
      holdfast logs
      holdfast logs -n 20 --follow
    """
    with sentences():
        path = locate(None, data_dir).log
        try:
            _show(path, lines, follow=follow)
        except OSError as error:
            if error.filename is None:
                # Reading succeeded; writing failed.
                raise
            raise Failure(f"There is no log to read at {path}: {error.strerror}.") from None


def _show(path: str, lines: int, *, follow: bool) -> None:
    from holdfast.cli.link import wait_quietly

    file = open(path, "rb")  # noqa: SIM115
    try:
        _say(b"".join(deque(file, maxlen=lines)))
        while follow:
            if piece := file.read():
                _say(piece)
            elif _is_another(path, file.fileno(), file.tell()):
                file.close()
                file = open(path, "rb")  # noqa: SIM115
            else:
                wait_quietly(_BETWEEN_LOOKS)
    finally:
        file.close()


def _say(piece: bytes) -> None:
    if os.isatty(1):
        click.echo(harmless(piece.decode("utf-8", "replace")), nl=False)
    else:
        click.echo(piece, nl=False)


def _is_another(path: str, descriptor: int, position: int) -> bool:
    """Return True if the log was rotated or truncated."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or there.st_size < position
