"""One rule, as it is written: `tool`, `tool:action`, `tool(pattern)`. Pure.

For a shell the pattern is a command, word by word: `bash(git status *)`. A lone `*` stands for any number of
words, a `*` in a word for any characters of it; `bash(= …)` is one whole line, exactly. For other tools it is a
path, relative to the workspace or absolute (`write(src/**)`), or, where it has `://`, the address that is fetched.
"""

import posixpath
import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import zip_longest
from typing import Literal

import msgspec

from holdfast.domain.asks import Decision
from holdfast.domain.errors import BadRequest
from holdfast.domain.tools import Permit

__all__ = ["BadRule", "Rule", "escape", "parse_rule"]

_RULE = re.compile(r"([\w*?.-]+)(?::([\w*-]+))?(?:\((.*)\))?", re.S)
_SHELL = "bash"


class BadRule(BadRequest):
    """A permission rule makes no sense."""


class Rule(msgspec.Struct, frozen=True):
    """`subject` says what its pattern is about; without a pattern it is about all that the tool does."""

    text: str
    effect: Decision
    tool: str
    action: str = ""
    subject: Literal["all", "command", "line", "path", "address"] = "all"
    pattern: str = ""
    words: tuple[str, ...] = ()

    @property
    def is_naming(self) -> bool:
        """Whether it names what it is about. A rule for everything does not outdo a warning about something."""
        if self.subject == "all":
            return False
        return self.words[:1] != ("*",) and self.pattern not in ("*", "**", "/**")

    def is_about(self, permit: Permit) -> bool:
        """Whether it is about this tool and action. A `*` in its place fits all."""
        return fnmatchcase(permit.tool, self.tool) and (not self.action or fnmatchcase(permit.action, self.action))

    def fits_command(self, argv: Sequence[str], *, is_open: bool = False) -> bool:
        """An open command, with words that nobody knows yet, fits only what ends with a lone `*`."""
        if self.subject != "command" or (is_open and self.words[-1:] != ("*",)):
            return False
        return _fits_words(self.words, tuple(argv))

    def may_fit(self, known: Sequence[str]) -> bool:
        """Whether a command of which only the first words are known may turn out to be one that it fits."""
        if self.subject != "command":
            return False
        for pattern, word in zip_longest(self.words, known):
            if pattern == "*" or word is None:
                return True
            if pattern is None or not fnmatchcase(word, pattern):
                return False
        return True

    def fits_line(self, line: str) -> bool:
        return self.subject == "line" and self.pattern == line.strip()

    def fits_address(self, address: str) -> bool:
        return self.subject == "address" and fnmatchcase(address, self.pattern)

    def fits_path(self, root: str, path: str) -> bool:
        if self.subject != "path":
            return False
        return bool(_path_pattern(posixpath.join(root, self.pattern)).fullmatch(path))


def parse_rule(text: str, effect: Decision) -> Rule:
    """Raises `BadRule`, which names the rule and says what is wrong with it."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(f"{_named(text, effect)}: write `tool`, `tool:action` or `tool(pattern)`.")
    tool, action, pattern = found.group(1), found.group(2) or "", found.group(3)
    if pattern is None:
        return Rule(text, effect, tool, action)
    if not pattern.strip():
        raise BadRule(f"{_named(text, effect)}: the pattern is empty; leave the parentheses out to mean everything.")
    if tool == _SHELL:
        return _shell_rule(text, effect, action, pattern.strip())
    subject: Literal["path", "address"] = "address" if "://" in pattern else "path"
    return Rule(text, effect, tool, action, subject, pattern.strip())


def _shell_rule(text: str, effect: Decision, action: str, pattern: str) -> Rule:
    if pattern.startswith("= "):
        return Rule(text, effect, _SHELL, action, "line", pattern[2:].strip())
    try:
        words = tuple(shlex.split(pattern))
    except ValueError:
        raise BadRule(f"{_named(text, effect)}: a quote is not closed.") from None
    if any(word in {";", "|", "||", "&&", "&"} for word in words):
        raise BadRule(f"{_named(text, effect)}: one rule is about one command; write one for each of them.")
    return Rule(text, effect, _SHELL, action, "command", pattern, words)


def _named(text: str, effect: Decision) -> str:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return f"The rule {shown!r} in permissions.{effect} makes no sense"


def escape(text: str) -> str:
    """A pattern that fits this text and nothing else."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _fits_words(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """The classic walk with one place to come back to: as long as both are, together."""
    at = place = 0
    star, mark = -1, 0
    while place < len(words):
        if at < len(pattern) and pattern[at] == "*":
            star, mark = at, place
            at += 1
        elif at < len(pattern) and fnmatchcase(words[place], pattern[at]):
            at += 1
            place += 1
        elif star >= 0:
            mark += 1
            at, place = star + 1, mark
        else:
            return False
    return all(word == "*" for word in pattern[at:])


@cache
def _path_pattern(pattern: str) -> re.Pattern[str]:
    """`**` crosses directories, `*` and `?` do not. A pattern for a directory's contents fits the directory too."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("/**", at) and at + 3 == len(pattern):
            parts.append("(/.*)?")
            at += 3
        elif pattern.startswith("**/", at):
            parts.append("(.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif pattern[at] == "*":
            parts.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            parts.append("[^/]")
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            parts.append(f"[{'^' + inside[1:] if inside.startswith('!') else inside}]")
            at = end + 1
        else:
            parts.append(re.escape(pattern[at]))
            at += 1
    return re.compile("".join(parts), re.S)
