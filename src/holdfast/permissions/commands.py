"""A shell line, taken apart into the simple commands it would run. Pure.

The grammar (tree-sitter-bash) gives the structure, `words.py` the words; a line is understood only where both
agree and nothing is left to be decided while it runs. Of a line that is not understood the commands are named
all the same, as far as they can be seen, so that a rule that forbids one of them still finds it.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from holdfast.permissions.words import Reading, Word, read_words

__all__ = ["Command", "Line", "Redirection", "parse"]

_LONGEST = 8_192
_DEEPEST = 60
_STATIC = re.compile(r"""'[^']*'|"[^"$`\\]*"|[^\s'"$`\\{*?\[~]+""")
_PARSER = Parser(Language(tree_sitter_bash.language()))

_CONTAINERS = frozenset({"program", "list", "pipeline", "subshell", "compound_statement", "negated_command"})
_GLUE = frozenset({";", "&&", "||", "|", "|&", "&", "(", ")", "{", "}", "!", "\n"})
_ARGUMENTS = frozenset({"word", "string", "raw_string", "concatenation", "number", "simple_expansion"})
_REASONS = {
    "command_substitution": "it runs a command to make a word",
    "process_substitution": "it runs a command to make a file",
    "heredoc_redirect": "it holds a here-document",
    "function_definition": "it defines a function",
    "arithmetic_expansion": "it calculates",
    "expansion": "it has words that are made while it runs",
    "for_statement": "it is a loop",
    "c_style_for_statement": "it is a loop",
    "while_statement": "it is a loop",
    "if_statement": "it depends on a condition",
    "case_statement": "it depends on a condition",
    "test_command": "it depends on a condition",
    "declaration_command": "it changes variables",
    "unset_command": "it changes variables",
}


class Redirection(msgspec.Struct, frozen=True):
    """`operator` is bash's (`>`, `2>` is `>`), `target` a file or a descriptor."""

    operator: str
    target: Word

    @property
    def is_descriptor(self) -> bool:
        """A copy of an open descriptor, or its end: `2>&1`, `<&-`."""
        return self.operator in (">&", "<&") and bool(re.fullmatch(r"\d+-?|-", self.target.text))

    @property
    def reads(self) -> bool:
        return self.operator in ("<", "<&", "<<<")


class Command(msgspec.Struct, frozen=True):
    """One program, or builtin, with its words. Without words it only assigns.

    `is_open`: more words follow that nobody knows yet, such as those `xargs` reads.
    """

    argv: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    is_open: bool = False

    @property
    def name(self) -> str:
        return self.argv[0].text if self.argv else ""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.argv)


class Line(msgspec.Struct, frozen=True):
    """All that a line would do, as far as it can be seen. `doubts` is empty only if that is all of it."""

    commands: tuple[Command, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    doubts: tuple[str, ...] = ()


def parse(line: str) -> Line:
    """Take a line apart. Never fails: what is not understood is a doubt."""
    if len(line) > _LONGEST:
        return Line(doubts=("it is too long to be judged",))
    if not all(char.isprintable() or char in "\n\t" for char in line):
        return Line(doubts=("it holds characters that cannot be seen",))
    return _Walk(line).line()


class _Walk:
    """One way through the tree of a line."""

    def __init__(self, line: str) -> None:
        self._source = line.encode()
        self._reading: Reading = read_words(line)
        self._words = {(word.start, word.end): word for word in self._reading.words}
        self._newlines = [item.start for item in self._reading.operators if item.text == "\n"]
        self._used: set[tuple[int, int]] = set()
        self._operated: set[tuple[int, int]] = set()
        self._commands: list[Command] = []
        self._redirections: list[Redirection] = []
        self._doubts: dict[str, None] = {}

    def line(self) -> Line:
        root = _PARSER.parse(self._source).root_node
        if self._reading.doubt:
            self._doubt(self._reading.doubt)
        if root.has_error:
            self._doubt("it is not valid, or too unusual")
        self._visit(root, 0)
        if not self._doubts:
            self._compare()
        return Line(tuple(self._commands), tuple(self._redirections), tuple(self._doubts))

    def _doubt(self, why: str) -> None:
        self._doubts[why] = None

    def _compare(self) -> None:
        """Both readers saw the same words and the same operators."""
        operators = {(item.start, item.end) for item in self._reading.operators if item.text != "\n"}
        if self._used != self._words.keys() or self._operated != operators:
            self._doubt("it can be read in two ways")

    def _visit(self, node: Node, depth: int) -> None:
        if depth > _DEEPEST:
            self._doubt("it is nested too deeply")
        elif node.type in _CONTAINERS:
            for child in node.children:
                self._part(child, depth)
        elif node.type == "command":
            self._command(node, depth)
        elif node.type == "redirected_statement":
            self._redirected(node, depth)
        elif node.type in ("variable_assignment", "variable_assignments"):
            self._assignments(node, depth)
        elif node.type == "test_command" and self._text(node).startswith("[ "):
            self._test(node, depth)
        elif node.type != "comment":
            self._doubt(_REASONS.get(node.type, "it has a part that is not understood"))
            self._look_inside(node, depth)

    def _part(self, child: Node, depth: int) -> None:
        """A statement, or what stands between statements."""
        if child.is_named:
            self._visit(child, depth + 1)
        elif child.type not in _GLUE:
            self._doubt("it has a part that is not understood")
        else:
            self._take_token(child)

    def _take_token(self, node: Node) -> None:
        span = (node.start_byte, node.end_byte)
        (self._used if span in self._words else self._operated).add(span)

    def _look_inside(self, node: Node, depth: int) -> None:
        """Name the commands that stand somewhere in a part that is not understood."""
        for child in node.children:
            if child.type in ("command", "redirected_statement") or child.type in _CONTAINERS:
                self._visit(child, depth + 1)
            elif depth <= _DEEPEST:
                self._look_inside(child, depth + 1)

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _word(self, node: Node, depth: int) -> Word:
        span = (node.start_byte, node.end_byte)
        word = self._words.get(span)
        if node.type in ("command_substitution", "process_substitution"):
            self._look_inside(node, depth)
        elif node.child_count:
            self._substitutions(node, depth)
        if node.type not in _ARGUMENTS:
            self._doubt(_REASONS.get(node.type, "it has words that are made while it runs"))
        if word is None:
            self._doubt("it can be read in two ways")
            text = self._text(node)
            return Word(text.strip("'\""), *span, is_dynamic=not _STATIC.fullmatch(text))
        if word.is_dynamic:
            self._doubt("it has words that are made while it runs")
        self._used.add(span)
        return word

    def _substitutions(self, node: Node, depth: int) -> None:
        for child in node.children:
            if child.type in ("command_substitution", "process_substitution"):
                self._doubt(_REASONS[child.type])
                self._look_inside(child, depth + 1)
            elif child.child_count and depth <= _DEEPEST:
                self._substitutions(child, depth + 1)

    def _command(self, node: Node, depth: int, extra: Sequence[Word] = ()) -> None:
        argv: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        for child in node.children:
            if child.type == "variable_assignment":
                assignments.append(self._assignment(child, depth))
            elif child.type == "command_name":
                argv.append(self._word(child.children[0] if child.child_count == 1 else child, depth))
            elif child.type.endswith("_redirect"):
                argv += self._redirect(child, depth)
            elif child.is_named:
                argv.append(self._word(child, depth))
            else:
                self._doubt("it has a part that is not understood")
        if bisect_left(self._newlines, node.start_byte) != bisect_left(self._newlines, node.end_byte):
            self._doubt("it can be read in two ways")
        if argv or assignments or extra:
            self._commands.append(Command((*argv, *extra), tuple(assignments)))

    def _redirected(self, node: Node, depth: int) -> None:
        """A redirection at the end of a command; the grammar may have taken words of the command along."""
        body = [child for child in node.children if not child.type.endswith("_redirect")]
        extra: list[Word] = []
        for child in node.children:
            if child.type.endswith("_redirect"):
                extra += self._redirect(child, depth)
        if len(body) == 1 and body[0].type == "command":
            self._command(body[0], depth, extra)
            return
        if extra:
            self._doubt("it can be read in two ways")
        for child in body:
            self._part(child, depth)

    def _redirect(self, node: Node, depth: int) -> list[Word]:
        """Note where it goes; answer the words behind it that belong to the command."""
        if node.type not in ("file_redirect", "herestring_redirect"):
            self._doubt(_REASONS.get(node.type, "it has a part that is not understood"))
            self._look_inside(node, depth)
            return []
        operator = ""
        words: list[Word] = []
        for child in node.children:
            if child.type == "file_descriptor":
                if child.start_byte not in self._reading.numbers:
                    self._doubt("it can be read in two ways")
            elif child.is_named:
                words.append(self._word(child, depth))
            else:
                operator = child.type
                self._operated.add((child.start_byte, child.end_byte))
        if not words:
            self._doubt("it has a part that is not understood")
            return []
        self._redirections.append(Redirection(operator, words[0]))
        return words[1:]

    def _assignment(self, node: Node, depth: int) -> tuple[str, Word]:
        span = (node.start_byte, node.end_byte)
        self._substitutions(node, depth)
        word = self._words.get(span)
        name, sign, value = ("", "", "") if word is None else word.text.partition("=")
        if word is None or word.is_dynamic or not sign or not name.isidentifier() or not name.isascii():
            self._doubt("it changes variables")
            return self._text(node).partition("=")[0], Word(self._text(node), *span, is_dynamic=True)
        self._used.add(span)
        return name, msgspec.structs.replace(word, text=value)

    def _assignments(self, node: Node, depth: int) -> None:
        nodes = [node] if node.type == "variable_assignment" else node.children
        assigned = tuple(self._assignment(child, depth) for child in nodes)
        self._commands.append(Command((), assigned))

    def _test(self, node: Node, depth: int) -> None:
        """`[ … ]` is a command like any other; the grammar makes an expression of it, the words are the shell's."""
        start, end = node.start_byte, node.end_byte
        inside = [word for word in self._reading.words if start <= word.start and word.end <= end]
        is_plain = not any(start <= item.start < end for item in self._reading.operators)
        is_whole = inside and inside[0].text == "[" and inside[-1].text == "]"
        if not is_plain or not is_whole or any(word.is_dynamic for word in inside):
            self._doubt("it depends on a condition")
            self._look_inside(node, depth)
            return
        self._used.update((word.start, word.end) for word in inside)
        self._commands.append(Command(tuple(inside)))
