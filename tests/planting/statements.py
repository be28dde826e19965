"""Mutation operators for statements: dropped, moved, or no longer run in every case."""

import ast
import copy
from collections.abc import Callable, Iterator
from itertools import pairwise

__all__ = ["STATEMENT_OPERATORS", "Replacement"]

Replacement = ast.AST | list[ast.stmt]

_BODIES = ("body", "orelse", "finalbody")
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def _with_body(node: ast.AST, field: str, body: list[ast.stmt]) -> ast.AST:
    changed = copy.copy(node)
    if not body and field != "orelse":
        old: list[ast.stmt] = getattr(node, field)
        body = [ast.copy_location(ast.Pass(), old[0])]
    setattr(changed, field, body)
    return changed


def _bodies(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    if isinstance(node, ast.expr):
        return  # A lambda has a body, an `x if y else z` an `orelse`: neither is a list.
    for field in _BODIES:
        body = getattr(node, field, None)
        if isinstance(body, list) and body:
            yield field, body


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_suspension(statement: ast.stmt) -> bool:
    """Without its `yield` a generator is another kind of function, which every test detects."""
    return any(isinstance(child, ast.Yield | ast.YieldFrom) for child in ast.walk(statement))


def _is_never_reached(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("assert_never(")


def _is_effect(statement: ast.stmt) -> bool:
    if _is_text(statement) or _is_suspension(statement) or _is_never_reached(statement):
        return False
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return statement.value is not None and any(isinstance(one, ast.Attribute | ast.Subscript) for one in targets)
    return isinstance(statement, ast.Expr | ast.AugAssign | ast.Delete)


def _is_await(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Await)


def _each_dropped(node: ast.AST, is_dropped: Callable[[ast.stmt], bool]) -> Iterator[Replacement]:
    for field, body in _bodies(node):
        for index, statement in enumerate(body):
            if is_dropped(statement):
                yield _with_body(node, field, [*body[:index], *body[index + 1 :]])


def _statements(node: ast.AST) -> Iterator[Replacement]:
    """Drop a call, a deletion or an assignment to an attribute or item."""
    yield from _each_dropped(node, lambda statement: _is_effect(statement) and not _is_await(statement))


def _awaits(node: ast.AST) -> Iterator[Replacement]:
    """Drop a call that is awaited."""
    yield from _each_dropped(node, _is_await)


def _early_exits(node: ast.AST) -> Iterator[Replacement]:
    """Drop an `if` that leaves the function, the loop or the pass."""

    def is_exit(statement: ast.stmt) -> bool:
        return isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], _LEAVES)

    yield from _each_dropped(node, is_exit)


def _branches(node: ast.AST) -> Iterator[Replacement]:
    """Drop an `else`, or a case of several."""
    if isinstance(node, ast.If) and node.orelse and not _is_never_reached(node.orelse[0]):
        yield _with_body(node, "orelse", [])
    elif isinstance(node, ast.Match) and len(node.cases) > 1:
        for index, case in enumerate(node.cases):
            if _is_never_reached(case.body[0]):
                continue
            changed = copy.copy(node)
            changed.cases = [*node.cases[:index], *node.cases[index + 1 :]]
            yield changed


def _finals(node: ast.AST) -> Iterator[Replacement]:
    """Turn `finally` into statements after the body."""
    if isinstance(node, ast.Try) and node.finalbody:
        if not node.handlers:
            yield [*node.body, *node.finalbody]
        else:
            plain = copy.copy(node)
            plain.finalbody = []
            yield [plain, *node.finalbody]


def _handlers(node: ast.AST) -> Iterator[Replacement]:
    """Drop an `except` clause, drop an exception it names, or catch every exception with it."""
    if isinstance(node, ast.Try):
        for index in range(len(node.handlers)):
            rest = [*node.handlers[:index], *node.handlers[index + 1 :]]
            changed = copy.copy(node)
            changed.handlers = rest
            yield changed if rest or node.finalbody else [*node.body, *node.orelse]
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        for narrower in _narrower(node.type):
            yield _catching(node, narrower)
        wider = "BaseException" if ast.unparse(node.type) == "Exception" else "Exception"
        if ast.unparse(node.type) != "BaseException":
            yield _catching(node, ast.copy_location(ast.Name(wider, ast.Load()), node.type))


def _catching(node: ast.ExceptHandler, kind: ast.expr) -> ast.ExceptHandler:
    changed = copy.copy(node)
    changed.type = kind
    return changed


def _narrower(kind: ast.expr) -> Iterator[ast.expr]:
    if isinstance(kind, ast.Tuple) and len(kind.elts) > 1:
        for index in range(len(kind.elts)):
            changed = copy.copy(kind)
            changed.elts = [*kind.elts[:index], *kind.elts[index + 1 :]]
            yield changed


def _contexts(node: ast.AST) -> Iterator[Replacement]:
    """Run the body of a `with` without one of its context managers."""
    if isinstance(node, ast.With | ast.AsyncWith):
        for index, item in enumerate(node.items):
            if item.optional_vars is not None:
                continue
            changed = copy.copy(node)
            changed.items = [*node.items[:index], *node.items[index + 1 :]]
            yield changed if changed.items else [*node.body]


def _names(statement: ast.stmt, kinds: tuple[type[ast.expr_context], ...]) -> set[str]:
    nodes = ast.walk(statement)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, kinds)}


def _is_active(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))


def _are_independent(first: ast.stmt, second: ast.stmt) -> bool:
    """Return true if neither needs a name that the other sets, and one of them could be visible to the other."""
    if not (isinstance(first, _SIMPLE) and isinstance(second, _SIMPLE)):
        return False
    pair = (first, second)
    if any(_is_text(one) or _is_suspension(one) for one in pair):
        return False
    if not (_is_effect(first) and _is_effect(second) and any(_is_active(one) for one in pair)):
        return False
    sets = (ast.Store, ast.Del)
    every = (ast.Load, ast.Store, ast.Del)
    return not (_names(first, sets) & _names(second, every) or _names(second, sets) & _names(first, every))


def _orders(node: ast.AST) -> Iterator[Replacement]:
    """Exchange two adjacent statements with effects."""
    for field, body in _bodies(node):
        for index, (first, second) in enumerate(pairwise(body)):
            if _are_independent(first, second):
                yield _with_body(node, field, [*body[:index], second, first, *body[index + 2 :]])


STATEMENT_OPERATORS: dict[str, Callable[[ast.AST], Iterator[Replacement]]] = {
    "exit": _early_exits,
    "branch": _branches,
    "final": _finals,
    "handler": _handlers,
    "context": _contexts,
    "await": _awaits,
    "statement": _statements,
    "order": _orders,
}
