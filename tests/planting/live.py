"""Mutants applied to the running process: the code of functions, defaults of fields and names of modules are replaced.

Copies are not reached: a constant copied at import, a registry filled by a decorator. `Mutant.source` plants such a
mistake on disk.
"""

import ast
import ctypes
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from planting.mutant import Mutant, Unit

__all__ = ["CannotPlantError", "compiled", "functions_of", "plant", "plant_tree", "planted", "refresh"]

Undo = Callable[[], None]


class CannotPlantError(Exception):
    """The running process has nothing that this mutant could replace."""


class _Live:
    """Functions and caches of the process, found by the garbage collector."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, int, str], list[FunctionType]] = {}
        self.caches: list[Any] = []

    def find(self) -> None:
        self.functions.clear()
        self.caches.clear()
        # `tests/conftest.py` freezes the objects of the collection, and frozen objects are not listed.
        was_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        things = gc.get_objects()
        if was_frozen:
            gc.freeze()
        for thing in things:
            kind = type(thing)
            if kind is FunctionType:
                code = thing.__code__
                self.functions.setdefault((code.co_filename, code.co_firstlineno, code.co_name), []).append(thing)
            elif kind is functools._lru_cache_wrapper:
                self.caches.append(thing)


_live = _Live()


def refresh() -> None:
    """Search for functions again; those created since the last search are unknown otherwise."""
    _live.find()


def functions_of(unit: Unit, *, is_fresh: bool = False) -> list[FunctionType]:
    """Return every live function created from this definition."""
    key = (unit.file, unit.first_line, unit.qualname.rpartition(".")[2])
    if key not in _live.functions and not is_fresh:
        refresh()
    return _live.functions.get(key, [])


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Apply the mutant until the block ends."""
    undo = plant(mutant)
    try:
        yield
    finally:
        undo()


def plant(mutant: Mutant) -> Undo:
    """Apply the mutant; return the function that reverts it. Raise CannotPlantError if nothing can be replaced."""
    kinds = {"function": _plant_function, "field": _plant_field, "name": _plant_name}
    undo = kinds[mutant.unit.kind](mutant)
    _clear_caches()

    def undo_all() -> None:
        undo()
        _clear_caches()

    return undo_all


def _clear_caches() -> None:
    for cache in _live.caches:
        cache.cache_clear()


def _plant_function(mutant: Mutant) -> Undo:
    if mutant.steps == (("args", None),):
        return _plant_default(mutant, functions_of(mutant.unit))
    return plant_tree(mutant.unit, mutant.tree())


def plant_tree(unit: Unit, tree: ast.stmt) -> Undo:
    """Give every live function created from this definition the code of another tree."""
    functions = functions_of(unit)
    if not functions:
        raise CannotPlantError(f"no live function: {unit.file}: {unit.qualname}")
    kept = [(function, function.__code__) for function in functions]
    code = compiled(unit, tree, kept[0][1].co_freevars)
    if any(one.co_freevars != code.co_freevars for _, one in kept):
        raise CannotPlantError(f"other free variables: {unit.file}: {unit.qualname}")
    for function in functions:
        function.__code__ = code

    def undo() -> None:
        for function, original in kept:
            function.__code__ = original

    return undo


def compiled(unit: Unit, tree: ast.stmt, free: tuple[str, ...]) -> CodeType:
    """Compile the function in its context: in its classes, so that `super()` and private names mean the same."""
    code = _code_within(unit, tree)
    if lost := [name for name in free if name not in code.co_freevars]:
        # A function keeps its closure only if the new code has the same free variables: name them in dead code.
        names: list[ast.expr] = [ast.Name(name, ast.Load()) for name in lost]
        dead = ast.If(ast.Constant(0), [ast.Expr(ast.Tuple(names, ast.Load()))], [])
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
        longer = type(tree)(**{**dict(ast.iter_fields(tree)), "body": [*tree.body, dead]})
        code = _code_within(unit, ast.copy_location(longer, tree))
    return code


def _code_within(unit: Unit, tree: ast.stmt) -> CodeType:
    body: ast.stmt = tree
    for scope in reversed(unit.scopes):
        empty = ast.ClassDef(name=scope.name, bases=[], keywords=[], body=[body], decorator_list=[])
        body = ast.copy_location(empty, scope)
    module = ast.fix_missing_locations(ast.Module(body=[*unit.futures, body], type_ignores=[]))
    code = compile(module, unit.file, "exec", dont_inherit=True)
    for name in unit.qualname.split("."):
        code = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    return code


def _plant_default(mutant: Mutant, functions: list[FunctionType]) -> Undo:
    old: ast.arguments = mutant.unit.node.args  # type: ignore[attr-defined]
    new = mutant.replacement
    assert isinstance(new, ast.arguments)
    if not functions:
        raise CannotPlantError(str(mutant))
    undos = []
    for index, (before, after) in enumerate(zip(old.defaults, new.defaults, strict=True)):
        if before is not after:
            undos += [_set_default(function, index, ast.literal_eval(after)) for function in functions]
    for argument, kept, other in zip(old.kwonlyargs, old.kw_defaults, new.kw_defaults, strict=True):
        if kept is not other and other is not None:
            value = ast.literal_eval(other)
            undos += [_set_keyword_default(function, argument.arg, value) for function in functions]
    return _all(undos)


def _set_default(function: FunctionType, index: int, value: object) -> Undo:
    kept = function.__defaults__ or ()
    function.__defaults__ = (*kept[:index], value, *kept[index + 1 :])
    return functools.partial(setattr, function, "__defaults__", kept)


def _set_keyword_default(function: FunctionType, name: str, value: object) -> Undo:
    kept = function.__kwdefaults__ or {}
    function.__kwdefaults__ = {**kept, name: value}
    return functools.partial(setattr, function, "__kwdefaults__", kept)


def _all(undos: list[Undo]) -> Undo:
    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


def _value(mutant: Mutant) -> object:
    value = getattr(mutant.replacement, "value", None)
    assert isinstance(value, ast.Constant)
    return value.value


def _modules(file: str) -> list[ModuleType]:
    return [module for module in [*sys.modules.values()] if getattr(module, "__file__", None) == file]


def _plant_field(mutant: Mutant) -> Undo:
    owners: list[Any] = [*_modules(mutant.file)]
    *scopes, name = mutant.qualname.split(".")
    for scope in scopes:
        owners = [getattr(owner, scope) for owner in owners if hasattr(owner, scope)]
    undos = [undo for owner in owners for cls in _descendants(owner) for undo in _set_field(cls, name, _value(mutant))]
    if not undos:
        raise CannotPlantError(str(mutant))
    return _all(undos)


def _descendants(cls: type) -> Iterator[type]:
    yield cls
    children: list[type] = type.__subclasses__(cls)
    for child in children:
        yield from _descendants(child)


def _set_field(cls: type, name: str, value: object) -> Iterator[Undo]:
    """Change the default of a field of a struct, dataclass or named tuple, or an attribute of a plain class."""
    if issubclass(cls, msgspec.Struct):
        fields, defaults = cls.__struct_fields__, cls.__struct_defaults__
        if name in fields and (index := fields.index(name) - len(fields) + len(defaults)) >= 0:
            yield _set_item(defaults, index, value)
        return
    maker = vars(cls).get("__init__" if "__dataclass_fields__" in vars(cls) else "__new__")
    if isinstance(maker, FunctionType):
        names = maker.__code__.co_varnames[: maker.__code__.co_argcount]
        if name in names and (index := names.index(name) - len(names) + len(maker.__defaults__ or ())) >= 0:
            yield _set_default(maker, index, value)
        elif name in (maker.__kwdefaults__ or {}):
            yield _set_keyword_default(maker, name, value)
    elif name in vars(cls) and type(cls) is type:
        kept = vars(cls)[name]
        setattr(cls, name, value)
        yield functools.partial(setattr, cls, name, kept)


def _set_item(items: tuple[object, ...], index: int, value: object) -> Undo:
    """Replace an item of a tuple in place: a struct type keeps its defaults in one and offers no way to change it."""
    address = id(items) + tuple.__basicsize__ + index * ctypes.sizeof(ctypes.py_object)
    slot: Any = ctypes.py_object.from_address(address)
    kept = slot.value
    slot.value = value

    def undo() -> None:
        slot.value = kept

    return undo


def _plant_name(mutant: Mutant) -> Undo:
    """Replace the name in its module and in those that imported it."""
    owners = _modules(mutant.file)
    if not owners or not hasattr(owners[0], mutant.qualname):
        raise CannotPlantError(str(mutant))
    kept = getattr(owners[0], mutant.qualname)
    marks = [f"from {owner.__name__} import" for owner in owners]
    package = owners[0].__name__.partition(".")[0]
    for name, module in [*sys.modules.items()]:
        is_other = module not in owners and name.partition(".")[0] == package
        if is_other and getattr(module, mutant.qualname, None) is kept and _mentions(module, marks):
            owners.append(module)
    for owner in owners:
        setattr(owner, mutant.qualname, _value(mutant))
    return _all([functools.partial(setattr, owner, mutant.qualname, kept) for owner in owners])


def _mentions(module: ModuleType, marks: list[str]) -> bool:
    try:
        with open(module.__file__ or "", encoding="utf-8") as source:
            text = source.read()
    except OSError:
        return False
    return any(mark in text for mark in marks)
