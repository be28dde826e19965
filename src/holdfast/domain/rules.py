"""A permission rule and what it matches. Pure; `rule_syntax.py` parses the text of one.

For a shell the pattern is a command, word by word: `bash(git status *)`. A lone `*` matches any number of
words, a `*` in a word any characters of it; `bash(= …)` is one whole line, exactly. For other tools the pattern is
a path, relative to the workspace, to the home directory (`~/`) or absolute (`write(src/**)`), or the address that is
fetched. A rule saved by "always allow" has a scope behind the pattern: the directory, and the files that relative
names resolved to.

Rules that forbid are matched leniently, rules that allow strictly: a command that begins with denied words is denied,
a directory includes its contents, and names of tools are compared without regard to case.
"""

import json
import posixpath
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import zip_longest
from typing import Literal

import msgspec

from holdfast.domain.addresses import Address, AddressPattern
from holdfast.domain.asks import Decision
from holdfast.domain.tools import Permit

__all__ = ["Rule", "Scope", "escape"]

_PLAIN_PATH = re.compile(r"/[\w./+@,=:~%-]*")


class Scope(msgspec.Struct, frozen=True):
    """The limits of a saved rule. It matches only a call whose own scope is equal.

    `directory` is the real path in which a command runs, `uses` the real paths of its relative programs and of the
    files it is redirected to, `target` the destination of a download, `params` the parameters of a call as JSON.
    """

    directory: str = ""
    uses: tuple[str, ...] = ()
    target: str = ""
    params: str = ""

    def __str__(self) -> str:
        """Return the text behind the pattern. It never contains a `)`, so the last one ends the pattern."""
        uses = "".join(f" {_quoted(path)}" for path in self.uses)
        return (
            (f" in {_quoted(self.directory)}" if self.directory else "")
            + (f" using{uses}" if uses else "")
            + (f" to {_quoted(self.target)}" if self.target else "")
            + (f" with {_escaped(self.params)}" if self.params else "")
        )


def _quoted(path: str) -> str:
    if _PLAIN_PATH.fullmatch(path):
        return path
    return _escaped(json.dumps(path, ensure_ascii=not path.isprintable()))


def _escaped(text: str) -> str:
    return text.replace(")", "\\u0029")


class Rule(msgspec.Struct, frozen=True):
    """`subject` names what the pattern is compared with; without a pattern the rule covers all calls of the tool."""

    text: str
    effect: Decision
    tool: str
    actions: tuple[str, ...] = ()
    subject: Literal["all", "command", "line", "path", "address"] = "all"
    pattern: str = ""
    words: tuple[str, ...] = ()
    address: AddressPattern | None = None
    scope: Scope | None = None

    @property
    def ours(self) -> str:
        """The rule in Holdfast's own notation."""
        tool = ":".join((self.tool, *self.actions[:1]))
        pattern = f"= {self.pattern}" if self.subject == "line" else self.pattern
        return f"{tool}({pattern}){self.scope or ''}" if pattern else f"{tool}{self.scope or ''}"

    @property
    def is_lenient(self) -> bool:
        """True for rules that ask or deny, which are matched leniently."""
        return self.effect != "allow"

    @property
    def is_naming(self) -> bool:
        """True if the rule names its subject. A rule for everything does not override a warning about something
        specific.
        """
        if self.subject == "all":
            return self.scope is not None
        return self.words[:1] != ("*",) and self.pattern not in ("*", "**", "/**")

    def is_about(self, permit: Permit) -> bool:
        """Return True if the rule covers this tool and action."""
        tool, pattern = permit.tool, self.tool
        if self.is_lenient:
            tool, pattern = tool.lower(), pattern.lower()
        return fnmatchcase(tool, pattern) and (
            not self.actions or any(fnmatchcase(permit.action, action) for action in self.actions)
        )

    def fits_command(self, argv: Sequence[str], *, is_open: bool = False, scope: Scope | None = None) -> bool:
        """Return True if the rule matches the command. An open command, with words that are not known yet, matches only
        a rule that ends with a lone `*`.
        """
        if self.subject != "command" or (is_open and self.words[-1:] != ("*",)):
            return False
        return self.scope in (None, scope) and _fits_words(self.words, tuple(argv))

    def may_fit(self, known: Sequence[str]) -> bool:
        """Return True if a command of which only the first words are known could match."""
        if self.subject != "command":
            return False
        for pattern, word in zip_longest(self.words, known):
            if pattern == "*" or word is None:
                return True
            if pattern is None or not fnmatchcase(word, pattern):
                return False
        return True

    def fits_line(self, line: str, scope: Scope | None = None) -> bool:
        """Return True if the rule is for exactly this line."""
        return self.subject == "line" and self.pattern == line.strip() and self.scope in (None, scope)

    def fits_address(self, address: Address | None) -> bool:
        """Return True if the rule matches the address. An unparsable address matches every rule that forbids and no
        rule that allows.
        """
        if self.address is None:
            return False
        return self.is_lenient if address is None else self.address.matches(address, leniently=self.is_lenient)

    def fits_path(self, root: str, path: str, home: str = "") -> bool:
        """Return True if the rule matches the path. `root` is the base of relative patterns, `home` that of `~/`."""
        if self.subject != "path" or (self.pattern.startswith("~/") and not home):
            return False
        start = posixpath.join(home, self.pattern[2:]) if self.pattern.startswith("~/") else self.pattern
        pattern = posixpath.normpath(posixpath.join(root, start))
        if _path_pattern(pattern).fullmatch(path):
            return True
        covers_below = self.is_lenient and not any(char in posixpath.basename(pattern) for char in "*?[")
        return covers_below and _path_pattern(f"{pattern}/**").fullmatch(path) is not None


def escape(text: str) -> str:
    r"""Return a pattern that matches this text and nothing else."""
    return re.sub(r"([*?[\\])", r"[\1]", text)


def _fits_words(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Match with backtracking to the last lone `*` only: linear in both lengths together."""
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
    """`**` crosses directories, `*` and `?` do not. A pattern for a directory's contents matches the directory too."""
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
