"""`python -m bench.bare`: an asyncio server with no agent in it, the limit beside what `crowd.py` and `wire.py` show.

It speaks just enough of the wire for the same readers and prompts: nothing is stored, nothing is remembered, a token
is written to every reader as it is said.
"""

import asyncio
import re
import time
from pathlib import Path

import uvloop

from holdfast.client.server_launcher import locate
from holdfast.tasks import TaskOwner

__all__ = ["main"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
_END = b'data: {"type":"run_complete","payload":{}}\n\n'


class _Bare:
    def __init__(self) -> None:
        self._readers: set[asyncio.StreamWriter] = set()
        self._tasks = TaskOwner()
        self._made = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if b"/events" in head.split(b"\r\n", 1)[0]:
                    writer.write(_STREAM + b'data: {"type":"gap"}\n\n')
                    self._readers.add(writer)
                else:
                    self._made += 1
                    answer = b'{"id":"x%d","run_id":"","session_id":"","delivery":"queue","position":0}' % self._made
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
                    if b'"prompt"' in body:
                        self._tasks.start(self._answer(body.decode()), name="answer")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._readers.discard(writer)
            writer.close()

    async def _answer(self, body: str) -> None:
        """Tokens as `words=COUNT` or `COUNT PAUSE` asks for them."""
        asked = re.search(r'"prompt": *"(?:words=)?(\d+) ?([\d.]*)', body)
        assert asked is not None
        count, pause = int(asked[1]), float(asked[2] or 0)
        loop = asyncio.get_running_loop()
        due = loop.time()
        for offset in range(count):
            due += pause
            await asyncio.sleep(max(0.0, due - loop.time()))
            text = f"{time.monotonic():.6f} "
            said = f'{{"type":"message_delta","payload":{{"message_id":"m","offset":{offset},"text":"{text}"}}}}'
            self._tell(f"data: {said}\n\n".encode())
        self._tell(_END)

    def _tell(self, frame: bytes) -> None:
        for reader in self._readers:
            reader.write(frame)


async def _serve() -> None:
    path = Path(locate().address.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = await asyncio.start_unix_server(_Bare().serve, path)
    await server.serve_forever()


def main() -> None:
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
