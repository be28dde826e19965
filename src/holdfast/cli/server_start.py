"""Starts a server. The socket is bound first and refuses connections until the server has its lock and its store, so a
server that answers is usable.
"""

import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from holdfast.cli.console.run_output import print_stderr
from holdfast.cli.fast_import import load_msgspec, signals_blocked
from holdfast.client.locate import EXIT_ADDRESS_IN_USE, ListenAddresses, listen_addresses
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError
from holdfast.server.http.listen import AddressTaken, UnixListener, bind_first

__all__ = ["FLAGS", "KEPT", "LONGEST", "VALUES", "RotatingLog", "ServeArgs", "run_server", "serve_fast"]


LONGEST = 10_000_000
"""Maximum size of one file in bytes."""
KEPT = 5
"""Number of files: `server.log`, then `server.log.1` and so on; the oldest has the highest number."""


class RotatingLog(logging.StreamHandler[TextIO]):
    """Logs to stderr and rotates its file, so that any other output of the process is in the same file."""

    def __init__(self, path: str) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after rotating the file if it is too large."""
        try:
            here = os.fstat(2)
            if here.st_size >= LONGEST and os.path.samestat(here, os.stat(self._path)):
                self._turn_over()
        except OSError:
            # A log that is too large is better than none.
            pass
        super().emit(record)

    def _turn_over(self) -> None:
        for number in range(KEPT - 2, 0, -1):
            if os.path.exists(f"{self._path}.{number}"):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)


FLAGS = {"--started-by-client": "started_by_client", "--verbose": "verbose"}
VALUES = {"--data-dir": "data_dir", "--host": "host"}


class ServeArgs(NamedTuple):
    """Arguments of `holdfast serve`. `started_by_client`: started in the background, logs to a file."""

    data_dir: str | None = None
    host: str | None = None
    started_by_client: bool = False
    verbose: bool = False


def serve_fast(arguments: Sequence[str]) -> int | None:
    """Run the server and return the exit code, or None if click has to parse the command line."""
    values: dict[str, str | bool] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in FLAGS:
            values[FLAGS[argument]] = True
        elif name in VALUES and not (value := value if equals else next(rest, "-")).startswith("-"):
            values[VALUES[name]] = value
        else:
            return None
    return run_server(ServeArgs(**values))  # type: ignore[arg-type]


def run_server(args: ServeArgs) -> int:
    """Run the server until it stops. Returns the exit code."""
    try:
        places = listen_addresses(args.host, args.data_dir, os.environ)
        if args.started_by_client:
            os.chdir("/")
        listener = bind_first(places.sockets, places.data_dir)
        try:
            _serve(args, places, listener)
        finally:
            listener.close()
    except HoldfastError as error:
        print_stderr(f"Error: {error}")
        is_taken = isinstance(error, (AddressTaken, DataDirectoryBusy))
        return EXIT_ADDRESS_IN_USE if is_taken and args.started_by_client else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(args: ServeArgs, places: ListenAddresses, listener: UnixListener) -> None:
    # Imported modules are permanent: collections while they load would scan them repeatedly and free nothing.
    gc.disable()
    with signals_blocked():
        load_msgspec()
        import logging
        from pathlib import Path

        import uvloop

        pass
        from holdfast.server.serve import ServerOptions, serve
    gc.freeze()
    gc.enable()
    # Only warnings of other libraries are logged: provider SDKs log complete URLs and headers, including keys.
    log = RotatingLog(places.log) if args.started_by_client else logging.StreamHandler(sys.stderr)
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", handlers=[log])
    logging.getLogger("holdfast").setLevel(logging.DEBUG if args.verbose else logging.INFO)
    options = ServerOptions(
        Path(places.data_dir), Path(listener.path), places.tcp, started_by_client=args.started_by_client
    )
    uvloop.run(serve(options, listener=listener.socket))
