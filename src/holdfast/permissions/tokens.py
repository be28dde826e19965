"""Blanks, comments, redirections and here-documents of a shell line. Pure.

Bash reads the lines of a here-document where the line that announces it ends, whatever the grammar is in the middle of;
so they are read here, below the grammar.
"""

import re
from typing import NamedTuple

from holdfast.permissions.lines import Redirection
from holdfast.permissions.words import BLANKS, Unreadable, Word, WordReader

__all__ = ["NOT_VALID", "TWO_WAYS", "TokenReader"]

_OPERATORS = ("&>>", "<<<", "<<-", "&>", ">>", ">&", "<&", ">|", "<>", "<<", ">", "<")
_NUMBER = re.compile(r"\d+(?=[<>])", re.A)
_DELIMITER = re.compile(r"[\w.%+:-]+", re.A)
_EXPANDS = re.compile(r"`|\$[({\[]|\\\n")
_DOCUMENT = "it holds a here-document"
NOT_VALID = "it is not valid, or too unusual"
TWO_WAYS = "it can be read in two ways"


class _Document(NamedTuple):
    """A here-document whose lines follow; `start` is where its operator stands."""

    delimiter: str
    strips: bool
    is_quoted: bool
    start: int


def _is_even(body: str) -> bool:
    """Whether parentheses are in pairs, and nothing is quoted."""
    depth = 0
    for char in body:
        depth += (char == "(") - (char == ")")
        if depth < 0 or char in "'\"\\`":
            return False
    return depth == 0


class TokenReader(WordReader):
    """Reads what stands between words. `is_nested`: the text stood between backquotes."""

    def __init__(self, text: str, *, is_nested: bool = False) -> None:
        super().__init__(text)
        self.redirections: list[Redirection] = []
        self.documents: list[_Document] = []
        """Announced, and not read yet."""
        self._is_nested = is_nested
        self._substitutions = 0

    def enter(self) -> None:
        """Begin a substitution. The lines of a here-document that is open across its borders could be anywhere."""
        if self.documents:
            raise Unreadable(_DOCUMENT)
        self._substitutions += 1

    def leave(self) -> None:
        if self.documents:
            raise Unreadable(_DOCUMENT)
        self._substitutions -= 1

    def skip(self, *, newlines: bool = False) -> None:
        """Pass over blanks and comments, and over newlines where they mean nothing."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in BLANKS:
                self.at += 1
            elif self.peek(2) == "\\\n":
                before = self.text[self.at - 1 : self.at]
                if before and before not in " \t\n" and self.text[self.at + 2 : self.at + 3] not in (" ", "\t"):
                    raise Unreadable("a word goes on in the next line")
                self.at += 2
            elif char == "#" and self.text[self.at - 1 : self.at] in ("", *" \t\n;&|()"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == "\n" and newlines:
                self._newline()
            else:
                return

    def _newline(self) -> None:
        self.at += 1
        documents, self.documents = self.documents, []
        for document in documents:
            if "\n" in self.text[document.start : self.at - 1]:
                raise Unreadable(_DOCUMENT)
            self._read_document(document)

    def redirection(self) -> bool:
        start = self.at
        if found := _NUMBER.match(self.text, self.at):
            self.at = found.end()
            if self.peek(2) in ("<(", ">("):
                raise Unreadable(TWO_WAYS)
        operator = next((known for known in _OPERATORS if self.text.startswith(known, self.at)), "")
        if not operator or (operator in "<>" and self.peek(2) in ("<(", ">(") and self.at == start):
            self.at = start
            return False
        self.at += len(operator)
        self.skip()
        begin = self.at
        target = self.read_word()
        if self.at == begin:
            raise Unreadable(NOT_VALID)
        self.redirections.append(Redirection(operator, target))
        if operator in ("<<", "<<-"):
            self._announce(target, strips=operator == "<<-", start=start)
        elif operator != "<<<" and not target.is_literal:
            self.doubt("it writes to a file whose name is made while it runs", hides=True)
        return True

    def _announce(self, delimiter: Word, *, strips: bool, start: int) -> None:
        self.doubt(_DOCUMENT)
        if self._is_nested or not delimiter.is_literal or not _DELIMITER.fullmatch(delimiter.text):
            raise Unreadable(_DOCUMENT)
        self.documents.append(_Document(delimiter.text, strips, delimiter.is_quoted, start))

    def _read_document(self, document: _Document) -> None:
        start = self.at
        while self.at < len(self.text):
            begin = self.at
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end + 1
            line = self.text[begin : self.at].removesuffix("\n")
            if (line.lstrip("\t") if document.strips else line) == document.delimiter:
                self._check_document(document, self.text[start:begin])
                return
        raise Unreadable(_DOCUMENT)

    def _check_document(self, document: _Document, body: str) -> None:
        if not document.is_quoted and _EXPANDS.search(body):
            self.doubt(_DOCUMENT, hides=True)
        if self._substitutions and not (document.is_quoted and _is_even(body)):
            # Old versions of bash look for the end of a substitution in the document too.
            self.doubt(_DOCUMENT, hides=True)
