"""State of a server connection and its retries."""

from holdfast.extensions.mcp import connection_state
from holdfast.extensions.mcp.connection_state import McpServerState


def test_retries_back_off_and_stop() -> None:
    standing = connection_state.INITIAL
    pauses: list[float | None] = []
    while standing.delay is not None:
        standing = connection_state.attempt_failed(connection_state.attempt_started(standing), "It is away.")
        pauses.append(standing.delay)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, None]
    assert standing == McpServerState("error", "It is away.", connection_state.MAX_ATTEMPTS)
    assert connection_state.retry_delay(0) == 0.5


def test_permanent_failure_is_not_retried() -> None:
    assert (
        connection_state.attempt_failed(
            connection_state.attempt_started(connection_state.INITIAL), "no such program", is_final=True
        ).delay
        is None
    )
    assert connection_state.login_required("log in") == McpServerState("needs auth", "log in")
    assert connection_state.DISABLED.delay is None


def test_failure_reason_is_kept_until_success() -> None:
    failed = connection_state.attempt_failed(connection_state.INITIAL, "It is away.")
    again = connection_state.attempt_started(failed)
    assert (again.state, again.reason) == ("starting", "It is away.")
    assert connection_state.connected(again) == McpServerState("connected", failures=1)


def test_lasting_connection_resets_failures() -> None:
    shaky = connection_state.connected(McpServerState("starting", "", failures=5))
    assert connection_state.connection_lost(shaky, "gone", lasted=connection_state.STABLE_AFTER - 1).failures == 6
    assert connection_state.connection_lost(shaky, "gone", lasted=connection_state.STABLE_AFTER) == McpServerState(
        "error", "gone", 1, 0.5
    )
