"""Address of a server, and requests to it. Pure, and fast to import."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from holdfast.http11.client_messages import quote, serialize_request

__all__ = ["HOST_ON_SOCKETS", "QueryItems", "ServerAddress", "build_request", "fill"]

HOST_ON_SOCKETS = "holdfast.localhost"
"""The Host header for unix sockets, because HTTP requires one."""

QueryItems: TypeAlias = Iterable[tuple[str, str | int | None]]


class ServerAddress(NamedTuple):
    """Address of a server: a unix socket, or a host and port with a token."""

    path: str = ""
    host: str = ""
    port: int = 0
    token: str = ""
    data_id: str = ""
    """The expected data directory, if it is known. A server with another one rejects the request."""
    name: str = ""
    """The host as the user gave it, for display, if the socket is that of a forwarded connection."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        if self.path:
            return HOST_ON_SOCKETS
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.name or (f"unix://{self.path}" if self.path else f"tcp://{self.authority}")

    @property
    def label(self) -> str:
        """A short name for a screen: the machine, or the file name of the socket."""
        if self.name or not self.path:
            return str(self).partition("://")[2]
        return self.path.rpartition("/")[2]

    def __repr__(self) -> str:
        """Omit the token, because addresses are logged."""
        return f"Address({self})"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the path of a route with its placeholders replaced."""
    return "/".join([_segment(segment, values) for segment in template.split("/")])


def _segment(segment: str, values: Mapping[str, str]) -> str:
    if not segment.startswith("{"):
        return segment
    value = values[segment[1:-1]]
    if value in {"", ".", ".."}:
        raise ValueError(f"{segment[1:-1]} is not a valid path segment: the path would be that of another route")
    return quote(value)


def build_request(
    address: ServerAddress,
    method: str,
    path: str,
    query: QueryItems = (),
    body: bytes | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return the bytes of a request. `path` is already encoded; query values that are None are omitted."""
    encoded = "&".join([f"{quote(name)}={quote(str(value))}" for name, value in query if value is not None])
    lines = [("Host", address.authority)]
    if address.token:
        lines.append(("Authorization", f"Bearer {address.token}"))
    if address.data_id:
        lines.append(("Holdfast-Data", address.data_id))
    if body is not None:
        lines.append(("Content-Type", "application/json"))
    if body is not None or method not in {"GET", "HEAD", "DELETE"}:
        lines.append(("Content-Length", str(len(body or b""))))
    lines += headers
    return serialize_request(method, f"{path}?{encoded}" if encoded else path, lines) + (body or b"")
