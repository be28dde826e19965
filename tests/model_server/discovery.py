"""Model lists of servers: `/v1/models`, Ollama's `/api/tags` and `/api/show`, LM Studio's `/api/v0/models`."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

__all__ = ["model_list_response"]


def model_list_response(path: str, body: bytes, models: Mapping[str, int]) -> bytes | None:
    """Return the body of the response; None for an unknown path or model."""
    answer: dict[str, Any] | None = None
    match urlsplit(path).path:
        case "/v1/models" | "/models":
            answer = {"object": "list", "data": [{"id": name, "object": "model", "created": 1} for name in models]}
        case "/api/tags":
            answer = {"models": [{"name": name, "model": name, "size": 1} for name in models]}
        case "/api/v0/models":
            listed = [{"id": name, "type": "llm", "max_context_length": size} for name, size in models.items()]
            answer = {"object": "list", "data": listed}
        case "/api/show":
            request = msgspec.json.decode(body or b"{}")
            size = models.get(request.get("model") or request.get("name") or "")
            if size is not None:
                about = {"general.architecture": "llama", "llama.context_length": size}
                answer = {"model_info": about, "capabilities": ["completion", "tools"], "parameters": ""}
        case _:
            pass
    return None if answer is None else msgspec.json.encode(answer)
