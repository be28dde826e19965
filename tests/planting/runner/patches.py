"""Hand-written mistakes: unified diffs of one source file each.

A patch that changes only bodies of functions, constants and defaults is first planted in a forked child, where the
tests that execute those functions run at once. Undetected patches, and all others, are planted on disk for the nearest
tests.
"""

import ast
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from planting.live import CannotPlantError, plant, plant_tree
from planting.mutant import Mutant, Unit, units_of_file

__all__ = ["Patch", "read_patches"]


class Patch(NamedTuple):
    """A changed file: its text, and the functions, fields and names that differ. `is_simple` if nothing else does."""

    name: str
    file: Path
    text: str
    changes: tuple[tuple[Unit, ast.stmt], ...]
    is_simple: bool

    def plant(self) -> None:
        """Replace the differing definitions in this process."""
        if not self.is_simple:
            raise CannotPlantError(f"{self.name} changes more than functions, constants and defaults")
        for unit, tree in self.changes:
            if unit.kind != "function":
                plant(Mutant("default", unit, (), tree, unit.first_line, ""))
                continue
            plant_tree(unit, tree)
            before, after = (getattr(node, "args", None) for node in (unit.node, tree))
            if isinstance(after, ast.arguments) and isinstance(before, ast.arguments):
                merged = _with_same_defaults(before, after)
                plant(Mutant("default", unit, (("args", None),), merged, unit.first_line, ""))


def read_patches(folder: Path, root: Path) -> Iterator[Patch]:
    """Apply every `*.patch` and `*.diff` of the folder to a copy of its file. Raise SystemExit if one does not fit."""
    if not folder.is_dir():
        raise SystemExit(f"no such directory: {folder} (files below /tmp cannot be seen here)")
    for path in sorted([*folder.glob("*.patch"), *folder.glob("*.diff")]):
        named = [line for line in path.read_text().splitlines() if line.startswith("--- ")]
        if len(named) != 1:
            raise SystemExit(f"{path}: a patch changes one file, this one changes {len(named)}")
        name = named[0][4:].split("\t")[0].strip()
        file = root / (name if name.startswith("src/") else name.partition("/")[2])
        if not file.is_file():
            raise SystemExit(f"{path}: no such file: {file}")
        yield _read(path, file)


def _read(path: Path, file: Path) -> Patch:
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder, file.name)
        command = ["patch", "--quiet", "--output", str(changed), str(file), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{path} does not fit: {done.stdout}{done.stderr}")
        text = changed.read_text()
        after = {unit.qualname: unit for unit in units_of_file(str(changed))}
        rest = _skeleton(ast.parse(text))
    before = units_of_file(str(file))
    names = [unit.qualname for unit in before]
    changes = tuple(
        (unit, after[unit.qualname].node)
        for unit in before
        if unit.qualname in after and unit.text != after[unit.qualname].text
    )
    is_unique = all(names.count(unit.qualname) == 1 for unit, _ in changes)
    is_simple = bool(changes) and is_unique and rest == _skeleton(ast.parse(file.read_text()))
    touched = changes or tuple((unit, unit.node) for unit in before if unit.kind == "function")
    return Patch(path.stem, file, text, touched, is_simple)


def _skeleton(module: ast.Module) -> str:
    """Return the module without bodies of functions and without constants and defaults, for comparison."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
            node.args.defaults = [_blank(value) for value in node.args.defaults]
            node.args.kw_defaults = [value and _blank(value) for value in node.args.kw_defaults]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            node.value = _blank(node.value)
    return ast.dump(module)


def _blank(value: ast.expr) -> ast.expr:
    return ast.Constant(0) if isinstance(value, ast.Constant) else value


def _with_same_defaults(before: ast.arguments, after: ast.arguments) -> ast.arguments:
    """Return the new arguments, with the old node wherever a default is the same: only others are planted."""

    def same(old: ast.expr | None, new: ast.expr | None) -> bool:
        return old is None or new is None or ast.dump(old) == ast.dump(new)

    defaults = [old if same(old, new) else new for old, new in zip(before.defaults, after.defaults, strict=True)]
    keywords = [old if same(old, new) else new for old, new in zip(before.kw_defaults, after.kw_defaults, strict=True)]
    fields = {**dict(ast.iter_fields(after)), "defaults": defaults, "kw_defaults": keywords}
    return ast.arguments(**fields)
