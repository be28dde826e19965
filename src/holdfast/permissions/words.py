"""The words of a shell line, read character by character as bash reads them. Pure.

A second opinion: `commands.py` takes the structure of a line from a grammar, and the words from here. Where the
two do not see the same words and operators at the same places, the line counts as not understood.
"""

import re

import msgspec

__all__ = ["Operator", "Reading", "Word", "literal", "read_words"]

_OPERATORS = ("&>>", "<<<", "<<-", "&&", "||", "|&", ";;", "&>", ">>", ">&", "<&", ">|", "<>", "<<")
_SINGLE = ";&|()<>"
_DYNAMIC = re.compile(r"[A-Za-z0-9_{(\[*@!\-]")
_COUNTED = "?$#"
_OPENS = re.compile(r"[*?[]|-[^=]*[*?[]")


class Word(msgspec.Struct, frozen=True):
    """A word without its quotes. `start` and `end` count bytes of the line.

    `is_dynamic`: the shell makes something else of it before a program sees it. `may_be_option`: it is a pattern, and
    the name of a file may make any option of it, or several.
    """

    text: str
    start: int = 0
    end: int = 0
    is_dynamic: bool = False
    is_glob: bool = False
    may_be_option: bool = False
    is_home: bool = False
    is_quoted: bool = False


class Operator(msgspec.Struct, frozen=True):
    text: str
    start: int
    end: int


class Reading(msgspec.Struct, frozen=True):
    """What a line consists of. `doubt` says why it cannot be read, or is empty."""

    words: tuple[Word, ...]
    operators: tuple[Operator, ...]
    numbers: frozenset[int]
    """Where the number of a descriptor stands before a redirection: it is no word."""
    doubt: str = ""


def literal(text: str) -> Word:
    """A word that stands for itself."""
    return Word(text)


def read_words(line: str) -> Reading:
    """Never fails; what it does not understand it says in `doubt`."""
    return _Reader(line).read()


class _Reader:
    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0
        self._words: list[Word] = []
        self._operators: list[Operator] = []
        self._numbers: set[int] = set()
        self._doubt = ""
        self._bytes = [0]
        for char in line:
            self._bytes.append(self._bytes[-1] + len(char.encode("utf-8", "surrogatepass")))

    def read(self) -> Reading:
        while self._at < len(self._line) and not self._doubt:
            self._next()
        return Reading(tuple(self._words), tuple(self._operators), frozenset(self._numbers), self._doubt)

    def _next(self) -> None:
        line, at = self._line, self._at
        char = line[at]
        if line.startswith("\\\n", at):
            self._at += 2
        elif char in " \t":
            self._at += 1
        elif char == "\n":
            self._operator("\n")
        elif char == "#":
            end = line.find("\n", at)
            self._at = len(line) if end < 0 else end
        elif char in _SINGLE:
            self._operator(next((known for known in _OPERATORS if line.startswith(known, at)), char))
        else:
            self._word()

    def _operator(self, text: str) -> None:
        start = self._at
        self._at += len(text)
        self._operators.append(Operator(text, self._bytes[start], self._bytes[self._at]))
        if text in ("<<", "<<-"):
            self._doubt = "it holds a here-document"

    def _word(self) -> None:
        start = self._at
        piece = _Piece(self._line, start)
        piece.read()
        self._doubt = piece.doubt
        self._at = min(piece.at, len(self._line))
        source = self._line[start : self._at]
        end = self._at
        while piece.continues and self._line.endswith("\\\n", start, end):
            end -= 2
        before_redirection = self._at < len(self._line) and self._line[self._at] in "<>"
        if before_redirection and source.isdecimal():
            self._numbers.add(self._bytes[start])
            return
        if before_redirection and re.fullmatch(r"\{\w+\}", source):
            self._doubt = "it opens a descriptor by name"
        self._words.append(piece.word(self._bytes[start], self._bytes[end]))


class _Piece:
    """One word in the making."""

    def __init__(self, line: str, start: int) -> None:
        self._line = line
        self._start = start
        self.at = start
        self.doubt = ""
        self.continues = False
        """Whether the last thing read was the end of a line that goes on."""
        self._text: list[str] = []
        self._bare: list[str] = []
        """The word with every quoted character blanked: what the shell may still expand."""
        self._is_dynamic = False
        self._is_number = False
        self._is_quoted = False

    def word(self, start: int, end: int) -> Word:
        bare = "".join(self._bare)
        is_glob = self._is_number or any(char in bare for char in "*?[")
        return Word(
            "".join(self._text),
            start,
            end,
            is_dynamic=self._is_dynamic or _has_braces(bare),
            is_glob=is_glob,
            may_be_option=bool(_OPENS.match(bare)),
            is_home=bare.startswith("~") or bool(re.match(r"\w+=(.*:)?~", bare)),
            is_quoted=self._is_quoted,
        )

    def read(self) -> None:
        line = self._line
        while self.at < len(line) and not self.doubt:
            char = line[self.at]
            if char in " \t\n" or char in _SINGLE:
                return
            self.continues = line.startswith("\\\n", self.at)
            if char == "\\":
                self._escape()
            elif char == "'":
                self._single()
            elif char == '"':
                self._double()
            elif char == "$":
                self._dollar(in_quotes=False)
            elif char == "`":
                self.doubt = "it runs a command to make a word"
            else:
                self._put(char)
                self.at += 1

    def _put(self, text: str, *, quoted: bool = False) -> None:
        self._text.append(text)
        self._bare.append("\x00" * len(text) if quoted else text)

    def _escape(self) -> None:
        following = self._line[self.at + 1 : self.at + 2]
        self.at += 2
        if not following:
            self.doubt = "it ends in the middle of a word"
        elif following != "\n":
            self._is_quoted = True
            self._put(following, quoted=True)

    def _single(self) -> None:
        end = self._line.find("'", self.at + 1)
        self._is_quoted = True
        if end < 0:
            self.doubt = "a quote is not closed"
            return
        self._put(self._line[self.at + 1 : end], quoted=True)
        self.at = end + 1

    def _double(self) -> None:
        line = self._line
        self._is_quoted = True
        self.at += 1
        while self.at < len(line):
            char = line[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and line[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                following = line[self.at + 1]
                self._put("" if following == "\n" else following, quoted=True)
                self.at += 2
            elif char == "$":
                self._dollar(in_quotes=True)
            elif char == "`":
                self.doubt = "it runs a command to make a word"
                return
            else:
                self._put(char, quoted=True)
                self.at += 1
        self.doubt = "a quote is not closed"

    def _dollar(self, *, in_quotes: bool) -> None:
        following = self._line[self.at + 1 : self.at + 2]
        if following and following in _COUNTED:
            # Always a number: how the last command ended, how many arguments there are, which process this is. As the
            # name of a file it is any.
            self._put("*", quoted=True)
            self._is_number = True
            self.at += 2
            return
        if following and (_DYNAMIC.match(following) or (not in_quotes and following in "'\"")):
            self._is_dynamic = True
        self._put("$", quoted=True)
        self.at += 1
        if self._is_dynamic and following in ("(", "{", "["):
            # Where such an expansion ends is for the grammar to know: nothing after it is read here.
            self.doubt = "it has words that are made while it runs"


def _has_braces(bare: str) -> bool:
    """Whether braces in it may be expanded to several words."""
    inside = bare.partition("{")[2].rpartition("}")[0]
    return "," in inside or ".." in inside
