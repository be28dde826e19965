"""Mutants of a source file: the location, the text and the resulting syntax tree of each."""

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Literal

from planting.operators import KINDS, OPERATORS, default_operator, with_field
from planting.statements import Replacement

__all__ = ["Mutant", "Unit", "mutants_of", "mutants_of_file", "units_of_file", "unwrapped"]

Step = tuple[str, int | None]
Function = ast.FunctionDef | ast.AsyncFunctionDef

_NOT_RUN = {"decorator_list", "annotation", "returns", "type_comment", "format_spec"}
"""Fields that are evaluated once, when the module is imported, or that only change the look of a text."""
_MAX_TEXT = 200
_LOGGERS = {"log", "logger", "logging", "_log", "_logger"}


@dataclass(frozen=True, eq=False)
class Unit:
    """The piece of a file that is replaced as a whole: a function, a field of a class, or a name of a module."""

    kind: Literal["function", "field", "name"]
    file: str
    qualname: str
    node: ast.stmt
    scopes: tuple[ast.ClassDef, ...]
    futures: tuple[ast.stmt, ...]

    @property
    def first_line(self) -> int:
        decorators: list[ast.expr] = getattr(self.node, "decorator_list", [])
        return min([self.node.lineno, *(one.lineno for one in decorators)])

    @cached_property
    def text(self) -> str:
        return ast.unparse(self.node)


@dataclass(frozen=True, eq=False)
class Mutant:
    """One mistake. `text` reads `before -> after` and names it within its function."""

    kind: str
    unit: Unit
    steps: tuple[Step, ...]
    replacement: Replacement
    line: int
    text: str

    @property
    def file(self) -> str:
        return self.unit.file

    @property
    def qualname(self) -> str:
        return self.unit.qualname

    def tree(self) -> ast.stmt:
        """Return the unit with the mistake in it. The result shares nodes with the original."""
        tree = _replaced(self.unit.node, self.steps, self.replacement)
        assert isinstance(tree, ast.stmt)
        return ast.fix_missing_locations(tree)

    def diff(self) -> str:
        """Return a unified diff of the function without its comments, as the syntax tree is written out."""
        name = f"{self.file}:{self.line} {self.qualname}"
        lines = difflib.unified_diff(
            self.unit.text.splitlines(), ast.unparse(self.tree()).splitlines(), name, f"{self.kind} mutant", lineterm=""
        )
        return "\n".join(lines)

    def source(self) -> str:
        """Return the text of the whole file with the mistake in it, for planting on disk."""
        lines = Path(self.file).read_text().splitlines(keepends=True)
        indent = " " * self.unit.node.col_offset
        text = "".join(f"{indent}{line}\n" if line else "\n" for line in ast.unparse(self.tree()).splitlines())
        assert self.unit.node.end_lineno is not None
        return "".join([*lines[: self.unit.first_line - 1], text, *lines[self.unit.node.end_lineno :]])

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.qualname}: {self.kind}: {self.text}"


def mutants_of(*objects: object, kinds: Iterable[str] = KINDS) -> list[Mutant]:
    """Return the mutants of functions, classes and modules in the order of their source."""
    found: list[Mutant] = []
    for thing in objects:
        file, is_wanted = _place(thing)
        found += [mutant for unit in units_of_file(file) if is_wanted(unit) for mutant in _mutants(unit, kinds)]
    return found


def mutants_of_file(file: str | Path, kinds: Iterable[str] = KINDS) -> list[Mutant]:
    """Return the mutants of a source file, which need not have been imported."""
    return [mutant for unit in units_of_file(str(file)) for mutant in _mutants(unit, kinds)]


def unwrapped(thing: object) -> object:
    """Return the function below decorators, properties, methods and partial calls."""
    for name in ("__wrapped__", "__func__", "fget", "func"):
        while not isinstance(thing, type) and (inner := getattr(thing, name, None)) is not None:
            thing = inner
    return thing


def _place(thing: object) -> tuple[str, Callable[[Unit], bool]]:
    thing = thing if isinstance(thing, ModuleType | type) else unwrapped(thing)
    if isinstance(thing, ModuleType):
        assert thing.__file__ is not None
        return thing.__file__, lambda unit: True
    if isinstance(thing, type):
        file = inspect.getfile(thing)
        prefix = f"{thing.__qualname__}."
        return file, lambda unit: unit.qualname.startswith(prefix)
    code = getattr(thing, "__code__", None)
    if code is None:
        raise TypeError(f"not a function, class or module: {thing!r}")
    first = code.co_firstlineno

    def is_around(unit: Unit) -> bool:
        return unit.kind == "function" and unit.first_line <= first <= (unit.node.end_lineno or 0)

    return code.co_filename, is_around


def units_of_file(file: str) -> tuple[Unit, ...]:
    """Return the functions, fields and names of a file in their order. Nested functions belong to the outer one."""
    return _units(file, Path(file).stat().st_mtime_ns)


@lru_cache(maxsize=1000)
def _units(file: str, _changed_at: int) -> tuple[Unit, ...]:
    module = ast.parse(Path(file).read_text(), file)
    futures = tuple(one for one in module.body if isinstance(one, ast.ImportFrom) and one.module == "__future__")
    return tuple(_collect(file, module.body, (), futures))


def _collect(
    file: str, body: Iterable[ast.stmt], scopes: tuple[ast.ClassDef, ...], futures: tuple[ast.stmt, ...]
) -> Iterator[Unit]:
    prefix = "".join(f"{scope.name}." for scope in scopes)
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Unit("function", file, prefix + node.name, node, scopes, futures)
        elif isinstance(node, ast.ClassDef):
            yield from _collect(file, node.body, (*scopes, node), futures)
        elif isinstance(node, ast.If | ast.Try):
            inner = (*node.body, *node.orelse, *getattr(node, "finalbody", ()))
            yield from _collect(file, inner, scopes, futures)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and not target.id.startswith("__"):
                yield Unit("field" if scopes else "name", file, prefix + target.id, node, scopes, futures)


def _mutants(unit: Unit, kinds: Iterable[str]) -> Iterator[Mutant]:
    wanted = frozenset(kinds)
    if unknown := wanted - KINDS:
        raise ValueError(f"unknown kinds of mutants: {', '.join(sorted(unknown))}")
    seen = {unit.text}
    counts: dict[str, int] = {}
    for kind, steps, old, replacement in _raw_mutants(unit, wanted):
        mutated = ast.unparse(_replaced(unit.node, steps, replacement))
        if mutated in seen or _is_noise(kind, unit, old, replacement):
            continue
        seen.add(mutated)
        text = _text(kind, unit, old, replacement, mutated)
        counts[text] = counts.get(text, 0) + 1
        text += f" (#{counts[text]})" if counts[text] > 1 else ""
        yield Mutant(kind, unit, steps, replacement, _line(old, replacement), text)


def _raw_mutants(unit: Unit, kinds: frozenset[str]) -> Iterator[tuple[str, tuple[Step, ...], ast.AST, Replacement]]:
    if unit.kind != "function":
        replacements = default_operator(unit.node) if "default" in kinds else ()
        yield from (("default", (), unit.node, replacement) for replacement in replacements)
        return
    nodes = list(_walk(unit.node, ()))
    for kind, operator in OPERATORS.items():
        if kind in kinds:
            for steps, node in nodes:
                yield from ((kind, steps, node, replacement) for replacement in operator(node))


def _walk(node: ast.AST, steps: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], ast.AST]]:
    yield steps, node
    for field, value in ast.iter_fields(node):
        if field in _NOT_RUN:
            continue
        if isinstance(value, ast.AST):
            yield from _walk(value, (*steps, (field, None)))
        elif isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST) and not _is_logging(child):
                    yield from _walk(child, (*steps, (field, index)))


def _is_logging(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).partition(".")[0] in _LOGGERS
    )


def _replaced(node: ast.AST, steps: tuple[Step, ...], new: Replacement) -> ast.AST:
    """Return a copy of the tree with another node at the end of the path; only the nodes along it are new."""
    if not steps:
        assert isinstance(new, ast.AST)
        return new
    (field, index), rest = steps[0], steps[1:]
    value = getattr(node, field)
    if index is None:
        return with_field(node, **{field: _replaced(value, rest, new)})
    inner = new if not rest and isinstance(new, list) else [_replaced(value[index], rest, new)]
    return with_field(node, **{field: [*value[:index], *inner, *value[index + 1 :]]})


def _text(kind: str, unit: Unit, old: ast.AST, new: Replacement, mutated: str) -> str:
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        text = f"{ast.unparse(old)} -> {ast.unparse(new)}"
    elif isinstance(old, ast.arguments) and isinstance(new, ast.arguments):
        text = _changed_default(old, new)
    elif kind == "order":
        text = " <-> ".join(ast.unparse(one) for one in _exchanged(old, new))
    else:
        before, after = ([line.strip() for line in text.splitlines()] for text in (unit.text, mutated))
        gone: list[str] = []
        come: list[str] = []
        for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                gone += before[a:b]
                come += after[c:d]
        text = f"{'; '.join(gone) or '(nothing)'} -> {'; '.join(come) or '(nothing)'}"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _changed_default(old: ast.arguments, new: ast.arguments) -> str:
    names = [argument.arg for argument in (*old.posonlyargs, *old.args)][-len(old.defaults) :] if old.defaults else []
    rows = [*zip(names, old.defaults, new.defaults, strict=True)]
    rows += [
        (argument.arg, before, after)
        for argument, before, after in zip(old.kwonlyargs, old.kw_defaults, new.kw_defaults, strict=True)
        if before is not None and after is not None
    ]
    [(name, before, after)] = [row for row in rows if row[1] is not row[2]]
    return f"{name}={ast.unparse(before)} -> {name}={ast.unparse(after)}"


def _exchanged(old: ast.AST, new: Replacement) -> list[ast.AST]:
    for field, value in ast.iter_fields(old):
        others = getattr(new, field)
        if isinstance(value, list) and others is not value:
            return [one for one, other in zip(value, others, strict=True) if one is not other]
    return []


def _is_noise(kind: str, unit: Unit, old: ast.AST, new: Replacement) -> bool:
    """Return true if every test or none could detect it: first assignments of an object, dropped or exchanged."""
    if not unit.qualname.endswith("__init__") or kind not in {"statement", "order"} or old is not unit.node:
        return False
    assert isinstance(old, ast.FunctionDef)
    assert isinstance(new, ast.FunctionDef)
    changed = [one for one in old.body if one not in new.body] if kind == "statement" else _exchanged(old, new)
    return all(isinstance(one, ast.Assign | ast.AnnAssign) for one in changed)


def _line(old: ast.AST, new: Replacement) -> int:
    """Return the line of the first node in which the two trees differ. Equal nodes are the same object in both."""
    if isinstance(new, ast.AST) and type(new) is type(old):
        for field, value in ast.iter_fields(old):
            other = getattr(new, field)
            if other is value:
                continue
            if isinstance(value, ast.AST) and isinstance(other, ast.AST) and hasattr(value, "lineno"):
                return _line(value, other)
            if isinstance(value, list) and isinstance(other, list):
                for index, child in enumerate(value):
                    if (index >= len(other) or other[index] is not child) and hasattr(child, "lineno"):
                        return int(child.lineno)
    line = getattr(old, "lineno", None)
    return int(line) if line is not None else min(getattr(child, "lineno", 1 << 30) for child in ast.walk(old))
