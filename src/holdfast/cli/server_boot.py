"""Starts a server. The socket is bound first and refuses connections until the server has its lock and its store, so a
server that answers is usable.
"""

import gc
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.cli.console.run_output import complain
from holdfast.cli.fast_import import load_msgspec, undisturbed
from holdfast.client.locate import TAKEN, ListenPlaces, listen_places
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError
from holdfast.server.http.listen import AddressTaken, UnixListener, bind_first

__all__ = ["FLAGS", "VALUES", "Start", "boot", "serve_quickly"]

FLAGS = {"--started-by-client": "started_by_client", "--verbose": "verbose"}
VALUES = {"--data-dir": "data_dir", "--host": "host"}


class Start(NamedTuple):
    """Arguments of `holdfast serve`."""

    data_dir: str | None = None
    host: str | None = None
    started_by_client: bool = False
    verbose: bool = False


def serve_quickly(arguments: Sequence[str]) -> int | None:
    """Run the server and return the exit code, or None if click has to parse the command line."""
    found: dict[str, str | bool] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in FLAGS:
            found[FLAGS[argument]] = True
        elif name in VALUES and not (value := value if equals else next(rest, "-")).startswith("-"):
            found[VALUES[name]] = value
        else:
            return None
    return boot(Start(**found))  # type: ignore[arg-type]


def boot(start: Start) -> int:
    """Run the server until it stops. Returns the exit code."""
    try:
        places = listen_places(start.host, start.data_dir, os.environ)
        if start.started_by_client:
            os.chdir("/")
        listener = bind_first(places.sockets, places.data_dir)
        try:
            _serve(start, places, listener)
        finally:
            listener.close()
    except HoldfastError as error:
        complain(f"Error: {error}")
        is_taken = isinstance(error, (AddressTaken, DataDirectoryBusy))
        return TAKEN if is_taken and start.started_by_client else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(start: Start, places: ListenPlaces, listener: UnixListener) -> None:
    # Imported modules are permanent: collections while they load would scan them repeatedly and free nothing.
    gc.disable()
    with undisturbed():
        load_msgspec()
        import logging
        from pathlib import Path

        import uvloop

        from holdfast.server.rotating_log import RotatingLog
        from holdfast.server.serve import ServerOptions, serve
    gc.freeze()
    gc.enable()
    # Only warnings of other libraries are logged: provider SDKs log complete URLs and headers, including keys.
    log = RotatingLog(places.log) if start.started_by_client else logging.StreamHandler(sys.stderr)
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", handlers=[log])
    logging.getLogger("holdfast").setLevel(logging.DEBUG if start.verbose else logging.INFO)
    options = ServerOptions(
        Path(places.data_dir), Path(listener.path), places.tcp, started_by_client=start.started_by_client
    )
    uvloop.run(serve(options, listener=listener.socket))
