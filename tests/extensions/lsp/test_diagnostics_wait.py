"""Wait after a change: never longer than its limit, whatever a server does. In virtual time."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.lsp import server_state_machine
from holdfast.extensions.lsp.diagnostics_wait import (
    AFTER_CHANGE,
    ON_REQUEST,
    ON_VIEW,
    DiagnosticsWait,
    Progress,
    WaitLimits,
    deadline,
)
from holdfast.extensions.lsp.lsp_connection import Incoming
from holdfast.extensions.lsp.lsp_types import ServerCapabilities, file_uri
from holdfast.extensions.lsp.server_config import LaunchSpec, ServerConfig
from holdfast.extensions.lsp.server_session import ServerSession
from holdfast.extensions.lsp.server_supervisor import LanguageServer, ServerHooks
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import in_virtual_time

moments = st.floats(0, 100)


@given(
    st.sampled_from([AFTER_CHANGE, ON_VIEW, ON_REQUEST]),
    moments,
    st.builds(
        Progress,
        st.none() | moments,
        st.none() | moments,
        st.none() | moments,
        st.booleans(),
        st.booleans(),
        st.integers(0, 5),
    ),
)
def test_wait_never_exceeds_bound(times: WaitLimits, begun: float, progress: Progress) -> None:
    assert deadline(begun, progress, times) <= begun + times.overall


def test_the_documented_times() -> None:
    assert (AFTER_CHANGE.overall, AFTER_CHANGE.first, AFTER_CHANGE.quiet) == (5.0, 1.0, 0.3)
    assert (ON_VIEW.overall, ON_REQUEST.overall) == (0.3, 5.0)
    silent = Progress(sent_at=10.0)
    assert deadline(10.0, silent, AFTER_CHANGE) == 11.0
    assert deadline(10.0, Progress(sent_at=10.0, received_at=10.5), AFTER_CHANGE) == 10.8
    assert deadline(10.0, Progress(sent_at=10.0, is_busy=True), AFTER_CHANGE) == 15.0
    assert deadline(10.0, Progress(sent_at=10.0, silent_changes=2), AFTER_CHANGE) == 10.0
    assert deadline(10.0, Progress(sent_at=10.0, silent_changes=2), ON_REQUEST) == 15.0
    assert deadline(10.0, Progress(launched_at=7.0), AFTER_CHANGE) == 12.0
    assert deadline(10.0, Progress(launched_at=1.0), AFTER_CHANGE) == 6.0
    assert deadline(10.0, Progress(launched_at=7.0, sent_at=10.0), AFTER_CHANGE) == 12.0
    assert deadline(10.0, Progress(launched_at=1.0, sent_at=10.0), AFTER_CHANGE) == 11.0
    assert deadline(10.0, Progress(launched_at=10.0), ON_VIEW) == 10.0


PATH = "/w/a.zz"
_numbers = itertools.count()


class _Peer:
    """Peer that sends nothing by itself."""

    def notify(self, method: str, params: object) -> None:
        """Discard the notification."""


async def _never(*_: object) -> LaunchSpec:
    await asyncio.Event().wait()
    raise AssertionError


async def _text(_: str) -> str | None:
    return ""


def server_of() -> LanguageServer:
    server_hooks = ServerHooks(_never, _never, _text, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    return LanguageServer(ServerConfig("ours", ("x",)), "/w", server_hooks)


def ready(server: LanguageServer) -> ServerSession:
    """Bring the server to the ready state."""
    lsp_session = ServerSession(server.config, "/w", server._on_change)
    lsp_session._connection = _Peer()  # type: ignore[assignment]
    server.session = lsp_session
    server.dispatch(server_state_machine.Started(server.status.launch, asyncio.get_running_loop().time()))
    return lsp_session


def publish(lsp_session: ServerSession, version: int, path: str = PATH) -> None:
    body = {"uri": file_uri(path), "version": version, "diagnostics": []}
    lsp_session.handle(Incoming("textDocument/publishDiagnostics", params=msgspec.Raw(msgspec.json.encode(body))))


async def took(server: LanguageServer, *plan: tuple[float, Callable[[], object]]) -> tuple[bool, float]:
    """Return how long a change waits while these actions happen at these times, and whether it was answered."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for after, act in plan:
        loop.call_at(begun + after, act)
    answered = await DiagnosticsWait(server, PATH, f"text {next(_numbers)}", begun, AFTER_CHANGE).wait()
    return answered, round(loop.time() - begun, 3)


def test_answering_server_is_awaited_until_quiet() -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        lsp_session = ready(server)
        lsp_session.has_responded = True
        again = [(0.2 + 0.1 * n, lambda: publish(lsp_session, 1)) for n in range(3)]
        assert await took(server, *again) == (True, 0.7)
        assert await took(server, (0.4, lambda: publish(lsp_session, 2))) == (True, 0.7)
        endless = [(0.2 * n, lambda: publish(lsp_session, 3)) for n in range(1, 60)]
        assert await took(server, *endless) == (True, 5.0)
        await server.close()

    in_virtual_time(walk)


def test_diagnostics_of_other_files_extend_answer_only() -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        lsp_session = ready(server)
        lsp_session.has_responded = True
        lsp_session.documents.sync("/w/b.zz", "")
        other = [(0.2 * n, lambda: publish(lsp_session, 1, "/w/b.zz")) for n in range(1, 5)]
        assert await took(server, *other) == (False, 1.0)
        assert await took(server, (0.1, lambda: publish(lsp_session, 2)), *other[:3]) == (True, 0.9)
        await server.close()

    in_virtual_time(walk)


def test_silent_server_is_awaited_twice_only() -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        lsp_session = ready(server)
        lsp_session.has_responded = True
        assert [await took(server) for _ in range(4)] == [(False, 1.0), (False, 1.0), (False, 0.0), (False, 0.0)]
        assert await took(server, (0.0, lambda: publish(lsp_session, 1))) == (False, 0.0)
        publish(lsp_session, 5)
        assert await took(server, (0.1, lambda: publish(lsp_session, 6))) == (True, 0.4), "it has spoken again"
        await server.close()

    in_virtual_time(walk)


def test_starting_server_is_awaited_once_for_all_changes() -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        assert await took(server) == (False, 5.0)
        assert await took(server) == (False, 0.0), "its time is up, for everybody"
        server.dispatch(server_state_machine.Restart())
        steps = ((2.0, lambda: ready(server)), (3.5, lambda: publish(server.session, 1)))  # type: ignore[arg-type]
        assert await took(server, *steps) == (True, 3.8)
        await server.close()

    in_virtual_time(walk)


def test_ended_server_is_not_awaited() -> None:
    async def walk() -> None:
        for event in (lambda n: server_state_machine.Exited(n, 0, "x"), lambda _: server_state_machine.Stop()):
            server = server_of()
            server.request_start()
            ready(server)
            answered = await took(server, (0.25, lambda: server.dispatch(event(server.status.launch))))  # noqa: B023
            assert answered == (False, 0.25)
            await server.close()

    in_virtual_time(walk)


def test_busy_server_is_awaited_up_to_limit() -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        lsp_session = ready(server)
        lsp_session.has_responded = True
        lsp_session._progress_tokens.add("t")
        assert await took(server) == (False, 5.0)
        assert await took(server, (3.0, lambda: publish(lsp_session, 2))) == (True, 3.3)
        await server.close()

    in_virtual_time(walk)


@pytest.mark.parametrize("answers", [True, False])
def test_pull_diagnostics(answers: bool) -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        lsp_session = ready(server)
        lsp_session.has_responded = True
        lsp_session.capabilities = ServerCapabilities(diagnostic_provider={})

        async def pull(path: str, seconds: float) -> None:
            assert (path, seconds) == (PATH, 5.0)
            await asyncio.sleep(0.5 if answers else seconds * 2)

        lsp_session.pull_diagnostics = pull  # type: ignore[method-assign]
        assert await took(server) == ((True, 0.5) if answers else (False, 5.0))
        await server.close()

    in_virtual_time(walk)


def test_concurrent_waits() -> None:
    async def walk() -> None:
        server = server_of()
        server.request_start()
        lsp_session = ready(server)
        lsp_session.has_responded = True
        first, second = start(took(server)), start(took(server, (0.5, lambda: publish(lsp_session, 2))))
        assert await first == (True, 0.8)
        assert await second == (True, 0.8)
        await server.close()

    in_virtual_time(walk)
