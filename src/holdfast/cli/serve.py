"""`holdfast serve`: the server in the foreground, with a log one can read."""

import logging
import os
import sys
from pathlib import Path

import click

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

    Clients find it by themselves. Prompts that were accepted before go on; stopping it loses nothing: what waits
    is taken up at the next start.

    \b
      holdfast serve                             for the default data directory
      holdfast serve --data-dir /srv/holdfast    another one, with a socket of its own
      holdfast serve --host tcp://127.0.0.1:7437 over TCP too, for who has the token
    """
    import uvloop

    from holdfast.app import ServerOptions, serve
    from holdfast.client.locate import locate
    from holdfast.domain.errors import HoldfastError

    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        tcp = None
        if host is not None and host.startswith("tcp://"):
            address = locate(host, data_dir).address
            tcp, host = (address.host, address.port), None
        where = locate(host, data_dir)
        if started_by_client:
            os.chdir("/")
        options = ServerOptions(
            Path(where.data_dir), Path(where.address.path), tcp, started_by_client=started_by_client
        )
        uvloop.run(serve(options))
    except HoldfastError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)
