"""Progress dots on stderr."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["waiting"]

_SECOND = 1.0


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Print a message at once, and a dot for every second. Dots are printed only at a terminal."""
    if not sys.stderr.isatty():
        click.echo(f"{what} ...", err=True)
        yield
        return
    click.echo(f"{what} ", nl=False, err=True)
    over = threading.Event()
    ticking = threading.Thread(target=_tick, args=(over,), daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()
        click.echo(err=True)


def _tick(over: threading.Event) -> None:
    while not over.wait(_SECOND):
        click.echo(".", nl=False, err=True)
