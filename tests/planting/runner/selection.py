"""Selection of the mutants: all of some files or functions, or a sample of them, without equivalent ones."""

import ast
import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from planting.mutant import Mutant, Unit, mutants_of_file, units_of_file
from planting.runner.tracing import key_of

__all__ = ["PACKAGES", "Equivalents", "Name", "Selection", "functions_near", "name_of", "select", "source_files"]

PACKAGES = ("engine", "storage", "bus", "server", "permissions", "workspace", "providers")
"""Tried unless others are named."""


class Name(NamedTuple):
    """A mutant, named so that it is found again after lines have moved."""

    file: str
    qualname: str
    kind: str
    text: str


class Selection(NamedTuple):
    """The selection of a caller. Empty collections mean everything."""

    paths: Sequence[str] = ()
    functions: Sequence[str] = ()
    kinds: Sequence[str] = ()
    sample: int = 0
    seed: int = 0


def name_of(mutant: Mutant, root: Path) -> Name:
    return Name(str(Path(mutant.file).relative_to(root)), mutant.qualname, mutant.kind, mutant.text)


def source_files(paths: Sequence[str], root: Path) -> list[Path]:
    """Return the modules at the paths, which count from the root or are names of packages."""
    package = root / "src" / "holdfast"
    found: list[Path] = []
    for path in paths or PACKAGES:
        place = next((one for one in (root / path, package / path, package / f"{path}.py") if one.exists()), None)
        if place is None:
            raise SystemExit(f"no such file or package: {path}")
        found += [place] if place.is_file() else sorted(place.rglob("*.py"))
    return found


def select(selection: Selection, root: Path) -> list[Mutant]:
    """Return the chosen mutants, or a sample of them that depends on the seed and the source only."""
    mutants = [mutant for file in source_files(selection.paths, root) for mutant in mutants_of_file(file)]
    if selection.functions:
        mutants = [mutant for mutant in mutants if _is_named(mutant.qualname, selection.functions)]
    if selection.kinds:
        mutants = [mutant for mutant in mutants if mutant.kind in selection.kinds]
    if selection.sample and selection.sample < len(mutants):
        mutants = random.Random(selection.seed).sample(mutants, selection.sample)
    return mutants


def _is_named(qualname: str, names: Sequence[str]) -> bool:
    return any(qualname == name or qualname.startswith(f"{name}.") or qualname.endswith(f".{name}") for name in names)


class Equivalents:
    """Mutants without an effect visible to a user, each with its reason.

    A line of the file is JSON: file, function, kind, text, reason.
    """

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.strip() and not line.startswith("#")]
        self.reasons = {Name(*row[:4]): str(row[4]) for row in rows}


def functions_near(unit: Unit, root: Path) -> list[str]:
    """Return the keys of the functions whose execution may show a change of this unit."""
    if unit.kind == "function":
        return [key_of(unit, root)]
    *scopes, name = unit.qualname.split(".")
    index = _mentions(root)
    if unit.kind == "name":
        return sorted(index.get(name, ()))
    # A field is visible where its class is constructed, and where it is read.
    return sorted(index.get(scopes[-1], set()) | index.get(name, set()))


@cache
def _mentions(root: Path) -> dict[str, set[str]]:
    index: dict[str, set[str]] = {}
    for file in sorted((root / "src" / "holdfast").rglob("*.py")):
        for unit in units_of_file(str(file)):
            if unit.kind == "function":
                key = key_of(unit, root)
                for word in _words(ast.walk(unit.node)):
                    index.setdefault(word, set()).add(key)
    return index


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    words: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            words.add(node.arg)
    return words
