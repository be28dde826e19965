"""What the client methods send beside the route: who asks, optional queries, and how long they wait."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import BrokenResponse
from holdfast.client.server_address import ServerAddress
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage

W, S, R = WorkspaceId("w"), SessionId("s"), RunId("r")


class Recorder(Client):
    """Records requests instead of sending them."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(ServerAddress(path="/none"), client_id="me", via="editor")
        self._answer = answer
        self.sent: dict[str, Any] = {}

    async def _exchange(self, name: str, names: Any, **more: Any) -> bytes:  # noqa: ANN401
        self.sent = {"name": name, **more}
        return self._answer


Call = Callable[[Client], Awaitable[object]]
ME = ("client_id", "me")


@pytest.mark.parametrize(
    ("call", "query"),
    [
        (lambda client: client.cancel_session(W, S), [ME]),
        (lambda client: client.clear_queue(W, S), [ME]),
        (lambda client: client.cancel_run(W, R), [ME]),
        (lambda client: client.leave_workspace(W), [ME]),
        (lambda client: client.set_current_session(W, S), [ME]),
        (lambda client: client.grant(W, {}), [ME, ("via", "editor")]),
        (lambda client: client.answer_question(W, {}), [ME, ("via", "editor")]),
        (lambda client: client.cancel_question(W, "b"), [("batch_id", "b"), ME, ("via", "editor")]),
        (lambda client: client.read_log(W), [("after", 0), ("limit", 500)]),
        (
            lambda client: client.read_log(W, 3, limit=4, session="s", run="r"),
            [("after", 3), ("limit", 4), ("session_id", "s"), ("run_id", "r")],
        ),
        (
            lambda client: client.list_runs(W, session=S, limit=2),
            [("session_id", "s"), ("limit", 2)],
        ),
    ],
)
async def test_the_query_of_a_request(call: Call, query: list[tuple[str, object]]) -> None:
    client = Recorder(b"")
    with suppress(BrokenResponse):
        await call(client)
    assert [item for item in client.sent["query"] if item[1] is not None] == query


@pytest.mark.parametrize(
    ("call", "is_patient"),
    [
        (lambda client: client.summarize(W, S), True),
        (lambda client: client.mcp_auth(W, "s"), True),
        (lambda client: client.update_agent(W), False),
        (lambda client: client.mcp_restart(W, "s"), False),
    ],
)
async def test_requests_without_a_time_limit(call: Call, is_patient: bool) -> None:
    """Those that a person or a model completes."""
    client = Recorder(b"")
    await call(client)
    assert client.sent.get("is_patient", False) == is_patient


@pytest.mark.parametrize(("run_id", "can_repeat"), [("r", True), ("", False)])
async def test_a_prompt_is_repeated_only_with_a_run_id(run_id: str, can_repeat: bool) -> None:
    client = Recorder(b" \n")
    accepted = await client.send_prompt(W, AgentMessage(S, "hi", RunId(run_id)))
    assert client.sent["can_repeat"] == can_repeat
    assert (accepted.run_id, accepted.session_id) == (run_id, "s")
