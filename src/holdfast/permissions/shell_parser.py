"""Recursive-descent parser for shell lines: a strict subset of bash. Pure.

Any other syntax ends the parse, and the line counts as not understood. Commands, redirections and assignments are
collected from all branches; which of them run, and how often, is not determined. The result is compared with that of a
second, independent parser (tree-sitter): where the two differ, the line is uncertain.
"""

import re
from typing import NamedTuple

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from holdfast.permissions.shell_lexer import (
    BLANKS,
    Redirection,
    ShellLine,
    SimpleCommand,
    UnsupportedSyntax,
    Word,
    WordReader,
    literal,
    names,
)

__all__ = [
    "NOT_VALID",
    "RESERVED",
    "TWO_WAYS",
    "Redirection",
    "ShellLine",
    "ShellParser",
    "SimpleCommand",
    "TokenReader",
    "parse",
]


_OPERATORS = ("&>>", "<<<", "<<-", "&>", ">>", ">&", "<&", ">|", "<>", "<<", ">", "<")
_NUMBER = re.compile(r"\d+(?=[<>])", re.A)
_DELIMITER = re.compile(r"[\w.%+:-]+", re.A)
_EXPANDS = re.compile(r"`|\$[({\[]|\\\n")
_DOCUMENT = "it contains a here-document"
NOT_VALID = "it is not valid, or too unusual"
TWO_WAYS = "it can be read in two ways"


class _Document(NamedTuple):
    """A here-document whose lines follow. `start` is the position of its operator."""

    delimiter: str
    strips: bool
    is_quoted: bool
    start: int


def _is_balanced(body: str) -> bool:
    """Return True if parentheses are balanced and there are no quotes."""
    depth = 0
    for char in body:
        depth += (char == "(") - (char == ")")
        if depth < 0 or char in "'\"\\`":
            return False
    return depth == 0


class TokenReader(WordReader):
    """Reads blanks, comments, redirections and here-documents. `is_nested`: the text was between backquotes."""

    def __init__(self, text: str, *, is_nested: bool = False) -> None:
        super().__init__(text)
        self.redirections: list[Redirection] = []
        self.documents: list[_Document] = []
        """Here-documents whose lines have not been read yet."""
        self._is_nested = is_nested
        self._substitutions = 0

    def enter(self) -> None:
        """Begin a substitution. A here-document must not be open at its borders: the position of its lines would be
        uncertain.
        """
        if self.documents:
            raise UnsupportedSyntax(_DOCUMENT)
        self._substitutions += 1

    def leave(self) -> None:
        """End a substitution."""
        if self.documents:
            raise UnsupportedSyntax(_DOCUMENT)
        self._substitutions -= 1

    def skip(self, *, newlines: bool = False) -> None:
        """Skip blanks and comments, and with `newlines` also line breaks and here-documents."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in BLANKS:
                self.at += 1
            elif self.peek(2) == "\\\n":
                before = self.text[self.at - 1 : self.at]
                if before and before not in " \t\n" and self.text[self.at + 2 : self.at + 3] not in (" ", "\t"):
                    raise UnsupportedSyntax("a word continues on the next line")
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
                raise UnsupportedSyntax(_DOCUMENT)
            self._read_document(document)

    def redirection(self) -> bool:
        """Read a redirection. Return False if there is none at the position."""
        start = self.at
        if found := _NUMBER.match(self.text, self.at):
            self.at = found.end()
            if self.peek(2) in ("<(", ">("):
                raise UnsupportedSyntax(TWO_WAYS)
        operator = next((known for known in _OPERATORS if self.text.startswith(known, self.at)), "")
        if not operator or (operator in "<>" and self.peek(2) in ("<(", ">(") and self.at == start):
            self.at = start
            return False
        self.at += len(operator)
        self.skip()
        begin = self.at
        target = self.read_word()
        if self.at == begin:
            raise UnsupportedSyntax(NOT_VALID)
        self.redirections.append(Redirection(operator, target))
        if operator in ("<<", "<<-"):
            self._begin_document(target, strips=operator == "<<-", start=start)
        elif operator != "<<<" and not target.is_literal:
            self.note_uncertainty("it writes to a file whose name is generated while it runs", hides=True)
        return True

    def _begin_document(self, delimiter: Word, *, strips: bool, start: int) -> None:
        self.note_uncertainty(_DOCUMENT)
        if self._is_nested or not delimiter.is_literal or not _DELIMITER.fullmatch(delimiter.text):
            raise UnsupportedSyntax(_DOCUMENT)
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
        raise UnsupportedSyntax(_DOCUMENT)

    def _check_document(self, document: _Document, body: str) -> None:
        if not document.is_quoted and _EXPANDS.search(body):
            self.note_uncertainty(_DOCUMENT, hides=True)
        if self._substitutions and not (document.is_quoted and _is_balanced(body)):
            # Old versions of bash also search the document for the end of the substitution.
            self.note_uncertainty(_DOCUMENT, hides=True)


_MAX_DEPTH = 40
_EVALUATES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.A)
RESERVED = names("! { } [[ ]] if then elif else fi while until for in do done case esac select function time coproc")


class ShellParser(TokenReader):
    """The parser. Command lists end at a parenthesis, at `;;` or at the reserved words that the caller names."""

    def __init__(self, text: str, depth: int) -> None:
        super().__init__(text, is_nested=depth > 0)
        self._depth = depth
        self.commands: list[SimpleCommand] = []
        self.outer: list[SimpleCommand] = []
        self.operators: list[str] = []
        self.repeats = False

    def line(self) -> ShellLine:
        """Return the commands and redirections found so far."""
        found = tuple(self.commands), tuple(self.redirections), tuple(self.uncertainties), tuple(self.hidden)
        operators = (*self.operators, *(item.operator for item in self.redirections))
        return ShellLine(*found, repeats=self.repeats, outer=tuple(self.outer), operators=operators)

    def read(self) -> None:
        """Parse the whole text. Unsupported syntax is recorded as an uncertainty that hides commands."""
        try:
            self._list(frozenset())
            if self.at < len(self.text) or self.documents:
                raise UnsupportedSyntax(NOT_VALID)
        except UnsupportedSyntax as error:
            self.note_uncertainty(str(error), hides=True)

    def substitution(self) -> None:
        """Parse `(…)` as commands. The position is at the parenthesis."""
        self.enter()
        self.at += 1
        self._list(frozenset())
        self._expect(")")
        self.leave()

    def nested(self, text: str) -> None:
        """Parse the text between backquotes as commands."""
        inner = ShellParser(text, self._depth + 1)
        if self._depth > _MAX_DEPTH:
            raise UnsupportedSyntax("it is nested too deeply")
        inner.read()
        self.commands += inner.commands
        self.redirections += inner.redirections
        self.uncertainties |= inner.uncertainties
        self.hidden |= inner.hidden
        self.outer += inner.outer
        self.operators += inner.operators
        self.repeats = self.repeats or inner.repeats

    def _list(self, ends: frozenset[str]) -> None:
        """Parse commands up to the end of the list, which is not consumed."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedSyntax("it is nested too deeply")
        operator = ""
        while not self._is_end(ends):
            first, redirected = len(self.commands), len(self.redirections)
            self._command()
            reads = any(item.operator.startswith("<") for item in self.redirections[redirected:])
            if reads or operator in ("|", "|&"):
                self.commands[first:] = [msgspec.structs.replace(item, is_fed=True) for item in self.commands[first:]]
            self.skip()
            if self.at >= len(self.text) or self.peek() == ")" or self.peek(2) == ";;":
                break
            operator = self.peek(2) if self.peek(2) in ("&&", "||", "|&") else self.peek()
            if operator not in ("&&", "||", "|&", "|", ";", "&", "\n"):
                raise UnsupportedSyntax(NOT_VALID)
            self.operators.append(operator)
            if operator != "\n":
                self.at += len(operator)
            if operator[0] == "|" or operator == "&&":
                self._require_command()
        self._depth -= 1

    def _require_command(self) -> None:
        """Require that another command follows."""
        self.skip(newlines=True)
        if self.at >= len(self.text) or self.peek() in ");&|":
            raise UnsupportedSyntax(NOT_VALID)

    def _is_end(self, ends: frozenset[str]) -> bool:
        self.skip(newlines=True)
        if self.at >= len(self.text) or self.peek() == ")" or self.peek(2) == ";;":
            return True
        if self.peek() in ";&|":
            raise UnsupportedSyntax(NOT_VALID)
        return self._peek_reserved() in ends

    def _peek_reserved(self) -> str:
        """Return the reserved word at the position without consuming it; empty if there is none."""
        found = re.compile(r"[a-z!{}\[\]]+(?=[\s;&|()<>]|$)").match(self.text, self.at)
        return found[0] if found and found[0] in RESERVED else ""

    def _expect(self, word: str) -> None:
        self.skip(newlines=True)
        if not self.text.startswith(word, self.at) or (word.isalpha() and self._peek_reserved() != word):
            raise UnsupportedSyntax(NOT_VALID)
        self.at += len(word)

    def _command(self) -> None:
        while (word := self._peek_reserved()) in ("!", "time"):
            self.at += len(word)
            self.skip()
            if word == "time":
                self.outer.append(SimpleCommand((literal("time"),), is_open=True))
            if word == "time" and self.peek() == "-":
                self._time_option()
            if word == "time" and (self.peek() == "(" or self._peek_reserved()):
                self.note_uncertainty("it has a part that is not understood")
        if self.peek(2) == "((":
            raise UnsupportedSyntax("it calculates")
        if word:
            self._compound(word)
        elif self.peek() == "(":
            self.at += 1
            self.operators.append("(")
            self._list(frozenset())
            self._expect(")")
            self._trailing_redirections()
        else:
            self._simple()

    def _time_option(self) -> None:
        found = re.compile(r"(-p[ \t]+)?(--[ \t]+)?(?!-)").match(self.text, self.at)
        if found is None:
            raise UnsupportedSyntax(NOT_VALID)
        self.at = found.end()

    def _compound(self, word: str) -> None:
        self.at += len(word)
        self.operators.append(word)
        if word == "{":
            self._list(frozenset("}"))
            self._expect("}")
        elif word == "if":
            self.note_uncertainty("it depends on a condition")
            self._conditional()
        elif word in ("while", "until"):
            self._loop()
        elif word == "for":
            self._for_loop()
        elif word == "case":
            self._case()
        elif word == "[[":
            self._test()
        elif word == "function":
            self.skip()
            name = self.read_word()
            self.skip()
            self._function([name], [], has_keyword=True)
            return
        else:
            raise UnsupportedSyntax("it has a part that is not understood")
        self._trailing_redirections()

    def _conditional(self) -> None:
        self._list(frozenset({"then"}))
        self._expect("then")
        self._list(frozenset({"elif", "else", "fi"}))
        word = self._peek_reserved()
        if word == "elif":
            self._expect("elif")
            self._conditional()
            return
        if word == "else":
            self._expect("else")
            self._list(frozenset({"fi"}))
        self._expect("fi")

    def _loop(self) -> None:
        self.note_uncertainty("it is a loop")
        self.repeats = True
        self._list(frozenset({"do"}))
        self._expect("do")
        self._list(frozenset({"done"}))
        self._expect("done")

    def _for_loop(self) -> None:
        self.skip()
        if not re.fullmatch(r"[A-Za-z_]\w*", self.read_word().text, re.A):
            raise UnsupportedSyntax("it is a loop")
        self.skip(newlines=True)
        if self._peek_reserved() == "in":
            self.at += len("in")
            while not self._is_over():
                self.read_word()
        self.skip()
        if self.peek() == ";":
            self.at += 1
        self.skip(newlines=True)
        if self._peek_reserved() != "do":
            raise UnsupportedSyntax("it is a loop")
        self._loop()

    def _is_over(self) -> bool:
        """Return True if no word follows on this line."""
        self.skip()
        if self.at < len(self.text) and self.peek() in "&|()<>" and self.peek(2) not in ("<(", ">("):
            raise UnsupportedSyntax(NOT_VALID)
        return self.at >= len(self.text) or self.peek() in "\n;"

    def _case(self) -> None:
        self.note_uncertainty("it depends on a condition")
        self.skip()
        self.read_word()
        self._expect("in")
        self.skip(newlines=True)
        while self._peek_reserved() != "esac":
            self._pattern()
            self._list(frozenset({"esac"}))
            if self.peek(2) == ";;":
                self.at += 3 if self.peek(3) == ";;&" else 2
            self.skip(newlines=True)
            if self.at >= len(self.text):
                raise UnsupportedSyntax(NOT_VALID)
        self._expect("esac")

    def _pattern(self) -> None:
        if self.peek() == "(":
            self.at += 1
        while True:
            self.skip()
            start = self.at
            self.read_word()
            self.skip()
            if self.at == start or self.peek() not in ("|", ")"):
                raise UnsupportedSyntax(NOT_VALID)
            self.at += 1
            if self.text[self.at - 1] == ")":
                return

    def _test(self) -> None:
        """Parse `[[ … ]]`. Numeric comparisons evaluate their operands, which may run commands."""
        self.note_uncertainty("it depends on a condition")
        while True:
            self.skip(newlines=True)
            if self.at >= len(self.text) or self.peek(2) in ("<(", ">("):
                raise UnsupportedSyntax("it depends on a condition")
            if self._peek_reserved() == "]]":
                self.at += 2
                return
            if self.peek() in "()<>|&;":
                self.at += 1
            elif self.read_word().text in _EVALUATES:
                self.note_uncertainty("it depends on a condition", hides=True)

    def _simple(self) -> None:
        argv: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        while True:
            self.skip()
            if self.at >= len(self.text) or self.peek() == "\n" or (self.peek() in ";&|)" and self.peek(2) != "&>"):
                break
            if self.peek() == "(":
                self._function(argv, assignments)
                return
            if self.redirection():
                continue
            start = self.at
            word = self.read_word()
            if self.at == start or (self.peek() in ("<", ">") and re.fullmatch(r"\{\w+\}", self.text[start : self.at])):
                raise UnsupportedSyntax("it has a part that is not understood")
            if not argv and (found := _split_assignment(self.text[start : self.at], word)):
                assignments.append(found)
            else:
                argv.append(word)
        if argv and argv[0].text in RESERVED and not argv[0].is_quoted:
            raise UnsupportedSyntax(NOT_VALID)
        if argv and not argv[0].is_literal and argv[0].text != "[":
            self.note_uncertainty("its program is generated while it runs", hides=True)
        if argv or assignments:
            self.commands.append(SimpleCommand(tuple(argv), tuple(assignments)))

    def _function(self, argv: list[Word], assignments: list[tuple[str, Word]], *, has_keyword: bool = False) -> None:
        found = re.compile(r"\([ \t]*\)").match(self.text, self.at)
        is_named = len(argv) == 1 and not assignments and re.fullmatch(r"[\w-]+", argv[0].text, re.A)
        if not is_named or (found is None and not has_keyword):
            raise UnsupportedSyntax("it has a part that is not understood")
        self.note_uncertainty("it defines a function")
        self.repeats = True
        self.at = self.at if found is None else found.end()
        self.skip(newlines=True)
        if self.peek() != "(" and self._peek_reserved() not in ("{", "if", "while", "until", "for", "case"):
            raise UnsupportedSyntax("it defines a function")
        self._command()

    def _trailing_redirections(self) -> None:
        """Read the redirections after a compound command."""
        self.skip()
        while self.redirection():
            self.skip()


def _split_assignment(source: str, word: Word) -> tuple[str, Word] | None:
    """Return name and value if bash treats the word as an assignment, else None."""
    found = _ASSIGNMENT.match(source)
    if found is None:
        if re.match(r"[A-Za-z_]\w*\[", source, re.A):
            raise UnsupportedSyntax("it changes variables")
        return None
    if found[2]:
        raise UnsupportedSyntax("it changes variables")
    return found[1], msgspec.structs.replace(word, text=word.text[found.end() :])


_MAX_LENGTH = 8_192
_PARSER = Parser(Language(tree_sitter_bash.language()))
_STATIC = re.compile(r"[\w./+@%:-]+", re.A)


def parse(line: str) -> ShellLine:
    """Parse a line. Never raises: a line that is not understood is uncertain and hides commands."""
    if len(line) > _MAX_LENGTH:
        return _uncertain_line("it is too long to be analysed")
    if not all(char.isprintable() or char in "\n\t" for char in line):
        return _uncertain_line("it contains invisible characters")
    grammar = ShellParser(line, 0)
    grammar.read()
    _compare(grammar)
    return grammar.line()


def _uncertain_line(why: str) -> ShellLine:
    return ShellLine(uncertainties=(why,), hidden=(why,))


def _compare(grammar: ShellParser) -> None:
    """Record an uncertainty if the second parser finds an error, or a program that this parser has not found."""
    source = grammar.text.encode()
    root = _PARSER.parse(source).root_node
    if root.has_error:
        grammar.note_uncertainty(NOT_VALID)
    known = {command.name for command in grammar.commands}
    unseen = _program_names(root, source) - known - RESERVED
    if unseen:
        grammar.note_uncertainty(TWO_WAYS, hides=True)
        # The words of these programs are not known, but a deny rule for the program still matches.
        grammar.commands += [SimpleCommand((literal(name),), is_open=True) for name in sorted(unseen)]


def _program_names(root: Node, source: bytes) -> set[str]:
    """Return the programs with a literal name in a syntax tree."""
    found: set[str] = set()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node.type == "command_name":
            name = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
            if _STATIC.fullmatch(name):
                found.add(name)
        nodes += node.children
    return found
