"""The order of the options that an editor shows: its dialog and its keys are not ours."""

import pytest

from holdfast.acp.approvals import permission_options
from holdfast.domain.approvals import PermissionRequest
from holdfast.domain.ids import RunId, SessionId, ToolCallId


@pytest.mark.parametrize("rules", [(), ("bash(make *)",)])
def test_always_is_never_the_first_option_nor_the_first_of_its_kind(rules: tuple[str, ...]) -> None:
    """An editor that binds a key to a kind uses its first option: that one lasts for the session only."""
    ask = PermissionRequest(
        id="a",
        session_id=SessionId("s"),
        tool_call_id=ToolCallId("c"),
        tool_name="bash",
        description="",
        action="execute",
        path="/",
        params={},
        run_id=RunId("r"),
        rules=rules,
    )
    options = permission_options(ask)
    assert next(iter(options)) == "allow"
    assert next(name for name, (_, kind) in options.items() if kind == "allow_always") == "allow_session"
    assert ("allow_always" in options) is bool(rules)
