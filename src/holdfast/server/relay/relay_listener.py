"""The port at which a node accepts requests that other nodes relay to it.

It is separate from the port of clients: it accepts only the token of this node, the other port only the tokens of
clients. So a request was relayed if and only if it arrived here, whatever its headers are. Each node has a token of its
own, which the database generates whenever the node joins.
"""

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from holdfast.domain.errors import StorageError, StoreMisconfigured
from holdfast.domain.ids import NodeId
from holdfast.server.http.connection import Receive, Scope, Send
from holdfast.server.http.listen import AddressTaken, UnixListener, UnsafeDirectory, bind_tcp
from holdfast.server.http.request_cycle import Asgi
from holdfast.server.http.token_auth import TokenAuth
from holdfast.server.relay.relay import SENDER_HEADER, Relay
from holdfast.server.relay.relay_address import RelayAddress, RelayOptions
from holdfast.server.workspace_manager import WorkspaceManager

if TYPE_CHECKING:
    from holdfast.runtime.workspace_host import WorkspaceHost

__all__ = ["RelayApplication", "RelayListener", "bind_relay"]

_RELAYS_TO_ITSELF = (
    b"The server that owns this workspace has the address of this one: start it with --relay, or correct --advertise."
)
_NOT_A_MEMBER = b"The server that owns this workspace is joining the cluster: try again in a moment."
_log = logging.getLogger("holdfast.cluster")


class RelayListener:
    """A bound socket, the address that other nodes use, and the certificate if connections are encrypted."""

    def __init__(
        self,
        listener: socket.socket | None,
        address: str,
        hosts: tuple[str, ...],
        tls: ssl.SSLContext | None = None,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` has the certificate of this node, `verify` the authorities of the others."""
        self.socket = listener
        self.address = address
        self.hosts = hosts
        self.tls = tls
        self._verify = verify

    def make_relay(self, manager: WorkspaceManager) -> Relay:
        """Return the relay that sends requests to the other nodes."""
        return Relay(manager, self._verify)

    def admit(self, application: Asgi, host: "WorkspaceHost") -> "RelayApplication":
        """Return the application for this port."""
        return RelayApplication(application, host, self.hosts)


class RelayApplication:
    """Admits requests with the token of this node, and marks them as relayed for the application."""

    def __init__(self, application: Asgi, host: "WorkspaceHost", hosts: tuple[str, ...]) -> None:
        self._application = application
        self._hosts = hosts
        self._node: Callable[[], NodeId | None] = lambda: host.membership.view.node
        self._read: Callable[[NodeId], Awaitable[str]] = host.cluster.relay_token
        self._token: tuple[NodeId | None, str] = (None, "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of another node."""
        sender = dict(scope["headers"]).get(SENDER_HEADER.encode(), b"").decode("latin-1")
        if sender and sender == self._node():
            # For example two machines use the same path of a unix socket. The id is no secret and admits nothing.
            await _send_unavailable(send, _RELAYS_TO_ITSELF)
            return
        token = await self._current_token()
        if not token:
            await _send_unavailable(send, _NOT_A_MEMBER)
            return
        guard = TokenAuth(token, self._hosts)
        refusal = guard.refusal(scope)
        if refusal is not None:
            await guard.refuse(send, *refusal)
            return
        scope["relayed_by"] = sender
        await self._application(scope, receive, send)

    async def _current_token(self) -> str:
        """Return the token of this membership, which is read once; empty without a membership."""
        me = self._node()
        if me is None:
            return ""
        if self._token[0] != me or not self._token[1]:
            try:
                self._token = (me, await self._read(me))
            except StorageError:
                return ""
        return self._token[1]


async def _send_unavailable(send: Send, sentence: bytes) -> None:
    body = b'{"message":"%b"}\n' % sentence
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def bind_relay(options: RelayOptions, own_socket: str, stack: ExitStack) -> RelayListener:
    """Bind the port for other nodes. Without `--relay` it is a unix socket beside that of the server.

    Raises `StoreMisconfigured` and `AddressTaken`.
    """
    listen, advertise = options.addresses()
    verify = _client_context(options.ca)
    if listen is None:
        try:
            unix = UnixListener(f"{own_socket}.relay")
        except (AddressTaken, UnsafeDirectory) as error:
            _log.warning("other servers cannot relay requests to this one: %s", error)
            return RelayListener(None, "", (), None, verify)
        stack.callback(unix.close)
        return RelayListener(unix.socket, f"unix://{unix.path}", ("localhost",), None, verify)
    tls = _server_context(options) if listen.is_secure else None
    bound = bind_tcp(listen.host, listen.port)
    stack.callback(bound.close)
    actual = listen._replace(port=bound.getsockname()[1])
    shown = advertise or actual
    if shown.is_exposed:
        _log.warning(
            "requests that other servers relay to %s are not encrypted: use --relay https://... with --relay-cert, "
            "or a network that only these servers can read",
            shown.url,
        )
    _log.info("other servers relay requests to %s", shown.url)
    return RelayListener(bound, shown.url, _hosts(shown, actual), tls, verify)


def _hosts(*addresses: RelayAddress) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in addresses for name in (item.netloc, f"{item.netloc}:{item.port}")))


def _server_context(options: RelayOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password an encrypted key would be asked for at the terminal.
        context.load_cert_chain(options.cert, options.key or None, password=b"")
    except (OSError, ValueError) as error:
        raise StoreMisconfigured(
            f"The certificate {options.cert} of --relay-cert cannot be used: {_reason(error)}. It needs PEM files of a "
            "certificate and its unencrypted key."
        ) from None
    return context


def _client_context(ca: str) -> ssl.SSLContext | None:
    """Return the TLS context that verifies certificates of other nodes; None for the authorities of the system."""
    if not ca:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise StoreMisconfigured(
            f"The file {ca} of --relay-ca cannot be used: {_reason(error)}. It needs certificates in PEM."
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate or key was found").replace("_", " ").lower()
    return (getattr(error, "strerror", None) or str(error)).lower()
