"""How the options of a program are written, and which of them only look. Pure.

Every option that is not named here counts as one that acts: options are also abbreviated, joined, and invented.
"""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.permissions.words import Word

__all__ = ["ANY", "Options", "Taken", "take"]


class Options(msgspec.Struct, frozen=True):
    """`flags` are letters that stand alone, `valued` letters that must have a value, `joined` those that may have one,
    in the same word; `long` are names that stand alone or have a value behind `=`, `long_valued` must have one.
    """

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    joined: str = ""
    has_numbers: bool = False
    """`-5` is an option too."""
    is_apart: bool = False
    """A letter with a value stands alone in its word: the program reads on behind it."""
    is_first: bool = False
    """Options stand before everything else; behind it they are plain words."""
    dashed: frozenset[str] = frozenset()
    """Those whose value may look like an option. Of others nobody knows what the program takes it for."""


ANY = Options()
"""The words are not sorted here: the program has no option that acts, or checks its words itself."""


class Taken(msgspec.Struct, frozen=True):
    """The words of a program that are no options, and the values of those that are."""

    plain: tuple[Word, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    """The name of an option, and its value if it has one."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.values)


def take(
    words: tuple[Word, ...], options: Options, is_operand: Callable[[Word], bool] = lambda _: False
) -> Taken | None:
    """Sort the words. None if one of them is, or may be, an option that is not known. `is_operand` tells of a pattern
    whether no name that it stands for looks like an option.
    """
    if options is ANY:
        return Taken(words, tuple(("", value) for word in words for value in _values(word.text)))
    plain: list[Word] = []
    values: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.text == "--":
            plain += rest
            break
        if word.may_be_option and not is_operand(word):
            return None
        if not word.text.startswith("-") or word.text == "-":
            plain.append(word)
            if options.is_first:
                plain += rest
                break
            continue
        found = _long(word.text, options) if word.text.startswith("--") else _short(word.text, options)
        if found is None:
            return None
        names, value, wants_value = found
        if wants_value and rest:
            is_dash = len(rest[0].text) > 1 and rest[0].text.startswith("-")
            # A pattern may stand for several files: the first would be the value, the others plain words.
            if rest[0].is_glob or (is_dash and names[-1] not in options.dashed):
                return None
            value = rest.pop(0).text
        values += [*((name, "") for name in names[:-1]), (names[-1], value)]
    return Taken(tuple(plain), tuple(values))


def _values(text: str) -> tuple[str, ...]:
    """What may be the value of an option, wherever it stands in the word."""
    if not text.startswith("-"):
        return ()
    return (text.partition("=")[2], text[2:])


def _long(text: str, options: Options) -> tuple[Sequence[str], str, bool] | None:
    name, sign, value = text[2:].partition("=")
    if name in options.long_valued:
        return (name,), value, not sign
    return ((name,), value, False) if name in options.long else None


def _short(text: str, options: Options) -> tuple[Sequence[str], str, bool] | None:
    """All letters of the word count; the last of them may have a value."""
    if options.has_numbers and text[1:].isdecimal():
        return (text[1:],), "", False
    for at, letter in enumerate(text[1:], start=1):
        if letter in options.joined:
            return text[1 : at + 1], text[at + 1 :], False
        if letter in options.valued:
            if options.is_apart and len(text) > len("-x"):
                return None
            return text[1 : at + 1], text[at + 1 :], at + 1 == len(text)
        if letter not in options.flags:
            return None
    return text[1:], "", False
