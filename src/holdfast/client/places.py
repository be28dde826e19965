"""Where things are, as rules: the data directory, the socket that belongs to it, what a host means. Pure.

Server and client come to the same place by the same rules, so that they find each other without being told.
"""

from collections.abc import Mapping
from importlib import import_module
from posixpath import join

from holdfast.client.wire import Address
from holdfast.domain.errors import BadRequest

__all__ = [
    "LONGEST_SOCKET_PATH",
    "BadHost",
    "data_directory",
    "default_data_directory",
    "parse_host",
    "socket_directories",
    "socket_name",
    "socket_path",
]

LONGEST_SOCKET_PATH = 104
"""What the systems we run on allow, the strictest of them."""


class BadHost(BadRequest):
    """A host is unix:///path/of/the/socket, tcp://host:port or ssh://user@machine/directory."""


def default_data_directory(environment: Mapping[str, str], home: str) -> str:
    base = environment.get("XDG_DATA_HOME", "")
    return join(base if base.startswith("/") else join(home, ".local/share"), "holdfast")


def data_directory(chosen: str | None, environment: Mapping[str, str], home: str) -> str:
    """The one that was chosen on the command line or in the environment, or the default one."""
    return chosen or environment.get("HOLDFAST_DATA_DIR") or default_data_directory(environment, home)


def socket_directories(environment: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """Where sockets may be, best first. A runtime directory that is not absolute does not count."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    fallback = f"/tmp/holdfast-{uid}"
    return (join(runtime, "holdfast"), fallback) if runtime.startswith("/") else (fallback,)


def socket_name(data_dir: str, default: str) -> str:
    """Both as real paths. Each data directory has a server of its own, and so a socket of its own."""
    if data_dir == default:
        return "server.sock"
    # Most commands use the default directory and need no hash; loading one takes longer than finding the server.
    digest: str = import_module("hashlib").sha256(data_dir.encode("utf-8", "surrogateescape")).hexdigest()
    return f"server-{digest[:8]}.sock"


def socket_path(name: str, directories: tuple[str, ...]) -> str:
    """The first place where the whole path is short enough for a socket."""
    for directory in directories:
        path = join(directory, name)
        if len(path.encode("utf-8", "surrogateescape")) <= LONGEST_SOCKET_PATH:
            return path
    raise BadHost(f"The path of the socket is longer than {LONGEST_SOCKET_PATH} bytes: set a shorter XDG_RUNTIME_DIR.")


def parse_host(text: str, token: str = "") -> Address:
    """`unix://…` or `tcp://host:port`. The token is for TCP only."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "unix" and rest.startswith("/"):
        if len(rest.encode("utf-8", "surrogateescape")) > LONGEST_SOCKET_PATH:
            raise BadHost(f"The path of a socket has at most {LONGEST_SOCKET_PATH} bytes.")
        return Address(path=rest)
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and 0 < len(port) <= 5
    if separator and scheme == "tcp" and host and colon and is_number and 0 < int(port) < 65_536:
        return Address(host=host, port=int(port), token=token)
    raise BadHost
