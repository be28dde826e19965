"""Lifetimes in a server: stalled readers, unattended jobs, deleted data."""

import asyncio
import gc
import types
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest

from holdfast.bus.bus import Subscription
from holdfast.bus.shared_backlog import Backlog, ReaderCut, SlowReaderPolicy
from holdfast.domain.events import MessageDelta, MessageDeltaEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.processes import JobInfo
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.server_services import ServiceOverrides
from holdfast.server import workspace_manager
from holdfast.server.http.application import Application
from holdfast.server.http.connection import HttpServer, Message, Receive, Scope, Send
from holdfast.server.http.listen import UnixListener
from holdfast.server.http.request import Request
from holdfast.server.routes.handlers import HANDLERS
from holdfast.server.streams.event_stream import stream
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import GatedModel, settle_down, start, until
from holdfast.workspace.process.command_process import RunningCommand
from server.approval_client import approval_client
from server.clock import Clock
from server.helpers import (
    FeedModel,
    RawStream,
    ServerDirectory,
    collect_run_ends,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
)

TIMEOUT = 20.0


# Streams


async def test_stalled_reader_causes_no_repeated_wakeups() -> None:
    """A heartbeat that cannot be written is retried with the next one, not at once."""
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(create=1e9, check_interval=1e9)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        _, stalled = await open_raw(server.address)
        stalled.transport.pause_reading()  # type: ignore[attr-defined]
        stalled.write(raw_request(f"/v1/workspaces/{workspace}/events?since=0"))
        bus = server.manager.handle(workspace).workspace.bus
        await until(lambda: bus.waiting == 1)
        for _ in range(3):
            await client.create_session(workspace, "x" * 500_000)
        other = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?since=2")
        await other.until(lambda item: item.number == 3)
        other.close()
        await client.health()
        armed = 0
        loop = asyncio.get_running_loop()
        real = loop.call_at

        def call_at(when: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:  # noqa: ANN401
            nonlocal armed
            armed += getattr(callback, "__module__", "").startswith("holdfast.")
            return real(when, callback, *args, **more)

        loop.call_at = call_at  # type: ignore[method-assign, assignment]
        await clock.forward(16)
        for _ in range(20):
            await clock.forward(0.01)
        loop.call_at = real  # type: ignore[method-assign]
        assert bus._readers == 1
        assert armed <= 2
        stalled.transport.abort()


@pytest.mark.parametrize("form", ["?since=0", ""], ids=["resumable", "whole"])
async def test_reader_too_far_behind_gets_end_of_stream(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proper end, after which the client reconnects by itself."""

    async def cut(_: Subscription) -> list[object]:
        raise ReaderCut(0)

    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        monkeypatch.setattr(Subscription, "take", cut)
        opened = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events{form}")
        await opened.rest()
        if form:
            opened.writer.write(raw_request("/v1/health"))
            assert (await opened.reader.readline()).startswith(b"HTTP/1.1 200"), "the connection is kept"
        opened.close()


async def test_settings_are_polled_for_attached_clients_only() -> None:
    """Unattended runs read the settings when they begin; a connecting client receives the changes made in the
    meantime.
    """
    model = FeedModel()
    async with (
        server_directory() as directory,
        in_process_server(directory, model, graces=GracePeriods(create=1e9)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        await send_prompt(client, workspace, session, "go", "r1")
        await model.asked.wait()
        onlooker = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?since=0")
        await client.leave_workspace(workspace)
        (directory.root / "project" / "holdfast.toml").write_text("[options]\nmax_steps = 7\n")
        for _ in range(3):
            await clock.forward(3, server.address)
        await client.create_session(workspace, "barrier")
        await onlooker.until(lambda item: b"barrier" in item.data)
        assert b"config_changed" not in onlooker.raw
        await (await server.client()).create_workspace(directory.project())
        await clock.forward(3, server.address)
        await onlooker.until(lambda item: b"config_changed" in item.data)
        onlooker.close()
        model.words.put_nowait(None)
        await collect_run_ends(client, workspace, ["r1"])


# Requests


class Http:
    """HTTP server of one application on its own socket."""

    def __init__(self, directory: ServerDirectory, application: Any) -> None:  # noqa: ANN401
        self._listener = UnixListener(directory.socket)
        self._server = HttpServer()
        self._application = application

    async def __aenter__(self) -> None:
        await self._server.listen(self._listener.socket, self._application)

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0.0)
        self._listener.close()


@pytest.mark.parametrize("comes", ["head", "whole"])
@pytest.mark.parametrize("begins", ["asks first", "answers first"])
async def test_100_continue_precedes_response_or_is_omitted(comes: str, begins: str) -> None:
    """Neither does a client that has already sent everything. A 100 Continue within a response would corrupt it."""
    got: list[Message] = []

    async def application(_: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"4")]
        if begins == "answers first":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"be", "more_body": True})
            got.append(await receive())
        else:
            got.append(await receive())
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"be", "more_body": True})
        await send({"type": "http.response.body", "body": b"en"})

    async with server_directory() as directory, Http(directory, application):
        reader, writer = await open_raw(directory.address)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        writer.write(head + (b"body" if comes == "whole" else b""))
        printed = b""
        if comes == "head":
            printed = await asyncio.wait_for(
                reader.readuntil(b"be" if begins == "answers first" else b"\r\n\r\n"), TIMEOUT
            )
            await settle_down()
            writer.write(b"body")
        while not printed.endswith(b"been"):
            printed += await asyncio.wait_for(reader.read(100), TIMEOUT)
        assert printed.startswith(b"HTTP/1.1 100") is (comes == "head" and begins == "asks first")
        assert printed.count(b"HTTP/1.1 100") <= 1
        assert [message["body"] for message in got] == [b"body"]
        writer.transport.abort()


async def test_response_begins_after_previous_one_was_read() -> None:
    size = 2_000_000
    asked: list[str] = []

    async def application(scope: Scope, _: Receive, send: Send) -> None:
        asked.append(scope["path"])
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})

    async with server_directory() as directory, Http(directory, application):
        reader, writer = await open_raw(directory.address)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(raw_request("/1") + raw_request("/2"))
        await until(lambda: asked)
        for _ in range(5):
            await settle_down()
        assert asked == ["/1"]
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)
            await asyncio.wait_for(reader.readexactly(size), TIMEOUT)
        assert asked == ["/1", "/2"]
        writer.transport.abort()


@pytest.mark.parametrize("ends", ["the caller leaves", "the request is cancelled"])
async def test_work_for_request_ends_with_request(ends: str) -> None:
    """No work continues unnoticed while the server stops."""
    done: list[str] = []
    begun = asyncio.Event()

    async def slow(_call: Request) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            done.append("work")

    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        application = Application(
            server.manager, server.observers, server.application.server, {**HANDLERS, "run_shell": slow}, stream
        )
        path = f"/v1/workspaces/{workspace}/agent/sessions/{session}/shell"
        leaves = asyncio.Event()
        body = [b'{"command":"x"}']

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            done.append("answer")

        scope: Scope = {"method": "POST", "path": path, "query_string": b"", "headers": [], "client": None}
        request = start(application(scope, receive, send))
        await asyncio.wait_for(begun.wait(), TIMEOUT)
        if ends == "the caller leaves":
            leaves.set()
            await asyncio.wait_for(request, TIMEOUT)
        else:
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        assert done == ["work"]


async def test_process_guard_starts_before_first_command() -> None:
    """Unless that is disabled: then the first command starts it."""
    assert ServiceOverrides().warms_guard
    for warms in (True, False):
        async with server_directory() as directory, in_process_server(directory, warms_guard=warms) as server:
            client, workspace = await server.open_workspace()
            guard = server.manager.handle(workspace).services.processes.guard
            assert bool(guard.process_id) is warms
            if not warms:
                session = (await client.create_session(workspace)).id
                assert (await client.run_shell(workspace, session, "echo here")).output.strip() == "here"
                assert guard.process_id


# Jobs


class Endless:
    """A background command that ends on request."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.remark, self.is_lost = "", False
        self.stdout, self.stderr = (types.SimpleNamespace(excerpt=lambda text=text: text) for text in ("out", "err"))

    def set_linger(self, _: object) -> None:
        return

    def stop(self, _: float) -> None:
        if not self.ended.done():
            self.exited.set_result(9)
            self.ended.set_result(None)

    async def wait(self) -> None:
        await self.ended


def job(session: str = "s") -> JobInfo:
    return JobInfo("", SessionId(session), RunId("r"), "sleep 1", "", "/", 0)


async def test_jobs_keep_workspace_open_for_limited_time() -> None:
    """The period runs only while no client is attached and nothing else is active, and starts anew each time; then
    the workspace is closed.
    """
    linger = 100
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(create=1e9, check_interval=1e9)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "options.job_linger", linger, scope=1)
        handle = server.manager.handle(workspace)
        first = Endless()
        handle.services.jobs.add(job(), cast(RunningCommand, first))
        await clock.forward(10 * linger, server.address)
        assert server.manager.handles == [handle], "somebody is there"
        await client.leave_workspace(workspace)
        await clock.forward(linger - 1, server.address)
        other, _ = await server.open_workspace()
        await clock.forward(linger, server.address)
        await other.leave_workspace(workspace)
        await clock.forward(linger - 1, server.address)
        assert server.manager.handles == [handle], "the time begins anew"
        handle.services.jobs.add(job(), cast(RunningCommand, Endless()))
        first.stop(0)
        await clock.forward(2, server.address)
        await until(lambda: not server.manager.handles)


async def test_job_period_begins_at_end_of_last_run() -> None:
    """No client is attached and the workspace stays busy, so only the end of the run starts the timer."""
    linger = 100
    model = GatedModel(ScriptedModel(lambda _: Step((Say("done"),))))
    model.before.shut()
    async with (
        server_directory() as directory,
        in_process_server(directory, model, graces=GracePeriods(create=1e9, check_interval=1e9)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "options.job_linger", linger, scope=1)
        session = (await client.create_session(workspace, "s")).id
        await client.send_prompt(workspace, AgentMessage(session, "go", run_id=RunId("r")))
        await model.before.reached.wait()
        handle = server.manager.handle(workspace)
        handle.services.jobs.add(job(), cast(RunningCommand, Endless()))
        await client.leave_workspace(workspace)
        await clock.forward(10 * linger, server.address)
        assert server.manager.handles == [handle], "the run keeps it open"
        model.before.open()
        await until(lambda: not handle.workspace.is_busy())
        await clock.forward(linger - 1, server.address)
        assert server.manager.handles == [handle], "the job keeps it open"
        await clock.forward(2, server.address)
        await until(lambda: not server.manager.handles)


async def test_workspace_closes_when_job_ends_in_time() -> None:
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(create=1e9, check_interval=1e9)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        running = Endless()
        server.manager.handle(workspace).services.jobs.add(job(), cast(RunningCommand, running))
        await client.leave_workspace(workspace)
        await clock.forward(60, server.address)
        assert len(server.manager.handles) == 1
        running.stop(0)
        await until(lambda: not server.manager.handles)


async def test_job_output_is_read_and_job_is_stopped() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        jobs = server.manager.handle(workspace).services.jobs
        for session in ("s", "t"):
            jobs.add(job(session), cast(RunningCommand, Endless()))
        first, second = await client.list_jobs(workspace)
        assert [item.id for item in await client.list_jobs(workspace, SessionId("t"))] == [second.id]
        path = f"/v1/workspaces/{workspace}/jobs/{first.id}"
        read = (await exchange(server.address, raw_request(path))).json
        assert (read["stdout"], read["stderr"], read["job"]["command"]) == ("out", "err", "sleep 1")
        killed = (await exchange(server.address, raw_request(f"{path}/kill", "POST"))).json
        assert (killed["stdout"], killed["job"]["state"], killed["job"]["exit_code"]) == ("out", "killed", 9)
        assert [item.id for item in await client.list_jobs(workspace)] == [second.id]
        assert (await exchange(server.address, raw_request(path))).status == 404


# Memory


_ELSEWHERE = (type, types.ModuleType, types.FrameType, asyncio.AbstractEventLoop)


def reachable(root: object) -> Iterator[object]:
    """Return all objects reachable from an object, except through modules, classes, the loop and function globals."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(
            thing, type | types.ModuleType | asyncio.AbstractEventLoop | types.FrameType
        ):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, types.FunctionType):
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        else:
            waiting += gc.get_referents(thing)


def holds(root: object, word: str) -> list[object]:
    raw = word.encode()
    return [
        thing
        for thing in reachable(root)
        if (isinstance(thing, str) and word in thing) or (isinstance(thing, bytes | bytearray) and raw in thing)
    ]


def granted(handle: WorkspaceHandle, session: str) -> list[object]:
    """Return the grants of a session: pairs that begin with it."""
    pairs = (thing for thing in reachable(handle.workspace.approvals) if isinstance(thing, tuple) and len(thing) == 2)
    return [pair for pair in pairs if pair[0] == session]


async def test_deleted_session_leaves_nothing_in_memory() -> None:
    """Neither messages, nor grants, nor bytes shared by several readers."""
    async with approval_client() as here:
        session, other = await here.session(), await here.session()
        path = f"/v1/workspaces/{here.workspace}/events?since=0"
        readers = [await RawStream.open(here.server.address, path) for _ in range(2)]
        for owner, word in ((session, "deletedword"), (other, "keptword")):
            run = await here.bash(owner, f"make {word}")
            await here.grant((await here.pending_permissions())[0], "allow_session")
            await here.events_until_end(run)
        handle = here.server.manager.handle(here.workspace)
        backlog = Backlog(SlowReaderPolicy())
        reader = backlog.reader(0)
        for number in range(10):
            delta = MessageDelta(session, MessageId("m"), 0, 11 * number, "deletedword")
            backlog.append_live(MessageDeltaEvent(delta))
        joined = handle.frame_cache.join(reader.take(100, tuple, merge=False))
        assert len({id(item) for item in (*holds(handle, "deletedword"), joined)} & {id(joined)}) == 1
        assert granted(handle, session)
        await here.client.delete_session(here.workspace, session)
        here.ran.clear()
        cast(Any, await handle.owned.engine.run_context.models.large()).requests.clear()
        for opened in readers:
            opened.close()
        await here.client.health()
        assert not holds(handle, "deletedword")
        assert not granted(handle, session)
        assert granted(handle, other)


@pytest.mark.parametrize("is_libc_able", [True, False])
async def test_memory_is_trimmed_once_after_workspaces_close(
    is_libc_able: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reference cycles are freed; a system that cannot trim is not an error."""

    class Libc:
        trimmed = 0

        def __init__(self) -> None:
            if is_libc_able:
                self.malloc_trim = self._trim

        def _trim(self, pad: int) -> None:
            assert pad == 0
            Libc.trimmed += 1

    class Loop:
        def __init__(self) -> None:
            self.itself = self

    monkeypatch.setattr(workspace_manager, "_libc", Libc())
    async with server_directory() as directory, in_process_server(directory) as server:
        clock = Clock()
        opened = [await server.open_workspace(name) for name in ("a", "b")]
        for client, workspace in opened:
            await client.leave_workspace(workspace)
        await until(lambda: not server.manager.handles)
        gc.disable()
        try:
            left = weakref.ref(Loop())
            assert left() is not None
            assert Libc.trimmed == 0
            await clock.forward(1.1, server.address)
        finally:
            gc.enable()
        assert left() is None
        assert Libc.trimmed == is_libc_able
        assert not caplog.records
