"""The grammar of shell lines: a strict subset of bash, by recursive descent. Pure.

Whatever is outside of the subset ends the reading, and the line counts as not understood. Commands, redirections and
assignments are collected wherever they stand; which of them run, and how often, is not worked out.
"""

import re
from typing import NamedTuple

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from holdfast.permissions.shell_lexer import (
    BLANKS,
    Redirection,
    ShellCommand,
    ShellLine,
    Unreadable,
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
    "ShellCommand",
    "ShellLine",
    "ShellParser",
    "TokenReader",
    "parse",
]


# Blanks, comments, redirections and here-documents of a shell line. Pure.

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


# The grammar of shell lines: a strict subset of bash, by recursive descent. Pure.

_DEEPEST = 40
_EVALUATES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.A)
RESERVED = names("! { } [[ ]] if then elif else fi while until for in do done case esac select function time coproc")


class ShellParser(TokenReader):
    """Recursive descent. Lists end at a parenthesis, at `;;` or at the reserved words their caller names."""

    def __init__(self, text: str, depth: int) -> None:
        super().__init__(text, is_nested=depth > 0)
        self._depth = depth
        self.commands: list[ShellCommand] = []
        self.outer: list[ShellCommand] = []
        self.operators: list[str] = []
        self.repeats = False

    def line(self) -> ShellLine:
        found = tuple(self.commands), tuple(self.redirections), tuple(self.doubts), tuple(self.hidden)
        operators = (*self.operators, *(item.operator for item in self.redirections))
        return ShellLine(*found, repeats=self.repeats, outer=tuple(self.outer), operators=operators)

    def read(self) -> None:
        try:
            self._list(frozenset())
            if self.at < len(self.text) or self.documents:
                raise Unreadable(NOT_VALID)
        except Unreadable as error:
            self.doubt(str(error), hides=True)

    # Substitutions, which words contain.

    def substitution(self) -> None:
        self.enter()
        self.at += 1
        self._list(frozenset())
        self._expect(")")
        self.leave()

    def nested(self, text: str) -> None:
        inner = ShellParser(text, self._depth + 1)
        if self._depth > _DEEPEST:
            raise Unreadable("it is nested too deeply")
        inner.read()
        self.commands += inner.commands
        self.redirections += inner.redirections
        self.doubts |= inner.doubts
        self.hidden |= inner.hidden
        self.outer += inner.outer
        self.operators += inner.operators
        self.repeats = self.repeats or inner.repeats

    # Lists and pipelines.

    def _list(self, ends: frozenset[str]) -> None:
        """Commands up to what ends them; the end itself is not taken."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable("it is nested too deeply")
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
                raise Unreadable(NOT_VALID)
            self.operators.append(operator)
            if operator != "\n":
                self.at += len(operator)
            if operator[0] == "|" or operator == "&&":
                self._more()
        self._depth -= 1

    def _more(self) -> None:
        """Another command has to follow."""
        self.skip(newlines=True)
        if self.at >= len(self.text) or self.peek() in ");&|":
            raise Unreadable(NOT_VALID)

    def _is_end(self, ends: frozenset[str]) -> bool:
        self.skip(newlines=True)
        if self.at >= len(self.text) or self.peek() == ")" or self.peek(2) == ";;":
            return True
        if self.peek() in ";&|":
            raise Unreadable(NOT_VALID)
        return self._reserved() in ends

    def _reserved(self) -> str:
        """The reserved word at the position, which is not taken; empty if there is none."""
        found = re.compile(r"[a-z!{}\[\]]+(?=[\s;&|()<>]|$)").match(self.text, self.at)
        return found[0] if found and found[0] in RESERVED else ""

    def _expect(self, word: str) -> None:
        self.skip(newlines=True)
        if not self.text.startswith(word, self.at) or (word.isalpha() and self._reserved() != word):
            raise Unreadable(NOT_VALID)
        self.at += len(word)

    # Commands.

    def _command(self) -> None:
        while (word := self._reserved()) in ("!", "time"):
            self.at += len(word)
            self.skip()
            if word == "time":
                self.outer.append(ShellCommand((literal("time"),), is_open=True))
            if word == "time" and self.peek() == "-":
                self._time_option()
            if word == "time" and (self.peek() == "(" or self._reserved()):
                self.doubt("it has a part that is not understood")
        if self.peek(2) == "((":
            raise Unreadable("it calculates")
        if word:
            self._compound(word)
        elif self.peek() == "(":
            self.at += 1
            self.operators.append("(")
            self._list(frozenset())
            self._expect(")")
            self._trailing()
        else:
            self._simple()

    def _time_option(self) -> None:
        found = re.compile(r"(-p[ \t]+)?(--[ \t]+)?(?!-)").match(self.text, self.at)
        if found is None:
            raise Unreadable(NOT_VALID)
        self.at = found.end()

    def _compound(self, word: str) -> None:
        self.at += len(word)
        self.operators.append(word)
        if word == "{":
            self._list(frozenset("}"))
            self._expect("}")
        elif word == "if":
            self.doubt("it depends on a condition")
            self._conditional()
        elif word in ("while", "until"):
            self._loop()
        elif word == "for":
            self._for()
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
            raise Unreadable("it has a part that is not understood")
        self._trailing()

    def _conditional(self) -> None:
        self._list(frozenset({"then"}))
        self._expect("then")
        self._list(frozenset({"elif", "else", "fi"}))
        word = self._reserved()
        if word == "elif":
            self._expect("elif")
            self._conditional()
            return
        if word == "else":
            self._expect("else")
            self._list(frozenset({"fi"}))
        self._expect("fi")

    def _loop(self) -> None:
        self.doubt("it is a loop")
        self.repeats = True
        self._list(frozenset({"do"}))
        self._expect("do")
        self._list(frozenset({"done"}))
        self._expect("done")

    def _for(self) -> None:
        self.skip()
        if not re.fullmatch(r"[A-Za-z_]\w*", self.read_word().text, re.A):
            raise Unreadable("it is a loop")
        self.skip(newlines=True)
        if self._reserved() == "in":
            self.at += len("in")
            while not self._is_over():
                self.read_word()
        self.skip()
        if self.peek() == ";":
            self.at += 1
        self.skip(newlines=True)
        if self._reserved() != "do":
            raise Unreadable("it is a loop")
        self._loop()

    def _is_over(self) -> bool:
        """Whether no word follows in this line."""
        self.skip()
        if self.at < len(self.text) and self.peek() in "&|()<>" and self.peek(2) not in ("<(", ">("):
            raise Unreadable(NOT_VALID)
        return self.at >= len(self.text) or self.peek() in "\n;"

    def _case(self) -> None:
        self.doubt("it depends on a condition")
        self.skip()
        self.read_word()
        self._expect("in")
        self.skip(newlines=True)
        while self._reserved() != "esac":
            self._pattern()
            self._list(frozenset({"esac"}))
            if self.peek(2) == ";;":
                self.at += 3 if self.peek(3) == ";;&" else 2
            self.skip(newlines=True)
            if self.at >= len(self.text):
                raise Unreadable(NOT_VALID)
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
                raise Unreadable(NOT_VALID)
            self.at += 1
            if self.text[self.at - 1] == ")":
                return

    def _test(self) -> None:
        """`[[ … ]]`. Comparisons of numbers evaluate their operands, which may run commands."""
        self.doubt("it depends on a condition")
        while True:
            self.skip(newlines=True)
            if self.at >= len(self.text) or self.peek(2) in ("<(", ">("):
                raise Unreadable("it depends on a condition")
            if self._reserved() == "]]":
                self.at += 2
                return
            if self.peek() in "()<>|&;":
                self.at += 1
            elif self.read_word().text in _EVALUATES:
                self.doubt("it depends on a condition", hides=True)

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
                raise Unreadable("it has a part that is not understood")
            if not argv and (found := _assigned(self.text[start : self.at], word)):
                assignments.append(found)
            else:
                argv.append(word)
        if argv and argv[0].text in RESERVED and not argv[0].is_quoted:
            raise Unreadable(NOT_VALID)
        if argv and not argv[0].is_literal and argv[0].text != "[":
            self.doubt("its program is made while it runs", hides=True)
        if argv or assignments:
            self.commands.append(ShellCommand(tuple(argv), tuple(assignments)))

    def _function(self, argv: list[Word], assignments: list[tuple[str, Word]], *, has_keyword: bool = False) -> None:
        found = re.compile(r"\([ \t]*\)").match(self.text, self.at)
        is_named = len(argv) == 1 and not assignments and re.fullmatch(r"[\w-]+", argv[0].text, re.A)
        if not is_named or (found is None and not has_keyword):
            raise Unreadable("it has a part that is not understood")
        self.doubt("it defines a function")
        self.repeats = True
        self.at = self.at if found is None else found.end()
        self.skip(newlines=True)
        if self.peek() != "(" and self._reserved() not in ("{", "if", "while", "until", "for", "case"):
            raise Unreadable("it defines a function")
        self._command()

    # Redirections.

    def _trailing(self) -> None:
        """Behind a compound command only redirections may follow."""
        self.skip()
        while self.redirection():
            self.skip()


def _assigned(source: str, word: Word) -> tuple[str, Word] | None:
    """Name and value, if bash takes the word for an assignment."""
    found = _ASSIGNMENT.match(source)
    if found is None:
        if re.match(r"[A-Za-z_]\w*\[", source, re.A):
            raise Unreadable("it changes variables")
        return None
    if found[2]:
        raise Unreadable("it changes variables")
    return found[1], msgspec.structs.replace(word, text=word.text[found.end() :])


# A shell line, taken apart into the simple commands it would run. Pure.

_LONGEST = 8_192
_PARSER = Parser(Language(tree_sitter_bash.language()))
_STATIC = re.compile(r"[\w./+@%:-]+", re.A)


def parse(line: str) -> ShellLine:
    """Take a line apart. Never fails: what is not understood is a doubt, and hides what it may run."""
    if len(line) > _LONGEST:
        return _unknown("it is too long to be judged")
    if not all(char.isprintable() or char in "\n\t" for char in line):
        return _unknown("it holds characters that cannot be seen")
    grammar = ShellParser(line, 0)
    grammar.read()
    _compare(grammar)
    return grammar.line()


def _unknown(why: str) -> ShellLine:
    return ShellLine(doubts=(why,), hidden=(why,))


def _compare(grammar: ShellParser) -> None:
    """Note where the second parser sees an error, or a program that the grammar has not seen."""
    source = grammar.text.encode()
    root = _PARSER.parse(source).root_node
    if root.has_error:
        grammar.doubt(NOT_VALID)
    known = {command.name for command in grammar.commands}
    unseen = _programs(root, source) - known - RESERVED
    if unseen:
        grammar.doubt(TWO_WAYS, hides=True)
        # Of these the words are not known, but a rule that forbids the program still finds it.
        grammar.commands += [ShellCommand((literal(name),), is_open=True) for name in sorted(unseen)]


def _programs(root: Node, source: bytes) -> set[str]:
    """The programs with a plain name, wherever they stand in the tree."""
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
