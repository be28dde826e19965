"""Reasoning parameters for each kind of server."""

from typing import Any

import pytest

from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import Selection
from holdfast.providers.model_factory import reasoning_body

LEVELS = ModelInfo("p", "m", can_reason=True, reasoning_levels=("low", "high"), default_reasoning_effort="high")
SWITCH = ModelInfo("p", "m", can_reason=True)


@pytest.mark.parametrize(
    ("way", "info", "effort", "body"),
    [
        ("openrouter", LEVELS, "low", {"reasoning": {"effort": "low"}, "reasoning_effort": None}),
        ("ant-ling", LEVELS, "low", {"reasoning": {"effort": "low"}, "reasoning_effort": None}),
        ("together", LEVELS, "low", {"reasoning": {"enabled": True}}),
        ("deepseek", LEVELS, "low", {"thinking": {"type": "enabled"}}),
        ("deepseek", LEVELS, "none", {"thinking": {"type": "disabled"}}),
        ("zai", SWITCH, "none", {"thinking": {"type": "disabled"}, "reasoning_effort": None}),
        ("qwen", SWITCH, "high", {"enable_thinking": True, "reasoning_effort": None}),
        ("baseten", LEVELS, "high", {"chat_template_args": {"enable_thinking": True}}),
        ("", LEVELS, "high", {}),
        ("unheard-of", LEVELS, "high", {}),
    ],
)
def test_each_server_kind_has_its_own_parameters(way: str, info: ModelInfo, effort: str, body: dict[str, Any]) -> None:
    assert reasoning_body(way, info, Selection(reasoning_effort=effort)) == body


def test_no_dialect_is_sent_unless_reasoning_is_requested() -> None:
    assert reasoning_body("openrouter", LEVELS, Selection()) == {}
    assert reasoning_body("openrouter", ModelInfo("p", "m"), Selection(reasoning_effort="high")) == {}


def test_thinking_alone_means_the_default() -> None:
    assert reasoning_body("openrouter", LEVELS, Selection(think=True))["reasoning"] == {"effort": "high"}
    assert reasoning_body("openrouter", SWITCH, Selection(think=True))["reasoning"] == {"enabled": True}
