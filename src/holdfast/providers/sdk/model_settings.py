"""Convert selection and request to the settings of pydantic-ai."""

from typing import Any, get_args

from pydantic_ai.settings import ModelSettings, ThinkingEffort

from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.settings import Selection
from holdfast.providers.chat_request import effort_of, output_tokens_of
from holdfast.providers.model_access import ModelAccess

__all__ = ["body_for", "settings_for"]

_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def settings_for(
    request: ModelRequest, info: ModelInfo, access: ModelAccess, selection: Selection, headers: dict[str, str]
) -> dict[str, Any]:
    """Return the common settings and the options known to pydantic-ai. Unknown options go into the body unchanged."""
    settings: dict[str, Any] = {"extra_headers": headers}
    if most := output_tokens_of(request, selection):
        settings["max_tokens"] = most
    for name in _SAMPLING:
        if (value := getattr(selection, name)) is not None:
            settings[name] = value
    effort = effort_of(info, selection)
    if effort in get_args(ThinkingEffort):
        settings["thinking"] = effort
    elif effort in ("none", "off", "disabled"):
        settings["thinking"] = False
    elif info.can_reason and (effort or selection.think):
        settings["thinking"] = True
    settings |= {name: value for name, value in _options(access, selection).items() if _is_setting(name)}
    if body := body_for(access, selection):
        settings["extra_body"] = body
    return settings


def body_for(access: ModelAccess, selection: Selection) -> dict[str, Any]:
    """Return the extra fields for the body of each request."""
    return {name: value for name, value in _options(access, selection).items() if not _is_setting(name)} | access.body


def _options(access: ModelAccess, selection: Selection) -> dict[str, Any]:
    return access.options | selection.provider_options


def _is_setting(name: str) -> bool:
    own = ("openai_", "anthropic_", "google_", "bedrock_", "mistral_")
    return name in ModelSettings.__annotations__ or name.startswith(own)
