"""The JSON schema of the settings, made from their types: editors complete and check with it."""

from typing import Any

import msgspec

from holdfast.config.texts import TEXTS
from holdfast.domain.settings import PROVIDER_TYPES, Settings

__all__ = ["settings_schema"]


def settings_schema() -> dict[str, Any]:
    """Keys that are not known are marked, as `config check` does."""
    schema = msgspec.json.schema(Settings)
    for name, definition in schema["$defs"].items():
        definition["additionalProperties"] = False
        for key, field in definition.get("properties", {}).items():
            definition["properties"][key] = _described(field, TEXTS.get(f"{name}.{key}", ""))
    schema["$defs"]["Settings"]["properties"]["$schema"] = {"type": "string", "description": "Where this schema is."}
    provider = schema["$defs"]["ProviderSettings"]["properties"]["type"]
    provider["examples"] = list(PROVIDER_TYPES)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Holdfast's settings", **schema}


def _described(field: dict[str, Any], text: str) -> dict[str, Any]:
    return {**field, "description": text} if text else field
