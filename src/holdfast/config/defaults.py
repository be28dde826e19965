"""The settings with every default written out, as they are shown. Pure."""

from typing import Any

import msgspec

__all__ = ["with_defaults"]


def with_defaults(value: object) -> Any:  # noqa: ANN401 - any JSON
    """Structs become objects with all their fields; what is unset is left out."""
    if isinstance(value, msgspec.Struct):
        pairs = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: with_defaults(item) for name, item in pairs if item is not None}
    if isinstance(value, dict):
        return {name: with_defaults(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_defaults(item) for item in value]
    return value
