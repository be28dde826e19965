"""Answers while the server is being loaded.

Loading the engine, the store and the HTTP server takes most of a start. The socket is there before, and whoever asks
whether there is a server is told so at once. Everything else waits, unread, until the server takes over.
"""

import os
import select
import socket
import threading

from holdfast.server.listen import is_our_own

__all__ = ["HEALTHY", "Porch"]

HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncache-control: no-store\r\n\r\n"
"""Exactly what the server itself would say."""

_ASKED = b"GET /v1/health HTTP/1.1\r\n"
_LOOK = 16 * 1024
_MOMENT = 0.02
_NOT_OURS = (b"\nconnection:", b"\ncontent-length:", b"\ntransfer-encoding:", b"\nexpect:", b"\nupgrade:")


class Porch:
    """A thread that accepts connections and knows one answer."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._guests: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._wake, self._bell = os.pipe()
        self._thread = threading.Thread(target=self._receive, name="porch", daemon=True)

    def open(self) -> None:
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._thread.start()

    def close(self) -> list[socket.socket]:
        """The connections that came meanwhile, with everything in them that was not answered here."""
        os.write(self._bell, b"x")
        self._thread.join()
        os.close(self._bell)
        os.close(self._wake)
        guests, self._guests = list(self._guests.values()), {}
        return guests

    def _receive(self) -> None:
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if self._wake in ready:
                return
            for descriptor in ready:
                if descriptor == self._listener.fileno():
                    self._admit()
                else:
                    self._hear(self._guests[descriptor])

    def _admit(self) -> None:
        try:
            guest, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # No descriptor is free. Whoever waits at the door will be there in a moment, too.
            select.select([self._wake], [], [], _MOMENT)
            return
        if not is_our_own(guest):
            guest.close()
            return
        guest.setblocking(False)
        self._guests[guest.fileno()] = guest
        self._poll.register(guest, select.POLLIN)

    def _hear(self, guest: socket.socket) -> None:
        """Answer, and listen on, if health is all that is asked; otherwise leave it as it is."""
        try:
            seen = guest.recv(_LOOK, socket.MSG_PEEK)
            end = seen.find(b"\r\n\r\n") + 4
            if seen.startswith(_ASKED) and end > 4 and not any(name in seen[:end].lower() for name in _NOT_OURS):
                guest.recv(end)
                guest.send(HEALTHY)
                return
        except BlockingIOError:
            return
        except OSError:
            seen = b""
        self._poll.unregister(guest)
        if not seen:
            del self._guests[guest.fileno()]
            guest.close()
