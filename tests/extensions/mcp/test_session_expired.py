"""A remote server that no longer knows the session, for example after a restart."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from extensions.mcp.in_memory_mcp import McpFixture, tool
from holdfast.extensions.mcp.mcp_types import CallFailed
from stream_servers import stream_server

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


class _Server:
    """Server that answers in JSON and keeps no stream open: only a call shows that the session expired."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.sessions: list[str] = []
        self.known: set[str] = set()
        self.calls: list[str] = []
        """The sessions of executed calls, and `refused` for the others."""
        self.keeps_forgetting = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status, session, answer = self._answer(
                head.split(" ")[0], headers.get("mcp-session-id", ""), json.loads(body or b"{}")
            )
            data = json.dumps(answer).encode() if answer else b""
            mark = f"mcp-session-id: {session}\r\n" if session else ""
            writer.write(
                f"HTTP/1.1 {status} X\r\n{mark}content-type: application/json\r\ncontent-length: {len(data)}\r\n"
                "connection: close\r\n\r\n".encode()
                + data
            )
            await writer.drain()
        writer.close()

    def _answer(self, verb: str, session: str, message: Json) -> tuple[int, str, Json]:
        method = message.get("method", "")
        if verb != "post":
            return 405, "", {}
        if method == "initialize":
            session = f"session-{len(self.sessions)}"
            self.sessions.append(session)
            self.known = {session}
            about = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            return 200, session, self._result(message, about | {"serverInfo": {"name": "m", "version": "1"}})
        if method == "tools/call" and self.keeps_forgetting:
            self.known.clear()
        if session not in self.known:
            if method == "tools/call":
                self.calls.append("refused")
            return self.status, "", {}
        if "id" not in message:
            return 202, "", {}
        if method == "tools/call":
            self.calls.append(session)
            return 200, "", self._result(message, {"content": [{"type": "text", "text": "done"}]})
        return 200, "", self._result(message, {"tools": [tool("go")]} if method == "tools/list" else {})

    @staticmethod
    def _result(message: Json, result: Json) -> Json:
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}


@asynccontextmanager
async def _connected(top: Path, status: int) -> AsyncIterator[tuple[_Server, McpFixture]]:
    server = _Server(status)
    async with stream_server(server.serve) as port:
        fixture = McpFixture(top, s={"type": "http", "url": f"http://127.0.0.1:{port}/mcp"})
        try:
            fixture.mcp.start()
            await fixture.wait_for_state("connected")
            yield server, fixture
        finally:
            await fixture.mcp.close()


@pytest.mark.parametrize("status", [400, 404])
async def test_refused_call_is_repeated_in_new_session(tmp_path: Path, status: int) -> None:
    async with _connected(tmp_path, status) as (server, fixture):
        assert (await fixture.call()).content == "done"
        for _ in range(2):
            server.known.clear()
            server.calls.clear()
            old = server.sessions[-1]
            assert (await fixture.call()).content == "done"
            assert server.sessions[-1] != old
            assert server.calls == ["refused", server.sessions[-1]], "what was refused is asked once more"
            await fixture.wait_for_state("connected")
        count = len(server.sessions)
        assert (await fixture.call()).content == "done"
        assert len(server.sessions) == count, "the new session is kept"


async def test_repeated_session_loss_is_not_retried_forever(tmp_path: Path) -> None:
    async with _connected(tmp_path, 404) as (server, fixture):
        server.keeps_forgetting = True
        count = len(server.sessions)
        with pytest.raises(CallFailed, match="The MCP server s refused go twice"):
            await fixture.call()
        assert server.calls == ["refused", "refused"]
        assert len(server.sessions) == count + 1, "the second time was in a session of its own"
        server.keeps_forgetting = False
        assert (await fixture.call()).content == "done"
