"""`holdfast migrate`: copy the content of a data directory to PostgreSQL."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.common import CommandError, report_errors
from holdfast.client.terminal_text import printable
from holdfast.domain.errors import StoreMisconfigured, StoreUnreachable

if TYPE_CHECKING:
    from holdfast.storage.postgres.copy_sqlite import Copied
    from holdfast.storage.postgres.store_address import StoreAddress

__all__ = ["command"]


class _MisconfiguredError(CommandError):
    exit_code = 2


class _UnreachableError(CommandError):
    exit_code = 4


@click.command("migrate")
@click.option("--from", "source", metavar="DIR", required=True, help="The data directory to copy from.")
@click.option("--to", "target", metavar="URL", default="", help="postgresql://user@host/database.")
@click.option("--password-file", metavar="FILE", default="", help="A file with the password of the database.")
def command(*, source: str, target: str, password_file: str) -> None:
    """Copy sessions, messages, runs, events, files, saved settings and trust of a data directory to PostgreSQL.

    The server of the directory must be stopped. Each workspace is copied in one transaction and compared with its
    source. A repeated call skips what the database contains. Provider keys stay in the directory. The address may also
    be in $HOLDFAST_STORE.

    \b
      holdfast migrate --from ~/.local/share/holdfast --to postgresql://db/holdfast
    """
    from holdfast.storage.postgres.store_address import VARIABLE, address_of, check_argument

    with report_errors():
        try:
            if target:
                check_argument("--to", target)
            address = address_of(target, os.environ, "", password_file)
            if address is None:
                raise StoreMisconfigured(f"Give the address of the database with --to or in {VARIABLE}.")
            results = _migrate(Path(source), address)
        except StoreMisconfigured as error:
            raise _MisconfiguredError(str(error)) from None
        except StoreUnreachable as error:
            raise _UnreachableError(str(error)) from None
    for result in results:
        click.echo(_line(result))
    if any(result.outcome == "taken" for result in results):
        sys.exit(1)


def _migrate(source: Path, address: "StoreAddress") -> "list[Copied]":
    import asyncio

    from holdfast.storage.database import DATABASE_NAME

    if not (source / DATABASE_NAME).is_file():
        raise StoreMisconfigured(f"{source} contains no {DATABASE_NAME}: name the data directory of a server.")
    from holdfast.runtime.open_store import copy_to_postgres

    return asyncio.run(copy_to_postgres(source, address))


def _line(result: "Copied") -> str:
    path = printable(result.path)
    if result.outcome == "present":
        return f"{path}: is already there"
    if result.outcome == "kept":
        return f"{path}: not copied, because the database contains another version, which is kept"
    if result.outcome == "taken":
        return f"{path}: not copied, because a server has already used this directory in the database"
    counts = (f"{count} {_noun(table, count)}" for table, count in result.counts.items() if count)
    return f"{path}: copied {', '.join(counts) or 'an empty workspace'}"


def _noun(table: str, count: int) -> str:
    name = table.replace("_", " ")
    return name.removesuffix("s") if count == 1 else name
