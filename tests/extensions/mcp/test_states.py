"""How a server stands, and when it is tried again."""

from holdfast.extensions.mcp import states
from holdfast.extensions.mcp.states import Standing


def test_a_server_is_tried_later_each_time_and_then_left_alone() -> None:
    standing = states.WAITING
    pauses: list[float | None] = []
    while standing.pause is not None:
        standing = states.failed(states.begun(standing), "It is away.")
        pauses.append(standing.pause)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, None]
    assert standing == Standing("error", "It is away.", states.TRIES)
    assert states.pause_after(0) == 0.5


def test_what_only_a_person_can_mend_is_not_tried_again() -> None:
    assert states.failed(states.begun(states.WAITING), "no such program", is_final=True).pause is None
    assert states.barred("log in") == Standing("needs auth", "log in")
    assert states.DISABLED.pause is None


def test_why_it_failed_is_told_until_it_succeeds() -> None:
    failed = states.failed(states.WAITING, "It is away.")
    again = states.begun(failed)
    assert (again.state, again.reason) == ("starting", "It is away.")
    assert states.joined(again) == Standing("connected", failures=1)


def test_a_connection_that_lasted_makes_up_for_what_failed_before() -> None:
    shaky = states.joined(Standing("starting", "", failures=5))
    assert states.lost(shaky, "gone", lasted=states.STEADY - 1).failures == 6
    assert states.lost(shaky, "gone", lasted=states.STEADY) == Standing("error", "gone", 1, 0.5)
