"""Words of a shell line, read character by character as bash reads them. Pure.

The reader accepts a strict subset of bash: whatever is outside of it raises `Unreadable`, and the line counts as not
understood. It never guesses where a construct ends. Two kinds of remarks are kept apart:

* a *doubt* keeps a line from running without approval: something is decided only while the line runs;
* a *hidden* part is a doubt of another weight: a program, the text of a nested shell or the target of a redirection may
  be one that is not among those that were found, so that no deny rule can be said not to apply.
"""

import re

import msgspec

__all__ = ["BLANKS", "Redirection", "ShellCommand", "ShellLine", "Unreadable", "Word", "WordReader", "literal", "names"]


BLANKS = " \t"
_ENDS = " \t\n;&|()<>"
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*!_-]", re.A)
_COUNTED = "?$#"
_PARAMETER = re.compile(r"\{(#?[A-Za-z_]\w*|[A-Za-z_]\w*(:?[-=+?]|##?|%%?|//?|\^\^?|,,?)[^$`{}()<>'\"\\\n]*)\}", re.A)
"""The expansions that only substitute text. Subscripts, offsets, indirection and `@` operators may run commands."""
_ARITHMETIC = re.compile(r"\(\([0-9 \t+*/%-]*\)\)")
"""Of numbers alone: the value of a variable is evaluated too, and may run commands in a subscript."""
_OPENS = re.compile(r"[*?[]|-[^=]*[*?[]")
_MADE = "it has words that are made while it runs"


class Unreadable(Exception):
    """The line leaves the subset of bash that is understood; the message is the reason, as a clause."""


class Word(msgspec.Struct, frozen=True):
    """A word without its quotes.

    `is_dynamic`: the shell makes something else of it before a program sees it. `may_be_option`: it is a pattern, and
    the name of a file may make any option of it, or several.
    """

    text: str
    is_dynamic: bool = False
    is_glob: bool = False
    may_be_option: bool = False
    is_home: bool = False
    is_quoted: bool = False

    @property
    def is_literal(self) -> bool:
        """Whether the program gets exactly this text, as one word."""
        return not (self.is_dynamic or self.is_glob or self.is_home)


def names(text: str) -> frozenset[str]:
    """The words of a list, for tables."""
    return frozenset(text.split())


def literal(text: str) -> Word:
    """A word that stands for itself."""
    return Word(text)


class WordReader:
    """Reads words of `text` from the position `at` on. Substitutions are read by the grammar, which is a subclass."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.doubts: dict[str, None] = {}
        self.hidden: dict[str, None] = {}
        self._value: list[str] = []
        self._bare: list[str] = []
        """The word with every quoted character blanked: what the shell may still expand."""
        self._is_dynamic = False
        self._is_number = False
        self._is_quoted = False

    def doubt(self, why: str, *, hides: bool = False) -> None:
        self.doubts[why] = None
        if hides:
            self.hidden[why] = None

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def substitution(self) -> None:
        """Read `(…)` as commands, with the position at the parenthesis."""
        raise NotImplementedError

    def nested(self, text: str) -> None:
        """Read a text between backquotes as commands."""
        raise NotImplementedError

    def read_word(self) -> Word:
        """The word at the position; empty text and no quotes if there is none."""
        outer = self._value, self._bare, self._is_dynamic, self._is_number, self._is_quoted
        self._value, self._bare, self._is_dynamic, self._is_number, self._is_quoted = [], [], False, False, False
        try:
            while self.at < len(self.text) and self._piece():
                pass
            return self._word()
        finally:
            self._value, self._bare, self._is_dynamic, self._is_number, self._is_quoted = outer

    def _word(self) -> Word:
        bare = "".join(self._bare)
        is_dynamic = self._is_dynamic or _has_braces(bare)
        if is_dynamic:
            self.doubt(_MADE)
        return Word(
            "".join(self._value),
            is_dynamic=is_dynamic,
            is_glob=self._is_number or any(char in bare for char in "*?["),
            may_be_option=bool(_OPENS.match(bare)),
            is_home=bare.startswith("~") or bool(re.match(r"\w+=(.*:)?~", bare)),
            is_quoted=self._is_quoted,
        )

    def _piece(self) -> bool:
        """Read one part of a word. False where the word ends."""
        char = self.text[self.at]
        if self.peek(2) in ("<(", ">("):
            self.at += 1
            self._expand("it runs a command to make a file")
            self.substitution()
        elif char in _ENDS:
            return False
        elif char == "\\":
            return self._escape()
        elif char == "'":
            self._single()
        elif char == '"':
            self._double()
        elif char == "$":
            self._dollar(in_quotes=False)
        elif char == "`":
            self._backquote()
        else:
            self._put(char)
            self.at += 1
        return True

    def _put(self, text: str, *, quoted: bool = False) -> None:
        self._value.append(text)
        self._bare.append("\x00" * len(text) if quoted else text)

    def _expand(self, why: str = _MADE) -> None:
        self._is_dynamic = True
        self.doubt(why)
        self._put("$", quoted=True)

    def _escape(self) -> bool:
        following = self.text[self.at + 1 : self.at + 2]
        if not following:
            raise Unreadable("it ends in the middle of a word")
        if following == "\n":
            # Bash joins the lines before it looks at the words: only where a word has ended does that change nothing.
            if self.text[self.at + 2 : self.at + 3] in (" ", "\t"):
                return False
            raise Unreadable("a word goes on in the next line")
        self._is_quoted = True
        self._put(following, quoted=True)
        self.at += 2
        return True

    def _single(self) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Unreadable("a quote is not closed")
        self._is_quoted = True
        self._put(self.text[self.at + 1 : end], quoted=True)
        self.at = end + 1

    def _double(self) -> None:
        self._is_quoted = True
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            following = self.text[self.at + 1 : self.at + 2]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and following and following in '$`"\\\n':
                self._put("" if following == "\n" else following, quoted=True)
                self.at += 2
            elif char == "$":
                self._dollar(in_quotes=True)
            elif char == "`":
                self._backquote()
            else:
                self._put(char, quoted=True)
                self.at += 1
        raise Unreadable("a quote is not closed")

    def _backquote(self) -> None:
        end = self.text.find("`", self.at + 1)
        inner = self.text[self.at + 1 : end]
        if end < 0 or any(char in inner for char in "\\'\""):
            # Quotes and backslashes between backquotes are read by rules of their own.
            raise Unreadable("it runs a command to make a word")
        self._expand("it runs a command to make a word")
        self.at = end + 1
        self.nested(inner)

    def _dollar(self, *, in_quotes: bool) -> None:
        self.at += 1
        following = self.peek()
        if self.text.startswith("\\\n", self.at):
            raise Unreadable("an expansion goes on in the next line")
        if following and following in _COUNTED:
            # Always a number: how the last command ended, how many arguments there are, which process this is. As the
            # name of a file it is any.
            self._put("*", quoted=True)
            self._is_number = True
            self.at += 1
        elif following and following in "({[":
            self._bracket()
        elif following and following in "'\"" and not in_quotes:
            self._expand()
            self._is_quoted = True
            if following == "'":
                self._escaped_string()
            else:
                self._double()
        elif found := _NAME.match(self.text, self.at):
            self._expand()
            self.at = found.end()
        else:
            self._put("$", quoted=True)

    def _bracket(self) -> None:
        if self.text.startswith("((", self.at):
            found = _ARITHMETIC.match(self.text, self.at)
            if found is None:
                raise Unreadable("it calculates")
            self._expand("it calculates")
            self.at = found.end()
        elif self.peek() == "(":
            self._expand("it runs a command to make a word")
            self.substitution()
        else:
            found = _PARAMETER.match(self.text, self.at)
            if found is None:
                raise Unreadable(_MADE)
            self._expand()
            self.at = found.end()

    def _escaped_string(self) -> None:
        """`$'…'`: what it stands for is not worked out here."""
        found = re.compile(r"'(?:[^'\\]|\\.)*'", re.S).match(self.text, self.at)
        if found is None:
            raise Unreadable("a quote is not closed")
        self.at = found.end()


def _has_braces(bare: str) -> bool:
    """Whether braces in it may be expanded to several words."""
    inside = bare.partition("{")[2].rpartition("}")[0]
    return "," in inside or ".." in inside


# The parts of a shell line: commands, redirections, doubts. Pure.


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


class ShellCommand(msgspec.Struct, frozen=True):
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


class ShellLine(msgspec.Struct, frozen=True):
    """All commands of a line. `doubts` is empty only if nothing is decided while it runs; `hidden` is empty only if
    every program, every nested shell text and every redirection target is among those found.
    """

    commands: tuple[ShellCommand, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    doubts: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    repeats: bool = False
    """Whether parts of it may run more than once, or in another order."""
    outer: tuple[ShellCommand, ...] = ()
    """For rules that forbid: the wrappers and shells whose place the commands inside have taken, and commands that the
    words of others may be.
    """
    operators: tuple[str, ...] = ()
    """What stands between commands and before the targets of redirections, in no particular order."""
