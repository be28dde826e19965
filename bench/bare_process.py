"""`python -m bench.bare_process PORT`: imports asyncio, msgspec and apsw, answers one request over TCP, and exits.

The least that a Python server with a store needs to start.
"""

import asyncio
import sys

import apsw
import msgspec

__all__ = ["main"]


async def _answer_once(port: int) -> None:
    answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = msgspec.json.encode({"sqlite": apsw.sqlite_lib_version()})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()
        answered.set()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        await answered.wait()


def main() -> None:
    """Answer one request."""
    asyncio.run(_answer_once(int(sys.argv[1])))


if __name__ == "__main__":
    main()
