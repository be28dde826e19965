"""`holdfast serve` as a process: signals, kills, and recovery at the next start."""

import asyncio
import signal
import stat
import sys

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.client.server_address import ServerAddress
from holdfast.domain.events import MessageDeltaEvent, MessageEvent, MessagePartEvent
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.testing.gates import until
from server.helpers import (
    SERVE,
    RawStream,
    ServerDirectory,
    collect_run_ends,
    in_process_server,
    open_raw,
    raw_request,
    read_until,
    run_ended,
    send_prompt,
    server_directory,
    server_process,
)


def is_growth(item: StreamEvent) -> bool:
    return isinstance(item.event, MessageDeltaEvent | MessagePartEvent)


async def test_c55_sigterm_ends_runs_and_streams_properly() -> None:
    """C-55: exit 0 within 5 s, the run `interrupted`, both forms of the stream ended properly."""
    async with server_directory() as directory:
        async with server_process(directory) as server, Client(directory.address) as client:
            workspace = (await client.create_workspace(directory.project())).id
            session = (await client.create_session(workspace, "s")).id
            path = f"/v1/workspaces/{workspace}/events"
            numbered = await RawStream.open(directory.address, path + "?since=0")
            whole = await RawStream.open(directory.address, path)
            async with client.events(workspace, since=0) as events:
                await send_prompt(client, workspace, session, "words=5000 pause=20", "r1")
                await send_prompt(client, workspace, session, "words=3", "r2")
                await read_until(events, is_growth)
            began = asyncio.get_running_loop().time()
            server.process.send_signal(signal.SIGTERM)
            assert b'"outcome":"interrupted"' in await numbered.rest()
            assert b'"outcome":"interrupted"' in await whole.rest()
            assert numbered.wire.endswith(b"0\r\n\r\n")
            assert await server.wait() == 0
            assert asyncio.get_running_loop().time() - began < 5
            assert not directory.socket.exists()
            numbered.close()
            whole.close()
        async with server_process(directory), Client(directory.address) as client:
            assert (await client.create_workspace(directory.project())).id == workspace
            ends = {end.run_id: end.outcome for end in await collect_run_ends(client, workspace, ["r1", "r2"])}
            assert ends == {"r1": "interrupted", "r2": "completed"}


async def killed_in_a_stream(directory: ServerDirectory) -> tuple[WorkspaceId, str]:
    """Kill the server during a response. Returns the workspace and the text that a reader had received."""
    async with server_process(directory) as server, Client(directory.address) as client:
        workspace = (await client.create_workspace(directory.project())).id
        session = (await client.create_session(workspace, "s")).id
        seen: list[str] = []

        def enough(item: StreamEvent) -> bool:
            if isinstance(item.event, MessageDeltaEvent):
                seen.append(item.event.payload.text)
            return len(seen) >= 60

        async with client.events(workspace, since=0) as events:
            await send_prompt(client, workspace, session, "words=5000 pause=10", "r1")
            await send_prompt(client, workspace, session, "words=3", "r2")
            await read_until(events, enough)
            server.process.kill()
            assert await server.wait() == -signal.SIGKILL
        return workspace, "".join(seen)


async def test_c55_sigkill_during_stream() -> None:
    """C-55: the next start ends the run as `interrupted`, keeps its flushed text, and continues the waiting run."""
    async with server_directory() as directory:
        workspace, _ = await killed_in_a_stream(directory)
        async with server_process(directory), Client(directory.address) as client:
            assert (await client.create_workspace(directory.project())).id == workspace
            async with client.events(workspace, since=0) as events:
                items = await read_until(events, run_ended("r2"))
            ends = {end.run_id: end for end in await collect_run_ends(client, workspace, ["r1", "r2"])}
            assert (ends[RunId("r1")].outcome, ends[RunId("r2")].outcome) == ("interrupted", "completed")
            numbers = [item.number for item in items if item.number is not None]
            assert numbers == sorted(set(numbers))
            run = await client.get_run(workspace, RunId("r1"))
            messages = await client.list_messages(workspace, run.session_id)
            kept = text_of(next(item for item in messages if item.role == "assistant" and item.run_id == "r1"))
            assert kept.startswith("word1 word2 word3")
            assert len(kept.split()) >= 20
            reported = [
                text_of(item.event.change.object)
                for item in items
                if isinstance(item.event, MessageEvent) and item.event.change.object.run_id == "r1"
            ]
            assert reported[-1] == kept


async def test_c55_waiting_run_continues_without_clients() -> None:
    """C-55, R1: no client needs to return for it."""
    async with server_directory() as directory:
        workspace, _ = await killed_in_a_stream(directory)
        async with in_process_server(directory) as server:
            await until(lambda: server.manager.ready.is_set() and not server.manager.handles)
            client, _ = await server.open_workspace()
            run = await client.get_run(workspace, RunId("r2"))
            assert (run.outcome, run.prompt) == ("completed", "words=3")


async def test_r8_second_server_is_refused() -> None:
    """R8: by its socket, and by its data directory."""
    async with server_directory() as directory, server_process(directory), Client(directory.address) as client:
        for options in ([], ["--host", f"unix://{directory.root}/run/other"]):
            command = ["--data-dir", str(directory.data), *(options or ["--host", f"unix://{directory.socket}"])]
            second = await asyncio.create_subprocess_exec(
                *SERVE, *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
            )
            _, output = await asyncio.wait_for(second.communicate(), 20)
            assert second.returncode == 1
            assert b"Traceback" not in output
            assert b"Holdfast server" in output
        await client.health()


async def test_r12_tcp_start_prints_token_path_not_token(reserved_port: int) -> None:
    """R12."""
    async with server_directory() as directory:
        port = reserved_port
        async with server_process(directory, "--host", f"tcp://127.0.0.1:{port}") as server:
            token = (directory.data / "token").read_text().strip()
            assert stat.S_IMODE((directory.data / "token").stat().st_mode) == 0o600
            with pytest.raises(ServerProblem) as caught:
                await Client(ServerAddress(host="127.0.0.1", port=port, token="x" * 43)).version()
            assert caught.value.status == 401
            async with Client(ServerAddress(host="127.0.0.1", port=port, token=token)) as client:
                assert (await client.version()).pid == server.process.pid
            log = server.log.read_text()
            assert str(directory.data / "token") in log
            assert token not in log


SLOW_SHUTDOWN = """
import holdfast.server.serve as serve
from holdfast.cli.main import main
serve.RESPONSE_GRACE = 3600.0
main()
"""


async def test_a_second_signal_ends_the_server_at_once() -> None:
    """While the first one still waits for a reader that does not read."""
    async with server_directory() as directory:
        command = [sys.executable, "-c", SLOW_SHUTDOWN, "serve", "--data-dir", str(directory.data)]
        server = await asyncio.create_subprocess_exec(
            *command, "--host", f"unix://{directory.socket}", stderr=asyncio.subprocess.PIPE
        )
        assert server.stderr is not None
        while b"listening" not in await server.stderr.readline():
            pass
        async with Client(directory.address) as client:
            workspace = (await client.create_workspace(directory.project())).id
            session = (await client.create_session(workspace, "s")).id
            path = f"/v1/workspaces/{workspace}/events?since=0"
            reading = await RawStream.open(directory.address, path)
            _, stalled = await open_raw(directory.address)
            stalled.transport.pause_reading()  # type: ignore[attr-defined]
            stalled.write(raw_request(path))
            await send_prompt(client, workspace, session, f"words=200000 {'x' * 2_000_000}", "r1")
            await reading.until(lambda item: b'"message_delta"' in item.data)
            server.send_signal(signal.SIGTERM)
            await reading.rest()
            server.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(server.wait(), 20) == 1
        assert b"at once" in await server.stderr.read()
        reading.close()
        stalled.transport.abort()
        async with server_process(directory), Client(directory.address) as client:
            assert (await client.create_workspace(directory.project())).id == workspace
