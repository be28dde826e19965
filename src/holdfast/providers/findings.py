"""Convert the model lists of servers, each in its own format, to `Found`. Pure.

The input is untrusted: a field of the wrong type counts as absent.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

__all__ = ["Found", "of_lm_studio", "of_ollama", "of_openai", "with_context"]

_CONTEXT = (
    "loaded_context_length",
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_context_window",
    "max_input_tokens",
    "n_ctx",
    "n_ctx_train",
)
"""Keys for the context size; the size in effect precedes the possible maximum."""

_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})$", re.MULTILINE)
_NOT_FOR_TALK = re.compile(
    r"(^|[-_/])(embed|embedding|embeddings|rerank|reranker|whisper|tts|moderation)([-_:.]|$)", re.I
)


class Found(msgspec.Struct, frozen=True):
    """A model offered by a server. None means that the server did not report the property."""

    id: str
    name: str = ""
    context_window: int = 0
    max_tokens: int = 0
    can_reason: bool | None = None
    images: bool | None = None
    tools: bool | None = None
    is_loaded: bool = False
    """True if the model is in memory and can respond at once."""


def of_openai(answer: Mapping[str, Any]) -> tuple[list[Found], str]:
    """Parse `/models`. Returns the models and the `owned_by` of the first one, which identifies the server software."""
    found: list[Found] = []
    maker = ""
    for item in _objects(answer.get("data")):
        id = _text(item, "id")
        if not id or _NOT_FOR_TALK.search(id) or item.get("type") in ("embedding", "embeddings", "image", "audio"):
            continue
        meta = item.get("meta")
        window = _context(item) or (_context(meta) if isinstance(meta, dict) else 0)
        maker = maker or _text(item, "owned_by")
        found.append(Found(id, _name(item, id), window, _number(item, "max_completion_tokens"), images=_sees(item)))
    return _unique(found), maker


def of_ollama(tags: Mapping[str, Any], shown: Mapping[str, Any], running: Mapping[str, Any]) -> list[Found]:
    """Parse `/api/tags`, the `/api/show` responses by model, and `/api/ps`. Models without completion are left out.

    The context size is the one in effect: the one set in the model's file, else the one it was loaded with, else the
    one it was trained for.
    """
    loaded = {_text(item, "model") or _text(item, "name"): item for item in _objects(running.get("models"))}
    found: list[Found] = []
    for item in _objects(tags.get("models")):
        id = _text(item, "model") or _text(item, "name")
        detail = shown.get(id)
        detail = detail if isinstance(detail, dict) else {}
        can = detail.get("capabilities")
        abilities = {word for word in can if isinstance(word, str)} if isinstance(can, list) else None
        if not id or _NOT_FOR_TALK.search(id) or (abilities is not None and "completion" not in abilities):
            continue
        window = _set_context(detail) or _number(loaded.get(id, {}), "context_length") or _made_for(detail)
        found.append(
            Found(
                id,
                context_window=window,
                can_reason=None if abilities is None else "thinking" in abilities,
                images=None if abilities is None else "vision" in abilities,
                tools=None if abilities is None else "tools" in abilities,
                is_loaded=id in loaded,
            )
        )
    return _unique(found)


def of_lm_studio(answer: Mapping[str, Any]) -> list[Found]:
    """Parse `/api/v0/models`."""
    found: list[Found] = []
    for item in _objects(answer.get("data")):
        id = _text(item, "id")
        kind = _text(item, "type")
        if not id or kind not in ("llm", "vlm", ""):
            continue
        can = item.get("capabilities")
        tools = "tool_use" in can if isinstance(can, list) else None
        is_loaded = item.get("state") == "loaded"
        found.append(Found(id, "", _context(item), 0, None, kind == "vlm", tools, is_loaded))
    return _unique(found)


def with_context(models: Iterable[Found], more: Iterable[Found]) -> list[Found]:
    """Add the details of the second list to the first. Models without details are removed: they cannot
    complete text.
    """
    details = {item.id: item for item in more}
    if not details:
        return list(models)
    result: list[Found] = []
    for model in models:
        detail = details.get(model.id)
        if detail is not None:
            window = model.context_window or detail.context_window
            result.append(msgspec.structs.replace(detail, context_window=window, name=model.name or detail.name))
    return result


def _made_for(detail: Mapping[str, Any]) -> int:
    info = detail.get("model_info")
    if not isinstance(info, dict):
        return 0
    sizes = [_whole(value) for key, value in info.items() if isinstance(key, str) and key.endswith(".context_length")]
    return max(sizes, default=0)


def _set_context(detail: Mapping[str, Any]) -> int:
    found = _NUM_CTX.search(_text(detail, "parameters"))
    return int(found[1]) if found else 0


def _context(item: Mapping[str, Any]) -> int:
    return next((size for name in _CONTEXT if (size := _number(item, name))), 0)


def _sees(item: Mapping[str, Any]) -> bool | None:
    architecture = item.get("architecture")
    kinds = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    return "image" in kinds if isinstance(kinds, list) else None


def _name(item: Mapping[str, Any], id: str) -> str:
    name = _text(item, "name")
    return "" if name == id else name


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value[:500] if isinstance(value, str) else ""


def _number(item: Mapping[str, Any], name: str) -> int:
    return _whole(item.get(name))


def _whole(value: object) -> int:
    is_size = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1_000_000_000
    return value if is_size and isinstance(value, int) else 0


def _unique(found: list[Found]) -> list[Found]:
    return list({model.id: model for model in found}.values())
