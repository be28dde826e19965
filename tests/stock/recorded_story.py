"""Recorded stories: files with the requests of a client, the shape of each response, and the order of events.

A shape is a name of a JSON type, a list with the shape of its items, an object with the shapes of its keys (a key
that ends with `?` may be missing, `*` matches any other key), or `@name` for a shape of `shapes.jsonl`.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stock.client import Exchange

__all__ = ["Story", "check_shape"]

_PLACE = Path(__file__).parent / "stories"
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_PASSING = ("message updated assistant", "session updated", "skills_event updated")
"""Growth and session updates: their number depends on timing."""


@cache
def _shapes() -> dict[str, Any]:
    lines = (_PLACE / "shapes.jsonl").read_text().splitlines()
    return {entry["name"]: entry["shape"] for entry in map(json.loads, lines)}


class Story:
    """One file of `stories`."""

    def __init__(self, name: str) -> None:
        self._lines: list[dict[str, Any]] = [
            json.loads(line) for line in (_PLACE / f"{name}.jsonl").read_text().splitlines()
        ]
        self._polls = {line["request"]: line for line in self._lines if line["kind"] == "poll"}

    def check(self, client: str, log: Sequence[Exchange], labels: Iterable[str]) -> None:
        """Compare the requests and responses of the client with the story."""
        reported = [line for line in self._lines if line.get("client") == client]
        self._check_exchanges([line for line in reported if line["kind"] == "exchange"], log)
        expected = [label for line in reported if line["kind"] == "events" for label in line["order"]]
        assert [label for label in labels if label not in _PASSING] == expected

    def _check_exchanges(self, expected: list[dict[str, Any]], log: Sequence[Exchange]) -> None:
        plain = [entry for entry in log if entry.request not in self._polls]
        for entry in log:
            if entry.request in self._polls:
                _check_exchange(self._polls[entry.request], entry)
        # Concurrent requests may occur in any order.
        plain.sort(key=lambda entry: (entry.batch, entry.request))
        batches = [entry.batch for entry in plain]
        assert len(plain) == len(expected), [entry.request for entry in plain]
        expected = [line for _, line in sorted(zip(batches, expected, strict=True), key=_in_batch)]
        assert [entry.request for entry in plain] == [line["request"] for line in expected]
        for line, entry in zip(expected, plain, strict=True):
            _check_exchange(line, entry)


def _in_batch(pair: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return pair[0], pair[1]["request"]


def _check_exchange(line: dict[str, Any], entry: Exchange) -> None:
    assert entry.status == line["status"], f"{entry.request}: {entry.status} {entry.answer}"
    check_shape(line.get("body"), entry.body, f"{entry.request} body")
    check_shape(line["answer"], entry.answer, f"{entry.request} answer")


def check_shape(shape: Any, value: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    if isinstance(shape, str) and shape.startswith("@"):
        check_shape(_shapes()[shape[1:]], value, place)
    elif shape is None:
        assert value is None, f"{place}: {value!r} instead of nothing"
    elif shape in ("empty", "stream"):
        assert value == ("" if shape == "empty" else "stream"), f"{place}: {value!r}"
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{place}: {value!r}"
        for index, item in enumerate(value):
            check_shape(shape[0], item, f"{place}[{index}]")
    elif isinstance(shape, dict):
        _check_object(shape, value, place)
    else:
        fits = isinstance(value, _TYPES[shape]) and (shape == "boolean" or not isinstance(value, bool))
        assert fits, f"{place}: {value!r} is not of type {shape}"


def _check_object(shape: dict[str, Any], value: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    assert isinstance(value, dict), f"{place}: {value!r}"
    known = {key.removesuffix("?"): below for key, below in shape.items()}
    missing = {key for key in shape if not key.endswith("?") and key != "*"} - value.keys()
    assert not missing, f"{place} lacks {sorted(missing)}"
    for key, item in value.items():
        below = known.get(key, known.get("*"))
        assert below is not None, f"{place}.{key} is not expected"
        check_shape(below, item, f"{place}.{key}")
