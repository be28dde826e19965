"""Starts a server. The socket is bound first and refuses connections until the server has its lock and its store, so a
server that answers is usable.
"""

import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.cli.fast_msgspec_import import load_msgspec, signals_blocked
from holdfast.client.server_launcher import EXIT_ADDRESS_IN_USE, ListenAddresses, listen_addresses
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError, StoreMisconfigured, StoreUnreachable
from holdfast.server.http.listen import AddressTaken, UnixListener, bind_first

__all__ = ["FLAGS", "VALUES", "ServeArgs", "run_server", "serve_fast"]

FLAGS = {"--started-by-client": "started_by_client", "--verbose": "verbose"}
VALUES = {
    "--data-dir": "data_dir",
    "--host": "host",
    "--store": "store",
    "--wait": "wait",
    "--label": "label",
    "--drain-timeout": "drain_timeout",
    "--token-file": "token_file",
    "--shared-dir": "shared_dir",
    "--relay": "relay",
    "--advertise": "advertise",
    "--relay-cert": "relay_cert",
    "--relay-key": "relay_key",
    "--relay-ca": "relay_ca",
}
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EXIT_MISCONFIGURED = 2
_EXIT_UNREACHABLE = 4


class ServeArgs(NamedTuple):
    """Arguments of `holdfast serve`. `started_by_client`: started in the background, logs to a file."""

    data_dir: str | None = None
    host: str | None = None
    started_by_client: bool = False
    verbose: bool = False
    store: str = ""
    wait: str = "30"
    label: str = ""
    drain_timeout: str = "600"
    token_file: str = ""
    shared_dir: str = ""
    relay: str = ""
    advertise: str = ""
    relay_cert: str = ""
    relay_key: str = ""
    relay_ca: str = ""


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
        if args.store:
            from holdfast.storage.postgres.store_address import check_argument

            check_argument("--store", args.store)
        seconds = _seconds("--wait", args.wait), _seconds("--drain-timeout", args.drain_timeout)
        place = _place(args.label)
        places = listen_addresses(args.host, args.data_dir, os.environ)
        if args.started_by_client:
            os.chdir("/")
        listener = bind_first(places.sockets, places.data_dir)
        try:
            _serve(args, places, listener, seconds, place)
        finally:
            listener.close()
    except HoldfastError as error:
        from holdfast.cli.console.run_output import print_stderr

        print_stderr(f"Error: {error}")
        return _exit_code(error, args)
    except KeyboardInterrupt:
        return 130
    return 0


def _exit_code(error: HoldfastError, args: ServeArgs) -> int:
    if isinstance(error, StoreMisconfigured):
        return _EXIT_MISCONFIGURED
    if isinstance(error, StoreUnreachable):
        return _EXIT_UNREACHABLE
    is_taken = isinstance(error, (AddressTaken, DataDirectoryBusy))
    return EXIT_ADDRESS_IN_USE if is_taken and args.started_by_client else 1


def _place(label: str) -> str:
    """Return the place that --label names, or an empty string."""
    if not label:
        return ""
    name, _, place = label.partition("=")
    if name != "place" or not _PLACE.fullmatch(place):
        raise StoreMisconfigured(
            f"--label {label!r} is not valid: give place=NAME, of letters, digits, dots, hyphens and underscores."
        )
    return place


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _seconds(option: str, text: str) -> float:
    """Return the value of an option that is a duration."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise StoreMisconfigured(f"{option} {text!r} is not valid: give a number of seconds, 0 or more.")
    return seconds


def _serve(
    args: ServeArgs, places: ListenAddresses, listener: UnixListener, seconds: tuple[float, float], place: str
) -> None:
    # Imported modules are permanent: collections while they load would scan them repeatedly and free nothing.
    gc.disable()
    with signals_blocked():
        load_msgspec()
        import logging
        from pathlib import Path

        import uvloop

        from holdfast.server.relay.relay_address import RelayOptions
        from holdfast.server.rotating_log import RotatingLog
        from holdfast.server.serve import ServerOptions, serve
    gc.freeze()
    gc.enable()
    # Only warnings of other libraries are logged: provider SDKs log complete URLs and headers, including keys.
    log = RotatingLog(places.log) if args.started_by_client else logging.StreamHandler(sys.stderr)
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", handlers=[log])
    logging.getLogger("holdfast").setLevel(logging.DEBUG if args.verbose else logging.INFO)
    options = ServerOptions(
        Path(places.data_dir),
        Path(listener.path),
        places.tcp,
        started_by_client=args.started_by_client,
        store=args.store,
        wait=seconds[0],
        place=place,
        drain_timeout=seconds[1],
        token_file=os.path.abspath(os.path.expanduser(args.token_file)) if args.token_file else "",
        shared_dir=os.path.realpath(os.path.expanduser(args.shared_dir)) if args.shared_dir else "",
        relay=RelayOptions(
            args.relay, args.advertise, *map(_absolute, (args.relay_cert, args.relay_key, args.relay_ca))
        ),
    )
    uvloop.run(serve(options, listener=listener.socket))
