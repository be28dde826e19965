"""The initialize response, which is sent before the protocol package is loaded."""

import subprocess
import sys

import pytest
from acp import PROTOCOL_VERSION
from acp.schema import InitializeResponse

from holdfast.acp.initialize import initialize_result, is_initialize_request, supports_forms
from holdfast.acp.tool_calls import Json


def test_response_conforms_to_protocol() -> None:
    output = InitializeResponse.model_validate(initialize_result(PROTOCOL_VERSION))
    assert output.protocol_version == PROTOCOL_VERSION
    assert output.model_dump(by_alias=True, exclude_none=True, exclude_unset=True) == initialize_result(
        PROTOCOL_VERSION
    )
    assert initialize_result(PROTOCOL_VERSION + 8)["protocolVersion"] == PROTOCOL_VERSION


def test_no_slow_imports() -> None:
    script = "import sys, holdfast.acp.editor_connection; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"acp", "pydantic", "holdfast.acp.agent"} & set(done.stdout.split())


@pytest.mark.parametrize(
    "odd",
    [
        {"id": None},
        {"method": "session/new"},
        {"params": None},
        {"params": {}},
        {"params": {"protocolVersion": "1"}},
        {"params": {"protocolVersion": True}},
        {"params": {"protocolVersion": 1, "clientCapabilities": []}},
    ],
)
def test_unusual_request_is_left_to_protocol_package(odd: Json) -> None:
    usual: Json = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    assert is_initialize_request(usual)
    changed = {key: value for key, value in (usual | odd).items() if key != "id" or value is not None}
    assert not is_initialize_request(changed)


def test_forms() -> None:
    assert supports_forms({"elicitation": {"form": {}}})
    without: list[Json] = [{}, {"elicitation": None}, {"elicitation": {}}, {"elicitation": {"form": None}}]
    assert not any(supports_forms(item) for item in without)
