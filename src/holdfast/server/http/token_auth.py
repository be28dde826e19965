"""Access over TCP: bearer token, host and origin checks.

The unix socket is protected by file permissions and the uid of the peer, without a token.
"""

import hmac
import os
import secrets
import socket
import stat
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from holdfast.atomic_files import FileUnreadable, read_secret_file, replace_private_file
from holdfast.domain.errors import StoreMisconfigured
from holdfast.server.http.connection import Scope, Send

__all__ = ["TokenAuth", "host_of", "is_exposed", "is_json", "read_or_make_token", "read_token_file", "repeated_header"]

_TOKEN_BYTES = 32
_TOKEN_LENGTH = 43
"""Length of 32 bytes in URL-safe base64."""
_SINGLE_HEADERS = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"transfer-encoding",
    }
)
"""Headers that decide about admission. They may not be repeated: a proxy and the server might each use a
different one.
"""


def read_or_make_token(data_dir: Path) -> str:
    """Return the token of the data directory: 256 bits in a file that only its owner can read, created on first
    use.

    A file that other users can read, or that contains no complete token, is replaced.
    """
    path = data_dir / "token"
    token = _read(path)
    if token is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        replace_private_file(str(path), f"{token}\n".encode())
    return token


def read_token_file(path: str) -> str:
    """Return the token that all servers of a cluster accept. Raises `StoreMisconfigured` with one sentence."""
    try:
        return read_secret_file(os.path.expanduser(path), "token file", _TOKEN_LENGTH)
    except FileUnreadable as error:
        raise StoreMisconfigured(str(error)) from None


def _read(path: Path) -> str | None:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return None
        token = path.read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return token if len(token) >= _TOKEN_LENGTH else None


def is_exposed(listener: socket.socket) -> bool:
    """Return whether other machines may reach a TCP socket."""
    address = ip_address(listener.getsockname()[0].partition("%")[0])
    return not (getattr(address, "ipv4_mapped", None) or address).is_loopback


class TokenAuth:
    """Checks requests on a TCP port before they reach the application."""

    def __init__(self, token: str, hosts: Iterable[str]) -> None:
        self._token = token.encode()
        self._hosts = frozenset(host.lower().encode() for host in hosts)

    def refusal(self, scope: Scope) -> tuple[int, bytes] | None:
        """Return status and message for a request that is not admitted, else None."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if host_of(scope, self._hosts) is None:
            return 403, b"This host name is not served here."
        if name := repeated_header(scope):
            return 400, b"Send the header %b only once." % name
        if b"origin" in headers:
            return 403, b"Web pages may not talk to this server."
        if scope["method"] not in ("GET", "HEAD") and not is_json(headers):
            return 415, b"Send application/json."
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(given.strip(), self._token) or scheme.lower() != b"bearer":
            return 401, b"Send the token of this server as a bearer token."
        return None

    async def refuse(self, send: Send, status: int, sentence: bytes) -> None:
        """Send a refusal as JSON."""
        body = b'{"message":"' + sentence + b'"}\n'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def host_of(scope: Scope, served: Collection[bytes]) -> bytes | None:
    """Return the host that a request names, or None if it is not one of those served.

    There must be one Host header. An absolute target has to name the same host: it takes precedence over the header
    (RFC 9112, 3.2.2), so a proxy and the server could interpret a request with two different hosts differently.
    """
    hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 or hosts[0] not in served:
        return None
    target = scope["target"].lower()
    is_same = target.startswith((b"http://%b/" % hosts[0], b"http://%b?" % hosts[0])) or target == b"*"
    return hosts[0] if is_same or target.startswith(b"/") else None


def repeated_header(scope: Scope) -> bytes | None:
    """Return the name of a header that decides about admission and occurs more than once."""
    names = [name for name, _ in scope["headers"] if name in _SINGLE_HEADERS]
    return next((name for name in names if names.count(name) > 1), None)


def is_json(headers: Mapping[bytes, bytes]) -> bool:
    """Return True without a body, or with the content type that a web page cannot send without a preflight request."""
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    return not has_body or kind == b"application/json"
