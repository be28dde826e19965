"""State of a server connection and its retries."""

from holdfast.extensions.mcp import mcp_types
from holdfast.extensions.mcp.mcp_types import McpServerState


def test_retries_back_off_and_stop() -> None:
    standing = mcp_types.INITIAL
    pauses: list[float | None] = []
    while standing.delay is not None:
        standing = mcp_types.attempt_failed(mcp_types.attempt_started(standing), "It is away.")
        pauses.append(standing.delay)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, None]
    assert standing == McpServerState("error", "It is away.", mcp_types.MAX_ATTEMPTS)
    assert mcp_types.retry_delay(0) == 0.5


def test_permanent_failure_is_not_retried() -> None:
    assert (
        mcp_types.attempt_failed(mcp_types.attempt_started(mcp_types.INITIAL), "no such program", is_final=True).delay
        is None
    )
    assert mcp_types.login_required("log in") == McpServerState("needs auth", "log in")
    assert mcp_types.DISABLED.delay is None


def test_failure_reason_is_kept_until_success() -> None:
    failed = mcp_types.attempt_failed(mcp_types.INITIAL, "It is away.")
    again = mcp_types.attempt_started(failed)
    assert (again.state, again.reason) == ("starting", "It is away.")
    assert mcp_types.connected(again) == McpServerState("connected", failures=1)


def test_lasting_connection_resets_failures() -> None:
    shaky = mcp_types.connected(McpServerState("starting", "", failures=5))
    assert mcp_types.connection_lost(shaky, "gone", lasted=mcp_types.STABLE_AFTER - 1).failures == 6
    assert mcp_types.connection_lost(shaky, "gone", lasted=mcp_types.STABLE_AFTER) == McpServerState(
        "error", "gone", 1, 0.5
    )
