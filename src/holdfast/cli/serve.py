"""`holdfast serve`: the server in the foreground, logging to stderr."""

import sys

import click

from holdfast.cli.boot import Start, boot

__all__ = ["command"]


@click.command("serve")
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Where the database lives; $HOLDFAST_DATA_DIR, else ~/.local/share/holdfast.",
)
@click.option("--host", metavar="URL", help="unix:///path/of/socket, or tcp://127.0.0.1:PORT beside the usual socket.")
@click.option("--started-by-client", is_flag=True, hidden=True)
@click.option("--verbose", is_flag=True, help="Say more in the log.")
def command(*, data_dir: str | None, host: str | None, started_by_client: bool, verbose: bool) -> None:
    """Run the server here, until Ctrl-C.

    Clients find it by themselves. Prompts that were accepted before continue. Stopping it loses nothing:
    queued prompts continue at the next start.

    \b
      holdfast serve                             for the default data directory
      holdfast serve --data-dir /srv/holdfast    another one, with a socket of its own
      holdfast serve --host tcp://127.0.0.1:7437 over TCP too, for clients with the token
    """
    sys.exit(boot(Start(data_dir, host, started_by_client, verbose)))
