"""`holdfast dirs`: locations of files."""

import os

import click

from holdfast.cli.common import sentences, server_options
from holdfast.client.locate import locate

__all__ = ["command"]


@click.command("dirs")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@server_options
def command(*, as_json: bool, data_dir: str | None, host: str | None) -> None:
    """Print where files are: your settings, keys, the data, the log, the socket. Starts and creates nothing.

    Settings of projects and clients override yours: holdfast config path names all files.

    \b
      holdfast dirs
      holdfast dirs --json
    """
    from holdfast.config.locations import places_for

    with sentences():
        where = locate(host, data_dir)
    known = {**os.environ, "HOME": os.environ.get("HOME") or os.path.expanduser("~")}
    mine = places_for("/", known, data_dir=where.data_dir)
    places = {
        "settings": mine.user_file,
        "keys": mine.credentials_file,
        "data": where.data_dir,
        "database": os.path.join(where.data_dir, "holdfast.db"),
        "config": os.path.join(where.data_dir, "config.json"),
        "log": where.log,
        "server": str(where.address),
    }
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(places))
        return
    for name, path in places.items():
        click.echo(f"{name:<10}{path}")
