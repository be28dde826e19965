"""The `initialize` handshake. Pure.

It is answered without the protocol package, which takes seconds to import, so that the editor receives the response
immediately.
"""

from collections.abc import Mapping
from typing import Any

from holdfast import __version__
from holdfast.acp.tool_calls import Json

__all__ = ["initialize_result", "is_initialize_request", "supports_forms"]

_PROTOCOL = 1
_CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": True, "sse": True},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
}


def is_initialize_request(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a regular `initialize` request. Irregular ones are left to the protocol package."""
    params = message.get("params")
    if message.get("method") != "initialize" or "id" not in message or not isinstance(params, dict):
        return False
    version, capabilities = params.get("protocolVersion"), params.get("clientCapabilities")
    return type(version) is int and version > 0 and isinstance(capabilities, dict | None)


def initialize_result(version: int) -> Json:
    """Return the `initialize` result, with the newest protocol version that both sides support."""
    return {
        "protocolVersion": min(version, _PROTOCOL),
        "agentCapabilities": _CAPABILITIES,
        "agentInfo": {"name": "holdfast", "title": "Holdfast", "version": __version__},
        "authMethods": [],
    }


def supports_forms(capabilities: Mapping[str, Any]) -> bool:
    """Return whether the editor supports elicitation forms."""
    elicitation = capabilities.get("elicitation")
    return isinstance(elicitation, dict) and elicitation.get("form") is not None
