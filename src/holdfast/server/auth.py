"""Who may come in over TCP: only who has the token, from no web page of anybody's.

The unix socket is guarded by the file system and the peer's uid; nothing is asked there.
"""

import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from holdfast.server.asgi import Scope, Send

__all__ = ["Guard", "read_or_make_token"]

_TOKEN_BYTES = 32


def read_or_make_token(data_dir: Path) -> str:
    """256 bits in a file only its owner can read, made when TCP is first asked for."""
    path = data_dir / "token"
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
        return token


class Guard:
    """Stands before the application on a TCP port."""

    def __init__(self, token: str, hosts: Iterable[str]) -> None:
        self._token = token.encode()
        self._hosts = frozenset(host.lower().encode() for host in hosts)

    def refusal(self, scope: Scope) -> tuple[int, bytes] | None:
        """The status and the sentence for a request that may not come in."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if headers.get(b"host", b"").lower() not in self._hosts:
            return 403, b"This host name is not served here."
        if b"origin" in headers:
            return 403, b"Web pages may not talk to this server."
        if scope["method"] not in ("GET", "HEAD") and not _is_json(headers):
            return 415, b"Send application/json."
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(given, self._token):
            return 401, b"Send the token of this server as a bearer token."
        return None

    async def refuse(self, send: Send, status: int, sentence: bytes) -> None:
        body = b'{"message":"' + sentence + b'"}\n'
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _is_json(headers: dict[bytes, bytes]) -> bool:
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    return not has_body or kind == b"application/json"
