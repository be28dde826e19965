"""The first words between an editor and us. Pure.

An editor is answered at once: what the protocol's package brings with it takes seconds to load, and nobody has to wait
for that to learn who is here.
"""

from collections.abc import Mapping
from typing import Any

from holdfast import __version__
from holdfast.acp.shapes import Json

__all__ = ["greeting", "has_forms", "is_greeting"]

_PROTOCOL = 1
_CAPABILITIES: Json = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": True, "sse": True},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
}


def is_greeting(message: Mapping[str, Any]) -> bool:
    """Whether this is the usual beginning. Anything odd is left to who knows every rule."""
    params = message.get("params")
    if message.get("method") != "initialize" or "id" not in message or not isinstance(params, dict):
        return False
    version, can = params.get("protocolVersion"), params.get("clientCapabilities")
    return type(version) is int and version > 0 and isinstance(can, dict | None)


def greeting(version: int) -> Json:
    """What we are and can do, in the newest version that both know."""
    return {
        "protocolVersion": min(version, _PROTOCOL),
        "agentCapabilities": _CAPABILITIES,
        "agentInfo": {"name": "holdfast", "title": "Holdfast", "version": __version__},
        "authMethods": [],
    }


def has_forms(capabilities: Mapping[str, Any]) -> bool:
    """Whether the editor can show a form."""
    elicitation = capabilities.get("elicitation")
    return isinstance(elicitation, dict) and elicitation.get("form") is not None
