"""Lone surrogates in JSON text, however it is split."""

import json
import random

import msgspec
import pytest

from holdfast.domain.surrogates import SurrogateReplacer, replace_json_surrogates, replace_surrogates

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (rb'"a"', "a"),
        (rb'"\ud83d"', REPLACEMENT),
        (rb'"\ude00"', REPLACEMENT),
        (rb'"\uD83D\uDE00"', "😀"),
        (rb'"\ud83d\ud83d\ude00"', f"{REPLACEMENT}😀"),
        (rb'"\ud83dx\ude00"', f"{REPLACEMENT}x{REPLACEMENT}"),
        (rb'"\ud83d\u0041"', f"{REPLACEMENT}A"),
        (rb'"\ud83d\n"', f"{REPLACEMENT}\n"),
        (rb'"\ud83d\\ude00"', f"{REPLACEMENT}\\ude00"),
        (rb'"\\ud83d"', "\\ud83d"),
        (rb'"\\\ud83d"', f"\\{REPLACEMENT}"),
        (b'"\xff\xed\xa0\xbd"', REPLACEMENT * 4),
    ],
)
def test_document_with_lone_surrogates_is_decoded(text: bytes, whole: str) -> None:
    assert msgspec.json.decode(replace_json_surrogates(text)) == whole
    if text.isascii():
        for size in range(1, len(text)):
            halves = SurrogateReplacer()
            pieces = [halves.feed(text[place : place + size]) for place in range(0, len(text), size)]
            assert msgspec.json.decode(b"".join([*pieces, halves.end()])) == whole, size


def test_random_documents_in_random_pieces_are_decoded() -> None:
    """Equal to a decoder that accepts lone surrogates, with each of them replaced."""
    chance = random.Random(7)
    characters = ["a", "\\", '"', "u", "d83d", "\ud83d", "\ude00", "😀", "\n", "é"]
    for _ in range(500):
        text = "".join(chance.choices(characters, k=chance.randrange(12)))
        data = json.dumps(text).encode()
        halves, out = SurrogateReplacer(), b""
        while data:
            size = chance.randrange(1, 9)
            out, data = out + halves.feed(data[:size]), data[size:]
        joined: str = json.loads(json.dumps(text))
        assert msgspec.json.decode(out + halves.end()) == replace_surrogates(joined)


def test_text_without_surrogates_is_returned_at_once() -> None:
    halves = SurrogateReplacer()
    for piece in (b'data: {"a": "b"}\n\n', rb'{"a": "line\nend"}', rb'{"a": "\u00e9 and so on"}'):
        assert halves.feed(piece) == piece
    assert halves.end() == b""
