"""Remote MCP servers over both transports, with restarts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from e2e.tool_client import tool_client
from extensions.mcp.authorization_server import authorization_server
from extensions.mcp.servers import add, everything, needs_node, results, wait_for_state, wait_for_success

pytestmark = needs_node

PATHS = {"http": ("streamableHttp", "/mcp"), "sse": ("sse", "/sse")}
ECHO = ("mcp_all_echo", {"message": "hi"})


@asynccontextmanager
async def listening(kind: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the `everything` server at a port."""
    process = await asyncio.create_subprocess_exec(
        *everything(PATHS[kind][0]), stderr=asyncio.subprocess.PIPE, env={**os.environ, "PORT": str(port)}
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(100):
            while b"port" not in await process.stderr.readline():
                pass
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("kind", PATHS)
async def test_tools_over_each_transport(kind: str, reserved_port: int) -> None:
    port = reserved_port
    settings = {"type": kind, "url": f"http://127.0.0.1:{port}{PATHS[kind][1]}", "timeout": 30}
    async with tool_client() as one:
        async with listening(kind, port):
            info = (await add(one, all=settings))["all"]
            assert (info.state, info.prompt_count, info.type) == ("connected", 4, kind)
            echoed, total = await results(one, ECHO, ("mcp_all_get-sum", {"a": 2, "b": 3}))
            assert (echoed.content, total.content) == ("Echo: hi", "The sum of 2 and 3 is 5.")
            session = await one.session()
            long = ("mcp_all_trigger-long-running-operation", {"duration": 60, "steps": 60})
            run = await one.call_tools(session, long)
            await one.wait_for_output(session, "1/60\n")
            await one.client.cancel_run(one.workspace, run.run_id)
            assert (await one.run_end(run)).cancelled
            assert (await one.call_tools_and_wait(ECHO))[0].content == "Echo: hi"
        (wait_until_gone,) = await one.call_tools_and_wait(ECHO)
        assert wait_until_gone.is_error
        assert "all" in wait_until_gone.content
        async with listening(kind, port):
            (back,) = await one.call_tools_and_wait(ECHO)
            assert back.content == "Echo: hi"


async def test_expired_session_is_initialized_again(reserved_port: int) -> None:
    """After a restart it knows no session of ours. A refused call had no effect, so it is repeated."""
    port = reserved_port
    async with tool_client() as one:
        async with listening("http", port):
            await add(one, all={"url": f"http://127.0.0.1:{port}/mcp"})
            await one.call_tools_and_wait(ECHO)
        async with listening("http", port):
            (echoed,) = await one.call_tools_and_wait(ECHO)
            assert echoed.content == "Echo: hi"
            await wait_for_state(one, "all", "connected")


async def test_stalled_remote_server_is_error(monkeypatch: pytest.MonkeyPatch, reserved_port: int) -> None:
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_TIMEOUT", 0.5)
    port = reserved_port
    async with tool_client() as one, listening("http", port) as process:
        await add(one, all={"url": f"http://127.0.0.1:{port}/mcp", "timeout": 30, "call_timeout": 2})
        process.send_signal(signal.SIGSTOP)
        (stalled,) = await one.call_tools_and_wait(ECHO)
        assert stalled.is_error
        assert "sent nothing for 2 s" in stalled.content
        await wait_for_state(one, "all", "error", "starting")
        process.send_signal(signal.SIGCONT)
        assert (await wait_for_success(one, ECHO)).content == "Echo: hi"


async def test_end_of_remote_server_is_detected_at_once(reserved_port: int) -> None:
    """Without a call of its tools: its event stream has ended."""
    port = reserved_port
    async with tool_client() as one:
        async with listening("http", port):
            await add(one, all={"url": f"http://127.0.0.1:{port}/mcp", "timeout": 30})
        wait_until_gone = await wait_for_state(one, "all", "error")
        assert wait_until_gone.error
        async with listening("http", port):
            await wait_for_state(one, "all", "connected")


@pytest.mark.parametrize("streams", [True, False])
async def test_response_above_limit_is_error_and_next_succeeds(streams: bool) -> None:
    async with authorization_server(streams=streams) as there, tool_client() as one:
        there.access.add("k")
        await add(one, office={"url": there.url, "headers": {"Authorization": "Bearer k"}})
        (large,) = await one.call_tools_and_wait(("mcp_office_recite", {}))
        assert large.is_error
        assert "16777216" in large.content or "more than 16 MiB" in large.content
        assert (await wait_for_success(one, ("mcp_office_greet", {"name": "Ada"}))).content == "Hello, Ada."
