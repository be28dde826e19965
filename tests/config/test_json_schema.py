"""The JSON schema is generated from the types, and every key has a description."""

import jsonschema_rs
import msgspec
import pytest

from holdfast.config.json_schema import DESCRIPTIONS, settings_schema
from holdfast.domain.settings import PROVIDER_TYPES

GOOD = {
    "$schema": "x",
    "models": {"large": {"model": "m", "provider": "p", "temperature": 1}},
    "providers": {"p": {"type": "gemini", "models": [{"id": "m", "context_window": 5}]}},
    "mcp": {"m": {"type": "stdio", "command": "x", "env": {"A": "b"}}},
    "hooks": {"Stop": [{"command": "x"}]},
    "options": {"tui": {"anything": 1}, "sandbox": "workspace"},
}


def test_every_key_has_a_description() -> None:
    keys = {
        f"{name}.{key}"
        for name, definition in settings_schema()["$defs"].items()
        for key in definition["properties"]
        if key != "$schema"
    }
    assert keys == set(DESCRIPTIONS)
    assert all(text.endswith((".", "…")) for text in DESCRIPTIONS.values())


def test_every_key_of_the_schema_carries_its_own_description() -> None:
    found = {
        f"{name}.{key}": field.get("description", "")
        for name, definition in settings_schema()["$defs"].items()
        for key, field in definition["properties"].items()
        if key != "$schema"
    }
    assert found == DESCRIPTIONS
    definitions = settings_schema()["$defs"]
    assert all(definition["additionalProperties"] is False for definition in definitions.values())
    assert set(definitions["ProviderSettings"]["properties"]["type"]["examples"]) == {*PROVIDER_TYPES}
    assert definitions["Settings"]["properties"]["$schema"]["description"]


def test_valid_settings_pass() -> None:
    schema = msgspec.json.decode(msgspec.json.encode(settings_schema()))
    assert jsonschema_rs.validator_for(schema).is_valid(GOOD)


@pytest.mark.parametrize(
    "bad", [{"optionz": {}}, {"options": {"max_steps": -1}}, {"hooks": {"Stop": [{}]}}, {"mcp": {"m": {"type": "x"}}}]
)
def test_invalid_settings_do_not_pass(bad: object) -> None:
    assert not jsonschema_rs.validator_for(settings_schema()).is_valid(bad)
