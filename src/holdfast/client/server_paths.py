"""Rules for the data directory, its socket, and the syntax of hosts. Pure.

Server and client derive the same paths from the same rules, so that they find each other without configuration.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from posixpath import join

from holdfast.client.server_address import ServerAddress
from holdfast.domain.errors import BadRequest

__all__ = [
    "MAX_SOCKET_PATH",
    "BadHost",
    "data_directory",
    "default_data_directory",
    "parse_host",
    "socket_directories",
    "socket_names",
    "socket_path",
    "split_hosts",
]

MAX_SOCKET_PATH = 104
"""Maximum length of a socket path in bytes, the strictest limit of the supported systems."""


_HASHED_NAMES = 4
_NEXT_HOST = re.compile(r",\s*(?:unix|tcp|ssh)://")


class BadHost(BadRequest):
    """A host is unix:///path/of/the/socket, tcp://host:port or ssh://user@machine/directory."""


def default_data_directory(environment: Mapping[str, str], home: str) -> str:
    """Return the default data directory."""
    base = environment.get("XDG_DATA_HOME", "")
    return join(base if base.startswith("/") else join(home, ".local/share"), "holdfast")


def data_directory(chosen: str | None, environment: Mapping[str, str], home: str) -> str:
    """Return the data directory from the command line or the environment, or the default one."""
    return chosen or environment.get("HOLDFAST_DATA_DIR") or default_data_directory(environment, home)


def socket_directories(environment: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """Return the directories for sockets, best first. A relative runtime directory is ignored."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    fallback = f"/tmp/holdfast-{uid}"
    # The path is stored as one line of the lock file.
    is_usable = runtime.startswith("/") and "\n" not in runtime
    return (join(runtime, "holdfast"), fallback) if is_usable else (fallback,)


def socket_names(data_dir: str, usual: str) -> Iterator[str]:
    """Yield the possible names of a server's socket, best first. Both arguments are real paths.

    Each data directory has its own server and its own socket. `usual` is the default data directory below the home of
    the password database, which does not depend on $HOME; only its socket has the name that Crush clients know. The
    further names are used if a server of another directory has taken the first.
    """
    if data_dir == usual:
        yield "server.sock"
    # Importing hashlib takes longer than finding the server, and most commands need only the first name.
    sha256 = import_module("hashlib").sha256
    path = data_dir.encode("utf-8", "surrogateescape")
    for number in range(_HASHED_NAMES):
        yield f"server-{sha256(path + bytes(number)).hexdigest()[:8]}.sock"


def socket_path(name: str, directories: tuple[str, ...]) -> str:
    """Return the first path that is short enough for a socket. Raises `BadHost`."""
    for directory in directories:
        path = join(directory, name)
        if len(path.encode("utf-8", "surrogateescape")) <= MAX_SOCKET_PATH:
            return path
    raise BadHost(f"The path of the socket is longer than {MAX_SOCKET_PATH} bytes: set a shorter XDG_RUNTIME_DIR.")


def split_hosts(text: str) -> list[str]:
    """Return the hosts of a comma-separated list. Raises `BadHost` for an empty element.

    A path may contain commas, so a host with a path is a list only if another host follows a comma.
    """
    if "," not in text or (not text.startswith("tcp:") and _NEXT_HOST.search(text) is None):
        return [text]
    hosts = [host.strip() for host in text.split(",")]
    if not all(hosts):
        raise BadHost("The list of hosts has an empty element: write hosts as in tcp://a:7437,tcp://b:7437.")
    return hosts


def parse_host(text: str, token: str = "") -> ServerAddress:
    """Parse `unix://…` or `tcp://host:port`. The token is used for TCP only. Raises `BadHost`."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "unix" and rest.startswith("/") and "\n" not in rest:
        if len(rest.encode("utf-8", "surrogateescape")) > MAX_SOCKET_PATH:
            raise BadHost(f"The path of a socket has at most {MAX_SOCKET_PATH} bytes.")
        return ServerAddress(path=rest)
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and 0 < len(port) <= 5
    if separator and scheme == "tcp" and host and colon and is_number and 0 < int(port) < 65_536:
        return ServerAddress(host=host, port=int(port), token=token)
    raise BadHost
