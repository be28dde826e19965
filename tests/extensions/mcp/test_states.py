"""How a server stands, and when it is tried again."""

from holdfast.extensions.mcp import mcp_types
from holdfast.extensions.mcp.mcp_types import McpServerState


def test_a_server_is_tried_later_each_time_and_then_left_alone() -> None:
    standing = mcp_types.WAITING
    pauses: list[float | None] = []
    while standing.pause is not None:
        standing = mcp_types.failed(mcp_types.begun(standing), "It is away.")
        pauses.append(standing.pause)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, None]
    assert standing == McpServerState("error", "It is away.", mcp_types.TRIES)
    assert mcp_types.pause_after(0) == 0.5


def test_what_only_a_person_can_mend_is_not_tried_again() -> None:
    assert mcp_types.failed(mcp_types.begun(mcp_types.WAITING), "no such program", is_final=True).pause is None
    assert mcp_types.barred("log in") == McpServerState("needs auth", "log in")
    assert mcp_types.DISABLED.pause is None


def test_why_it_failed_is_told_until_it_succeeds() -> None:
    failed = mcp_types.failed(mcp_types.WAITING, "It is away.")
    again = mcp_types.begun(failed)
    assert (again.state, again.reason) == ("starting", "It is away.")
    assert mcp_types.joined(again) == McpServerState("connected", failures=1)


def test_a_connection_that_lasted_makes_up_for_what_failed_before() -> None:
    shaky = mcp_types.joined(McpServerState("starting", "", failures=5))
    assert mcp_types.lost(shaky, "gone", lasted=mcp_types.STEADY - 1).failures == 6
    assert mcp_types.lost(shaky, "gone", lasted=mcp_types.STEADY) == McpServerState("error", "gone", 1, 0.5)
