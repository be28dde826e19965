"""Words of the shell: what the shell replaces, what is a pattern, and what quotes protect, in every position."""

import pytest

from holdfast.permissions.shell_lexer import Word
from holdfast.permissions.shell_parser import parse

NUMBERS = ("$#", "$?", "$$")
"""Replaced by a number, also in double quotes: like a pattern, but not a name that may be an option."""
REPLACED = ("$!", "$-", "$@", "$*", "$0", "$1", "${x}", "${#x}", "${x:-b}", "$((1))")
PATTERNS = ("*", "?", "[b]", "-*", "-o*")
"""Patterns whose names may begin with a dash."""
HOMES = ("~", "~/b", "~u", "k=~/b", "k=b:~")
PLAIN = ("b", "{b", "b~", "b#", "-", "-o", "=", "!")


def word_of(text: str) -> Word:
    (command,) = parse(f"x {text}").commands
    (_, word) = command.argv
    return word


def quoted(text: str) -> Word:
    return Word(text, is_quoted=True)


@pytest.mark.parametrize("text", [*NUMBERS, *REPLACED, *PATTERNS, *HOMES, *PLAIN, "{b,c}", "-o=*"])
def test_single_quotes_protect_everything(text: str) -> None:
    assert word_of(f"'{text}'") == quoted(text)
    assert word_of(f"a'{text}'") == quoted(f"a{text}")


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers(text: str) -> None:
    for before, after in (("", ""), ("a", ""), ("", "a"), ("a", "a"), ("-n", "")):
        assert word_of(before + text + after) == Word(f"{before}*{after}", is_glob=True)
        assert word_of(f'"{before}{text}{after}"') == Word(f"{before}*{after}", is_glob=True, is_quoted=True)


@pytest.mark.parametrize("text", REPLACED)
def test_parameters(text: str) -> None:
    for before, after in (("", ""), ("a", ""), ("", "/a"), ("a", "/a")):
        assert word_of(before + text + after) == Word(f"{before}${after}", is_dynamic=True)
        assert word_of(f'"{before}{text}{after}"') == Word(f"{before}${after}", is_dynamic=True, is_quoted=True)


@pytest.mark.parametrize("text", PATTERNS)
def test_patterns(text: str) -> None:
    assert word_of(text) == Word(text, is_glob=True, may_be_option=True)
    assert word_of(f"{text}a") == Word(f"{text}a", is_glob=True, may_be_option=True)
    assert word_of(f"a{text}") == Word(f"a{text}", is_glob=True)
    assert word_of(f"-a={text}") == Word(f"-a={text}", is_glob=True)
    assert word_of(f'"{text}"') == quoted(text)
    assert word_of(f'"a"{text}') == Word(f"a{text}", is_glob=True, is_quoted=True)


@pytest.mark.parametrize("text", HOMES)
def test_home_directories(text: str) -> None:
    assert word_of(text) == Word(text, is_home=True)
    assert word_of(f'"{text}"') == quoted(text)
    if text.startswith("~"):
        assert word_of(f"a{text}") == Word(f"a{text}")


@pytest.mark.parametrize("text", PLAIN)
def test_plain_words(text: str) -> None:
    assert word_of(text) == Word(text)
    assert word_of(f'"{text}"') == quoted(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{b,c}", Word("{b,c}", is_dynamic=True)),
        ('"{b,c}"', quoted("{b,c}")),
        (r"\*", quoted("*")),
        (r"\$x", quoted("$x")),
        (r'"\*"', quoted(r"\*")),
        (r'"\$x"', quoted("$x")),
        (r"'\$x'", quoted(r"\$x")),
        ("$'b'", Word("$", is_dynamic=True, is_quoted=True)),
        ('$"b"', Word("$b", is_dynamic=True, is_quoted=True)),
        ("\"$'b'\"", quoted("$'b'")),
        ("$", Word("$")),
        ('"$"', quoted("$")),
        ("$x/$#", Word("$/*", is_dynamic=True, is_glob=True)),
    ],
)
def test_escapes_and_combinations(text: str, expected: Word) -> None:
    assert word_of(text) == expected


def test_a_number_is_forgotten_with_its_word() -> None:
    (command,) = parse('x a$# "b$?" c').commands
    assert [word.is_glob for word in command.argv] == [False, True, True, False]
