"""The parts of a shell line: commands, redirections, doubts. Pure."""

import re

import msgspec

from holdfast.permissions.words import Word

__all__ = ["Command", "Line", "Redirection"]


class Redirection(msgspec.Struct, frozen=True):
    """`operator` is bash's without the descriptor (`2>` is `>`), `target` a file, a descriptor or a text."""

    operator: str
    target: Word

    @property
    def is_descriptor(self) -> bool:
        """A copy of one of the three standard descriptors: `2>&1`."""
        return self.operator in (">&", "<&") and self.target.text in ("0", "1", "2") and not self.target.is_glob

    @property
    def is_closing(self) -> bool:
        """`2>&-`, or a copy of another descriptor: no file is named."""
        return self.operator in (">&", "<&") and bool(re.fullmatch(r"\d+-?|-", self.target.text))

    @property
    def is_text(self) -> bool:
        return self.operator in ("<<<", "<<", "<<-")


class Command(msgspec.Struct, frozen=True):
    """One program, or builtin, with its words. Without words it only assigns.

    `is_open`: more words follow that are not known yet, such as those `xargs` reads. `is_fed`: its input comes from a
    pipe, a file or a text of the line, which may be a program (`… | python3`).
    """

    argv: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    is_open: bool = False
    is_fed: bool = False

    @property
    def name(self) -> str:
        return self.argv[0].text if self.argv else ""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.argv)


class Line(msgspec.Struct, frozen=True):
    """All commands of a line. `doubts` is empty only if nothing is decided while it runs; `hidden` is empty only if
    every program, every nested shell text and every redirection target is among those found.
    """

    commands: tuple[Command, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    doubts: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    repeats: bool = False
    """Whether parts of it may run more than once, or in another order."""
    outer: tuple[Command, ...] = ()
    """For rules that forbid: the wrappers and shells whose place the commands inside have taken, and commands that the
    words of others may be.
    """
    operators: tuple[str, ...] = ()
    """What stands between commands and before the targets of redirections, in no particular order."""
