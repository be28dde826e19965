"""`holdfast dirs`: where things are kept."""

import os

import click

from holdfast.cli.common import sentences, server_options
from holdfast.client.locate import locate

__all__ = ["command"]


@click.command("dirs")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@server_options
def command(*, as_json: bool, data_dir: str | None, host: str | None) -> None:
    """Say where things are kept. Starts nothing and makes nothing.

    \b
      holdfast dirs
      holdfast dirs --json
    """
    with sentences():
        where = locate(host, data_dir)
    places = {
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
