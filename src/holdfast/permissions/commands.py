"""A shell line, taken apart into the simple commands it would run. Pure.

The grammar reads a strict subset of bash, and `Line` lists every command, redirection and assignment in it, wherever
they stand: in loops, functions, substitutions. A line outside of the subset is not understood. A second parser
(tree-sitter-bash) reads each line too; a program that only one of them sees makes the line ambiguous.
"""

import re

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from holdfast.permissions.grammar import RESERVED, Grammar
from holdfast.permissions.lines import Command, Line, Redirection
from holdfast.permissions.tokens import NOT_VALID, TWO_WAYS
from holdfast.permissions.words import literal

__all__ = ["Command", "Line", "Redirection", "parse"]

_LONGEST = 8_192
_PARSER = Parser(Language(tree_sitter_bash.language()))
_STATIC = re.compile(r"[\w./+@%:-]+", re.A)


def parse(line: str) -> Line:
    """Take a line apart. Never fails: what is not understood is a doubt, and hides what it may run."""
    if len(line) > _LONGEST:
        return _unknown("it is too long to be judged")
    if not all(char.isprintable() or char in "\n\t" for char in line):
        return _unknown("it holds characters that cannot be seen")
    grammar = Grammar(line, 0)
    grammar.read()
    _compare(grammar)
    return grammar.line()


def _unknown(why: str) -> Line:
    return Line(doubts=(why,), hidden=(why,))


def _compare(grammar: Grammar) -> None:
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
        grammar.commands += [Command((literal(name),), is_open=True) for name in sorted(unseen)]


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
