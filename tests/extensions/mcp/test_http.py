"""Servers behind an address, over both transports; gone and back again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from e2e.tool_client import tool_client
from extensions.mcp.authorization_server import office
from extensions.mcp.servers import add, answered, everything, needs_node, results, stands

pytestmark = needs_node

PATHS = {"http": ("streamableHttp", "/mcp"), "sse": ("sse", "/sse")}
ECHO = ("mcp_all_echo", {"message": "hi"})


@asynccontextmanager
async def listening(kind: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The server that has everything, at a port."""
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
async def test_the_same_over_another_transport(kind: str, reserved_port: int) -> None:
    settings = {"type": kind, "url": f"http://127.0.0.1:{reserved_port}{PATHS[kind][1]}", "timeout": 30}
    async with tool_client() as one:
        async with listening(kind, reserved_port):
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
        (gone,) = await one.call_tools_and_wait(ECHO)
        assert gone.is_error
        assert "all" in gone.content
        async with listening(kind, reserved_port):
            (back,) = await one.call_tools_and_wait(ECHO)
            assert back.content == "Echo: hi"


async def test_a_server_that_has_forgotten_us_is_greeted_again(reserved_port: int) -> None:
    """Restarted, it knows no session of ours. What it refused was not done: it is asked again."""
    async with tool_client() as one:
        async with listening("http", reserved_port):
            await add(one, all={"url": f"http://127.0.0.1:{reserved_port}/mcp"})
            await one.call_tools_and_wait(ECHO)
        async with listening("http", reserved_port):
            (echoed,) = await one.call_tools_and_wait(ECHO)
            assert echoed.content == "Echo: hi"
            await stands(one, "all", "connected")


async def test_a_stalled_server_behind_an_address_is_an_error(
    reserved_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_TIMEOUT", 0.5)
    async with tool_client() as one, listening("http", reserved_port) as process:
        await add(one, all={"url": f"http://127.0.0.1:{reserved_port}/mcp", "timeout": 30, "call_timeout": 2})
        process.send_signal(signal.SIGSTOP)
        (stalled,) = await one.call_tools_and_wait(ECHO)
        assert stalled.is_error
        assert "said nothing for 2 s" in stalled.content
        await stands(one, "all", "error", "starting")
        process.send_signal(signal.SIGCONT)
        assert (await answered(one, ECHO)).content == "Echo: hi"


async def test_a_server_that_dies_behind_an_address_is_missed_at_once(reserved_port: int) -> None:
    """Nobody has to call one of its tools to find out: the stream on which it speaks has ended."""
    async with tool_client() as one:
        async with listening("http", reserved_port):
            await add(one, all={"url": f"http://127.0.0.1:{reserved_port}/mcp", "timeout": 30})
        gone = await stands(one, "all", "error")
        assert gone.error
        async with listening("http", reserved_port):
            await stands(one, "all", "connected")


@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_that_is_too_large_is_an_error_and_the_next_is_none(streams: bool) -> None:
    async with office(streams=streams) as there, tool_client() as one:
        there.access.add("k")
        await add(one, office={"url": there.url, "headers": {"Authorization": "Bearer k"}})
        (large,) = await one.call_tools_and_wait(("mcp_office_recite", {}))
        assert large.is_error
        assert "16777216" in large.content or "more than 16 MiB" in large.content
        assert (await answered(one, ("mcp_office_greet", {"name": "Ada"}))).content == "Hello, Ada."
