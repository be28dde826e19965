"""How a model is asked, in the words of pydantic-ai."""

from typing import Any, get_args

from pydantic_ai.settings import ModelSettings, ThinkingEffort

from holdfast.domain.models import ModelInfo, ModelRequest
from holdfast.domain.settings import Selection
from holdfast.providers.access import Access
from holdfast.providers.chat_wire import effort_of, output_tokens_of

__all__ = ["settings_for"]

_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def settings_for(
    request: ModelRequest, info: ModelInfo, access: Access, selection: Selection, headers: dict[str, str]
) -> dict[str, Any]:
    """What all kinds understand. Options that are no setting of pydantic-ai's go into the body as they are."""
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
    body: dict[str, Any] = {}
    known = {*ModelSettings.__annotations__}
    for name, value in (access.options | selection.provider_options).items():
        is_setting = name in known or name.startswith(("openai_", "anthropic_", "google_", "bedrock_", "mistral_"))
        (settings if is_setting else body)[name] = value
    body |= access.body
    if body:
        settings["extra_body"] = body
    return settings
