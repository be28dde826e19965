"""Conversion of prompt content sent by editors."""

import pytest

from holdfast.acp.prompt_content import mcp_settings
from holdfast.acp.tool_calls import Json
from holdfast.domain.errors import BadRequest
from holdfast.domain.settings import McpSettings


def test_mcp_servers() -> None:
    given: list[Json] = [
        {"name": "files", "command": "/bin/files", "args": ["-v"], "env": [{"name": "A", "value": "1"}]},
        {"name": "Größe: 5 / x", "type": "http", "url": "https://x", "headers": [{"name": "H", "value": "v"}]},
        {"name": "!" * 99, "type": "sse", "url": "https://y"},
    ]
    assert mcp_settings(given) == {
        "files": McpSettings(command="/bin/files", args=("-v",), env={"A": "1"}),
        "Gr_e_5_x": McpSettings(type="http", url="https://x", headers={"H": "v"}),
        "editor": McpSettings(type="sse", url="https://y"),
    }
    with pytest.raises(BadRequest):
        mcp_settings([{"name": "x", "type": "acp", "id": "1"}])
