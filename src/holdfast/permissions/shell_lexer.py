"""Lexer for shell lines: words with quotes and expansions, as bash reads them; and the types of a parsed line. Pure.

The lexer accepts a strict subset of bash. Any other syntax raises `UnsupportedSyntax`, and the line counts as not
understood: it never guesses where a construct ends. Two kinds of findings are recorded:

* an *uncertainty* means that some effect of the line is decided only while it runs, so the line needs approval;
* a *hidden* part is an uncertainty about programs and files: the line may run a program, a nested shell text or a
  redirection that is not among those found, so it cannot be excluded that a deny rule applies.
"""

import re

import msgspec

__all__ = [
    "BLANKS",
    "Redirection",
    "ShellLine",
    "SimpleCommand",
    "UnsupportedSyntax",
    "Word",
    "WordReader",
    "literal",
    "names",
]


BLANKS = " \t"
_ENDS = " \t\n;&|()<>"
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*!_-]", re.A)
_COUNTED = "?$#"
_PARAMETER = re.compile(r"\{(#?[A-Za-z_]\w*|[A-Za-z_]\w*(:?[-=+?]|##?|%%?|//?|\^\^?|,,?)[^$`{}()<>'\"\\\n]*)\}", re.A)
"""Expansions that only substitute text. Subscripts, offsets, indirection and `@` operators may run commands."""
_ARITHMETIC = re.compile(r"\(\([0-9 \t+*/%-]*\)\)")
"""Arithmetic of numbers only: bash also evaluates the value of a variable, which may run commands in a subscript."""
_OPENS = re.compile(r"[*?[]|-[^=]*[*?[]")
_GENERATED_WORDS = "some of its words are generated while it runs"


class UnsupportedSyntax(Exception):
    """The line is outside of the supported subset of bash. The message is the reason, as a clause."""


class Word(msgspec.Struct, frozen=True):
    """A word without its quotes.

    `is_dynamic`: the shell replaces it before a program receives it. `is_glob`: it is a pattern. `may_be_option`: the
    names that match the pattern may be options. `is_home`: it begins with `~`.
    """

    text: str
    is_dynamic: bool = False
    is_glob: bool = False
    may_be_option: bool = False
    is_home: bool = False
    is_quoted: bool = False

    @property
    def is_literal(self) -> bool:
        """True if the program receives exactly this text, as one word."""
        return not (self.is_dynamic or self.is_glob or self.is_home)


def names(text: str) -> frozenset[str]:
    """Return the words of a text, for tables."""
    return frozenset(text.split())


def literal(text: str) -> Word:
    """Return a literal word."""
    return Word(text)


class WordReader:
    """Reads words of `text` from the position `at`. Substitutions are parsed by a subclass."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.uncertainties: dict[str, None] = {}
        self.hidden: dict[str, None] = {}
        self._value: list[str] = []
        self._bare: list[str] = []
        """The word with quoted characters blanked: the part that the shell may still expand."""
        self._is_dynamic = False
        self._is_number = False
        self._is_quoted = False

    def note_uncertainty(self, why: str, *, hides: bool = False) -> None:
        """Record the reason of an uncertainty. `hides`: a program, a text or a file may not be among those found."""
        self.uncertainties[why] = None
        if hides:
            self.hidden[why] = None

    def peek(self, length: int = 1) -> str:
        """Return the next characters without advancing."""
        return self.text[self.at : self.at + length]

    def substitution(self) -> None:
        """Parse `(…)` as commands. The position is at the parenthesis."""
        raise NotImplementedError

    def nested(self, text: str) -> None:
        """Parse the text between backquotes as commands."""
        raise NotImplementedError

    def read_word(self) -> Word:
        """Return the word at the position; a word with empty text and no quotes if there is none."""
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
            self.note_uncertainty(_GENERATED_WORDS)
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
            self._expand("it runs a command to generate a file")
            self.substitution()
        elif char in _ENDS:
            return False
        elif char == "\\":
            return self._escape()
        elif char == "'":
            self._single_quoted()
        elif char == '"':
            self._double_quoted()
        elif char == "$":
            self._dollar(in_quotes=False)
        elif char == "`":
            self._backquote()
        else:
            self._append(char)
            self.at += 1
        return True

    def _append(self, text: str, *, quoted: bool = False) -> None:
        self._value.append(text)
        self._bare.append("\x00" * len(text) if quoted else text)

    def _expand(self, why: str = _GENERATED_WORDS) -> None:
        self._is_dynamic = True
        self.note_uncertainty(why)
        self._append("$", quoted=True)

    def _escape(self) -> bool:
        following = self.text[self.at + 1 : self.at + 2]
        if not following:
            raise UnsupportedSyntax("it ends in the middle of a word")
        if following == "\n":
            # Bash joins the lines before it splits words, which is harmless only after the end of a word.
            if self.text[self.at + 2 : self.at + 3] in (" ", "\t"):
                return False
            raise UnsupportedSyntax("a word continues on the next line")
        self._is_quoted = True
        self._append(following, quoted=True)
        self.at += 2
        return True

    def _single_quoted(self) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise UnsupportedSyntax("a quote is not closed")
        self._is_quoted = True
        self._append(self.text[self.at + 1 : end], quoted=True)
        self.at = end + 1

    def _double_quoted(self) -> None:
        self._is_quoted = True
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            following = self.text[self.at + 1 : self.at + 2]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and following and following in '$`"\\\n':
                self._append("" if following == "\n" else following, quoted=True)
                self.at += 2
            elif char == "$":
                self._dollar(in_quotes=True)
            elif char == "`":
                self._backquote()
            else:
                self._append(char, quoted=True)
                self.at += 1
        raise UnsupportedSyntax("a quote is not closed")

    def _backquote(self) -> None:
        end = self.text.find("`", self.at + 1)
        inner = self.text[self.at + 1 : end]
        if end < 0 or any(char in inner for char in "\\'\""):
            # Quotes and backslashes between backquotes have rules of their own.
            raise UnsupportedSyntax("it runs a command to generate a word")
        self._expand("it runs a command to generate a word")
        self.at = end + 1
        self.nested(inner)

    def _dollar(self, *, in_quotes: bool) -> None:
        self.at += 1
        following = self.peek()
        if self.text.startswith("\\\n", self.at):
            raise UnsupportedSyntax("an expansion continues on the next line")
        if following and following in _COUNTED:
            # Always a number: exit status, number of arguments, process id. As part of a file name it can be any
            # number, like a pattern.
            self._append("*", quoted=True)
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
                self._double_quoted()
        elif found := _NAME.match(self.text, self.at):
            self._expand()
            self.at = found.end()
        else:
            self._append("$", quoted=True)

    def _bracket(self) -> None:
        if self.text.startswith("((", self.at):
            found = _ARITHMETIC.match(self.text, self.at)
            if found is None:
                raise UnsupportedSyntax("it calculates")
            self._expand("it calculates")
            self.at = found.end()
        elif self.peek() == "(":
            self._expand("it runs a command to generate a word")
            self.substitution()
        else:
            found = _PARAMETER.match(self.text, self.at)
            if found is None:
                raise UnsupportedSyntax(_GENERATED_WORDS)
            self._expand()
            self.at = found.end()

    def _escaped_string(self) -> None:
        """Skip `$'…'`. Its escapes are not decoded; the word is dynamic."""
        found = re.compile(r"'(?:[^'\\]|\\.)*'", re.S).match(self.text, self.at)
        if found is None:
            raise UnsupportedSyntax("a quote is not closed")
        self.at = found.end()


def _has_braces(bare: str) -> bool:
    """Return True if brace expansion may turn the word into several."""
    inside = bare.partition("{")[2].rpartition("}")[0]
    return "," in inside or ".." in inside


class Redirection(msgspec.Struct, frozen=True):
    """A redirection. `operator` is without the descriptor (`2>` is `>`), `target` a file, a descriptor or a text."""

    operator: str
    target: Word

    @property
    def is_descriptor(self) -> bool:
        """True for a copy of one of the three standard descriptors: `2>&1`."""
        return self.operator in (">&", "<&") and self.target.text in ("0", "1", "2") and not self.target.is_glob

    @property
    def is_text(self) -> bool:
        """True for a here-document or a here-string."""
        return self.operator in ("<<<", "<<", "<<-")


class SimpleCommand(msgspec.Struct, frozen=True):
    """A program or builtin with its words. Without words it consists of assignments only.

    `is_open`: unknown words follow, such as those that `xargs` reads. `is_fed`: its input is a pipe, a file or a text
    of the line, which may be a program (`… | python3`).
    """

    argv: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    is_open: bool = False
    is_fed: bool = False

    @property
    def name(self) -> str:
        """The program as it is written, or an empty string."""
        return self.argv[0].text if self.argv else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the words."""
        return tuple(word.text for word in self.argv)


class ShellLine(msgspec.Struct, frozen=True):
    """All commands and redirections of a line.

    `uncertainties` is empty only if all effects are determined before the line runs; `hidden` is empty only if every
    program, nested shell text and redirection target is among those found.
    """

    commands: tuple[SimpleCommand, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    uncertainties: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    repeats: bool = False
    """True if parts of the line may run more than once, or in another order."""
    outer: tuple[SimpleCommand, ...] = ()
    """Further commands for deny and ask rules: the wrappers and shells that were replaced by the commands inside, and
    commands that the words of opaque wrappers may be.
    """
    operators: tuple[str, ...] = ()
    """Operators between commands and of redirections, in no particular order."""
