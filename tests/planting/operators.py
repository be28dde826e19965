"""Mutation operators. Each takes one node of a syntax tree and yields replacements for it.

A replacement shares its unchanged children with the original tree, which is never modified. A statement may be replaced
by a list of statements.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from planting.statements import STATEMENT_OPERATORS, Replacement

__all__ = ["CLAUSES", "KINDS", "OPERATORS", "changed_constant", "default_operator", "with_field"]

Node = TypeVar("Node", bound=ast.AST)

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SMALL = 64
"""Constants up to this size change by one. A change of a larger one by one is rarely visible: it becomes 0."""


def with_field(node: Node, **fields: object) -> Node:
    """Return a shallow copy of the node with some fields replaced."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _without(items: Sequence[Node], index: int) -> list[Node]:
    return [*items[:index], *items[index + 1 :]]


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)


def _clauses(node: ast.AST) -> Iterator[Replacement]:
    """Drop each operand of `and` and `or`."""
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = _without(node.values, index)
            yield rest[0] if len(rest) == 1 else with_field(node, values=rest)


def _negations(node: ast.AST) -> Iterator[Replacement]:
    """Negate a condition; drop a `not`."""
    if isinstance(node, ast.If | ast.IfExp) or (
        isinstance(node, ast.While) and not isinstance(node.test, ast.Constant)
    ):
        yield with_field(node, test=_negated(node.test))
    elif isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            yield with_field(node, ifs=[*node.ifs[:index], _negated(test), *node.ifs[index + 1 :]])
            yield with_field(node, ifs=_without(node.ifs, index))
    elif isinstance(node, ast.match_case) and node.guard is not None:
        yield with_field(node, guard=_negated(node.guard))
        yield with_field(node, guard=None)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def _comparisons(node: ast.AST) -> Iterator[Replacement]:
    """Exchange a comparison operator for its neighbour or its opposite."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if type(operator) in _SWAPPED:
                swapped = _SWAPPED[type(operator)]()
                yield with_field(node, ops=[*node.ops[:index], swapped, *node.ops[index + 1 :]])


def _elements(node: ast.AST) -> Iterator[Replacement]:
    """Drop an element: of a collection used by `in` or `isinstance`, of a key, of alternative patterns."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
        for smaller in _smaller(node.comparators[0]):
            yield with_field(node, comparators=[smaller])
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass"} and len(node.args) == 2:
        for smaller in _smaller(node.args[1]):
            yield with_field(node, args=[node.args[0], smaller])
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load | ast.Store):
        for smaller in _smaller(node.slice):
            yield with_field(node, slice=smaller)
    elif isinstance(node, ast.MatchOr):
        for index in range(len(node.patterns)):
            rest = _without(node.patterns, index)
            yield rest[0] if len(rest) == 1 else with_field(node, patterns=rest)


def _smaller(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Tuple | ast.Set | ast.List) and len(node.elts) > 1:
        for index in range(len(node.elts)):
            yield with_field(node, elts=_without(node.elts, index))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield node.left
        yield node.right


def _arguments(node: ast.AST) -> Iterator[Replacement]:
    """Drop a keyword argument of a call; drop an exception that `suppress` names."""
    if isinstance(node, ast.Call):
        for index in range(len(node.keywords)):
            yield with_field(node, keywords=_without(node.keywords, index))
        if ast.unparse(node.func).endswith("suppress") and len(node.args) > 1:
            for index in range(len(node.args)):
                yield with_field(node, args=_without(node.args, index))


def changed_constant(node: ast.AST) -> Iterator[ast.expr]:
    """Yield other numbers for a number."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return
    number = node.value
    if isinstance(number, int) and abs(number) <= _SMALL:
        yield from (with_field(node, value=number + 1), with_field(node, value=number - 1))
    elif number:
        yield with_field(node, value=type(number)(0))


def _other_default(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Constant):
        return
    match node.value:
        case bool(value):
            yield with_field(node, value=not value)
        case None:
            yield with_field(node, value=0)
        case str(value):
            yield with_field(node, value="" if value else "x")
        case _:
            yield from changed_constant(node)


def _defaults(node: ast.AST) -> Iterator[Replacement]:
    """Change the default of a parameter."""
    if isinstance(node, ast.arguments):
        for field in ("defaults", "kw_defaults"):
            values: list[ast.expr | None] = getattr(node, field)
            for index, value in enumerate(values):
                for other in _other_default(value) if value is not None else ():
                    yield with_field(node, **{field: [*values[:index], other, *values[index + 1 :]]})


def default_operator(node: ast.AST) -> Iterator[Replacement]:
    """Change the value that a field of a class or a name of a module is given."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for other in _other_default(node.value):
            yield with_field(node, value=other)


OPERATORS: dict[str, Callable[[ast.AST], Iterator[Replacement]]] = {
    "clause": _clauses,
    "negation": _negations,
    "comparison": _comparisons,
    "element": _elements,
    "argument": _arguments,
    "constant": changed_constant,
    "default": _defaults,
    **STATEMENT_OPERATORS,
}
"""In this order: a mutant that two operators make counts for the first."""
KINDS = frozenset(OPERATORS)
CLAUSES = frozenset({"clause", "negation"})
