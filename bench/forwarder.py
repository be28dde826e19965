"""A TCP forwarder in front of a Unix socket that can be cut: then it forwards nothing and closes nothing, as a network
that loses all packets.
"""

import selectors
import socket
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["Forwarder"]


class Forwarder:
    """Forwards the connections to a loopback port, in a thread, while the context is open."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._others: dict[socket.socket, socket.socket] = {}
        self._is_closed = threading.Event()
        self._healed = threading.Event()
        self._healed.set()
        self._wake, self._wakened = socket.socketpair()
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def __enter__(self) -> "Forwarder":
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._is_closed.set()
        self._healed.set()
        self._wake.send(b"x")
        self._thread.join()
        for connection in (self._listener, self._wake, self._wakened, *self._others):
            connection.close()
        self._selector.close()

    def cut(self) -> None:
        """Forward nothing from now on."""
        self._healed.clear()
        self._wake.send(b"x")

    def heal(self) -> None:
        """Forward again, beginning with the bytes that were sent meanwhile."""
        self._healed.set()

    def _forward(self) -> None:
        while not self._is_closed.is_set():
            for key, _ in self._selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                self._healed.wait()
                if source is self._listener:
                    self._connect(source.accept()[0])
                elif source is self._wakened:
                    source.recv(100)
                    self._healed.wait()
                else:
                    self._copy(source)

    def _connect(self, client: socket.socket) -> None:
        target = socket.socket(socket.AF_UNIX)
        try:
            target.connect(self._target)
        except OSError:
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one, other in ((client, target), (target, client)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _copy(self, source: socket.socket) -> None:
        target = self._others.get(source)
        if target is None:
            return
        try:
            if data := source.recv(262_144):
                target.sendall(data)
                return
        except OSError:
            pass
        for connection in (source, target):
            self._selector.unregister(connection)
            del self._others[connection]
            connection.close()
