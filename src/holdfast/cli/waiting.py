"""A word on stderr for who waits, and a dot for every second of it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["waiting"]

_SECOND = 1.0


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says what is waited for, at once. Dots only at a terminal: a file of them is of no use to anybody."""
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
