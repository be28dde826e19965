"""R11: memory of a real server that has become idle."""

import asyncio
import os
from pathlib import Path

from holdfast.client.client import Client
from server.helpers import (
    ServerDirectory,
    ServerProcess,
    collect_run_ends,
    exchange,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
    server_process,
)

MIB = 1024 * 1024
TIMEOUT = 60.0
HUGE = "x" * (31 * MIB)
MOST = 26 * MIB
"""Less than one huge prompt; more than a server loads for its first prompts plus the database caches."""


def resident(server: ServerProcess) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def wait_until_small(server: ServerProcess, directory: ServerDirectory, limit: int) -> None:
    """Wait until the resident size is below the limit: memory is released shortly after the end of a run."""
    async with asyncio.timeout(TIMEOUT):
        while resident(server) > limit:
            await exchange(directory.address, raw_request("/v1/version"))


async def wait_for_bytes(reader: asyncio.StreamReader, what: bytes) -> None:
    rest = b""
    async with asyncio.timeout(TIMEOUT):
        while what not in rest:
            rest = rest[-len(what) :] + await reader.read(MIB)


async def test_r11_memory_of_huge_prompts_is_released() -> None:
    async with (
        server_directory() as directory,
        server_process(directory) as server,
        Client(directory.address, seconds=60) as client,
    ):
        workspace = (await client.create_workspace(directory.project())).id
        first = (await client.create_session(workspace, "first")).id
        await send_prompt(client, workspace, first, "hello", "r")
        await collect_run_ends(client, workspace, ["r"])
        before = resident(server)
        # As bytes: decoding all of it as events would take longer than the work.
        reader, writer = await open_raw(directory.address)
        writer.write(raw_request(f"/v1/workspaces/{workspace}/events?since={1 << 52}&client_id={client.client_id}"))
        await asyncio.wait_for(reader.readuntil(b'"gap"'), TIMEOUT)
        for number in range(2):
            session = (await client.create_session(workspace, str(number))).id
            await send_prompt(client, workspace, session, HUGE, f"r{number}")
            await wait_for_bytes(reader, b'"run_complete"')
        writer.transport.abort()
        await wait_until_small(server, directory, before + MOST)
