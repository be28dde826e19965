"""How long a change waits: never longer than it says, whatever a server does. On a clock of our own."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.lsp import server_state
from holdfast.extensions.lsp.diagnostics_wait import (
    AFTER_A_CHANGE,
    AT_A_GLANCE,
    WHEN_ASKED,
    DiagnosticsWait,
    Progress,
    Times,
    deadline,
)
from holdfast.extensions.lsp.language_server import LanguageServer, ServerHooks
from holdfast.extensions.lsp.lsp_connection import Incoming
from holdfast.extensions.lsp.lsp_types import Capabilities, uri_of
from holdfast.extensions.lsp.server_config import LaunchSpec, ServerConfig
from holdfast.extensions.lsp.server_session import ServerSession
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import in_virtual_time

moments = st.floats(0, 100)


@given(
    st.sampled_from([AFTER_A_CHANGE, AT_A_GLANCE, WHEN_ASKED]),
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
def test_nobody_waits_longer_than_the_bound(times: Times, begun: float, progress: Progress) -> None:
    assert deadline(begun, progress, times) <= begun + times.overall


def test_the_documented_times() -> None:
    assert (AFTER_A_CHANGE.overall, AFTER_A_CHANGE.first, AFTER_A_CHANGE.quiet) == (5.0, 1.0, 0.3)
    assert (AT_A_GLANCE.overall, WHEN_ASKED.overall) == (0.3, 5.0)
    silent = Progress(told=10.0)
    assert deadline(10.0, silent, AFTER_A_CHANGE) == 11.0
    assert deadline(10.0, Progress(told=10.0, heard=10.5), AFTER_A_CHANGE) == 10.8
    assert deadline(10.0, Progress(told=10.0, is_busy=True), AFTER_A_CHANGE) == 15.0
    assert deadline(10.0, Progress(told=10.0, silences=2), AFTER_A_CHANGE) == 10.0
    assert deadline(10.0, Progress(told=10.0, silences=2), WHEN_ASKED) == 15.0
    assert deadline(10.0, Progress(started=7.0), AFTER_A_CHANGE) == 12.0
    assert deadline(10.0, Progress(started=1.0), AFTER_A_CHANGE) == 6.0
    assert deadline(10.0, Progress(started=7.0, told=10.0), AFTER_A_CHANGE) == 12.0
    assert deadline(10.0, Progress(started=1.0, told=10.0), AFTER_A_CHANGE) == 11.0
    assert deadline(10.0, Progress(started=10.0), AT_A_GLANCE) == 10.0


PATH = "/w/a.zz"
_numbers = itertools.count()


class _Peer:
    """Says nothing by itself."""

    def tell(self, method: str, params: object) -> None:
        """Nobody listens."""


async def _never(*_: object) -> LaunchSpec:
    await asyncio.Event().wait()
    raise AssertionError


async def _text(_: str) -> str | None:
    return ""


def server_of() -> LanguageServer:
    shop = ServerHooks(_never, _never, _text, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    return LanguageServer(ServerConfig("ours", ("x",)), "/w", shop)


def ready(server: LanguageServer) -> ServerSession:
    """It comes up, as far as anybody can see."""
    talk = ServerSession(server.plan, "/w", server._heard)
    talk._peer = _Peer()  # type: ignore[assignment]
    server.talk = talk
    server.happens(server_state.Started(server.standing.launch, asyncio.get_running_loop().time()))
    return talk


def publish(talk: ServerSession, version: int, path: str = PATH) -> None:
    body = {"uri": uri_of(path), "version": version, "diagnostics": []}
    talk.hear(Incoming("textDocument/publishDiagnostics", params=msgspec.Raw(msgspec.json.encode(body))))


async def took(server: LanguageServer, *plan: tuple[float, Callable[[], object]]) -> tuple[bool, float]:
    """How long a change waits, while these things happen at these times; and whether it was answered."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for after, act in plan:
        loop.call_at(begun + after, act)
    answered = await DiagnosticsWait(server, PATH, f"text {next(_numbers)}", begun, AFTER_A_CHANGE).over()
    return answered, round(loop.time() - begun, 3)


def test_a_server_that_answers_is_waited_for_until_it_is_quiet() -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        talk = ready(server)
        talk.has_spoken = True
        again = [(0.2 + 0.1 * n, lambda: publish(talk, 1)) for n in range(3)]
        assert await took(server, *again) == (True, 0.7)
        assert await took(server, (0.4, lambda: publish(talk, 2))) == (True, 0.7)
        endless = [(0.2 * n, lambda: publish(talk, 3)) for n in range(1, 60)]
        assert await took(server, *endless) == (True, 5.0)
        await server.close()

    in_virtual_time(walk)


def test_what_it_says_of_other_files_is_no_answer_but_may_be_more_of_one() -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        talk = ready(server)
        talk.has_spoken = True
        talk.documents.sync("/w/b.zz", "")
        other = [(0.2 * n, lambda: publish(talk, 1, "/w/b.zz")) for n in range(1, 5)]
        assert await took(server, *other) == (False, 1.0)
        assert await took(server, (0.1, lambda: publish(talk, 2)), *other[:3]) == (True, 0.9)
        await server.close()

    in_virtual_time(walk)


def test_a_silent_one_costs_a_second_twice_and_nothing_after_that() -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        talk = ready(server)
        talk.has_spoken = True
        assert [await took(server) for _ in range(4)] == [(False, 1.0), (False, 1.0), (False, 0.0), (False, 0.0)]
        assert await took(server, (0.0, lambda: publish(talk, 1))) == (False, 0.0)
        publish(talk, 5)
        assert await took(server, (0.1, lambda: publish(talk, 6))) == (True, 0.4), "it has spoken again"
        await server.close()

    in_virtual_time(walk)


def test_one_that_starts_is_waited_for_and_all_changes_together_wait_no_longer() -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        assert await took(server) == (False, 5.0)
        assert await took(server) == (False, 0.0), "its time is up, for everybody"
        server.happens(server_state.Restart())
        assert await took(server, (2.0, lambda: ready(server)), (3.5, lambda: publish(server.talk, 1))) == (True, 3.8)  # type: ignore[arg-type]
        await server.close()

    in_virtual_time(walk)


def test_one_that_dies_or_is_stopped_is_not_waited_for() -> None:
    async def walk() -> None:
        for event in (lambda n: server_state.Exited(n, 0, "x"), lambda _: server_state.Stop()):
            server = server_of()
            server.want()
            ready(server)
            answered = await took(server, (0.25, lambda: server.happens(event(server.standing.launch))))  # noqa: B023
            assert answered == (False, 0.25)
            await server.close()

    in_virtual_time(walk)


def test_one_that_works_is_given_all_the_time_there_is() -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        talk = ready(server)
        talk.has_spoken = True
        talk._works.add("t")
        assert await took(server) == (False, 5.0)
        assert await took(server, (3.0, lambda: publish(talk, 2))) == (True, 3.3)
        await server.close()

    in_virtual_time(walk)


@pytest.mark.parametrize("answers", [True, False])
def test_one_that_wants_to_be_asked(answers: bool) -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        talk = ready(server)
        talk.has_spoken = True
        talk.capabilities = Capabilities(diagnostic_provider={})

        async def pull(path: str, seconds: float) -> None:
            assert (path, seconds) == (PATH, 5.0)
            await asyncio.sleep(0.5 if answers else seconds * 2)

        talk.pull = pull  # type: ignore[method-assign]
        assert await took(server) == ((True, 0.5) if answers else (False, 5.0))
        await server.close()

    in_virtual_time(walk)


def test_several_waits_at_once() -> None:
    async def walk() -> None:
        server = server_of()
        server.want()
        talk = ready(server)
        talk.has_spoken = True
        first, second = start(took(server)), start(took(server, (0.5, lambda: publish(talk, 2))))
        assert await first == (True, 0.8)
        assert await second == (True, 0.8)
        await server.close()

    in_virtual_time(walk)
