"""How servers list their models: `/v1/models`, Ollama's `/api/tags` and `/api/show`, LM Studio's `/api/v0/models`."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

__all__ = ["answer_about_models"]


def answer_about_models(path: str, body: bytes, models: Mapping[str, int]) -> bytes | None:
    """The body of the answer; None for a path, or a model, that there is not."""
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
            asked = msgspec.json.decode(body or b"{}")
            size = models.get(asked.get("model") or asked.get("name") or "")
            if size is not None:
                about = {"general.architecture": "llama", "llama.context_length": size}
                answer = {"model_info": about, "capabilities": ["completion", "tools"], "parameters": ""}
        case _:
            pass
    return None if answer is None else msgspec.json.encode(answer)
