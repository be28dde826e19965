"""How a server starts: its socket first, so that clients find it and are told that it is there, then all the rest."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.cli.lean import load_msgspec, undisturbed
from holdfast.cli.speak import complain
from holdfast.client.locate import TAKEN, Where, locate
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError
from holdfast.server.listen import AddressTaken, UnixListener
from holdfast.server.porch import Porch

__all__ = ["FLAGS", "VALUES", "Start", "boot", "serve_quickly"]

FLAGS = {"--started-by-client": "started_by_client", "--verbose": "verbose"}
VALUES = {"--data-dir": "data_dir", "--host": "host"}


class Start(NamedTuple):
    """The command line of `holdfast serve`."""

    data_dir: str | None = None
    host: str | None = None
    started_by_client: bool = False
    verbose: bool = False


def serve_quickly(arguments: Sequence[str]) -> int | None:
    """The exit code, or None if click has to look at the command line."""
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
    """Serve until the end. The exit code."""
    try:
        tcp, host = None, start.host
        if host is not None and host.startswith("tcp://"):
            address = locate(host, start.data_dir).address
            tcp, host = (address.host, address.port), None
        where = locate(host, start.data_dir)
        if start.started_by_client:
            os.chdir("/")
        listener = UnixListener(where.address.path)
        try:
            _serve(start, where, tcp, listener)
        finally:
            listener.close()
    except HoldfastError as error:
        complain(f"Error: {error}")
        is_taken = isinstance(error, (AddressTaken, DataDirectoryBusy))
        return TAKEN if is_taken and start.started_by_client else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(start: Start, where: Where, tcp: tuple[str, int] | None, listener: UnixListener) -> None:
    porch = Porch(listener.socket)
    porch.open()
    # What is loaded stays: looking through it for garbage, again and again while it grows, finds none.
    gc.disable()
    try:
        with undisturbed():
            load_msgspec()
            import logging
            from pathlib import Path

            import uvloop

            from holdfast.app import ServerOptions, serve
            from holdfast.server.logfile import TurningLog
    except BaseException:
        porch.close()
        raise
    gc.freeze()
    gc.enable()
    # Of what others log only warnings are kept: providers' libraries tell whole addresses and headers, keys included.
    log = TurningLog(where.log) if start.started_by_client else logging.StreamHandler(sys.stderr)
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", handlers=[log])
    logging.getLogger("holdfast").setLevel(logging.DEBUG if start.verbose else logging.INFO)
    options = ServerOptions(
        Path(where.data_dir), Path(where.address.path), tcp, started_by_client=start.started_by_client
    )
    uvloop.run(serve(options, listener=listener.socket, take_over=porch.close))
