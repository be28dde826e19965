"""A map from functions to the tests that execute them.

Every function of the package is replaced by one that records its first call in each test and then restores the original
code. This costs much less than a profile function, which is called for every call. Processes that a test starts are not
traced.
"""

import ast
import builtins
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

from planting.live import compiled, functions_of, refresh
from planting.mutant import Unit, units_of_file

__all__ = ["Map", "Tracer", "key_of"]

_PROBE = "__planting_probe__"
_BREADTH_SECONDS = 0.001
_RANK_SECONDS = 0.01
"""An additional function executed by a test, and an earlier row of its table, count like this much of its time."""


def key_of(unit: Unit, root: Path) -> str:
    """Return a name of the function that does not depend on its line."""
    return f"{Path(unit.file).relative_to(root)}:{unit.qualname}"


class Tracer:
    """Records the functions called since `start`."""

    def __init__(self, files: Iterable[Path], root: Path) -> None:
        self._seen: set[int] = set()
        self.names: list[str] = []
        self._codes: list[list[tuple[FunctionType, CodeType, CodeType]]] = []
        setattr(builtins, _PROBE, self._note)
        refresh()
        for file in files:
            for unit in units_of_file(str(file)):
                if unit.kind == "function":
                    self._prepare(unit, key_of(unit, root))

    def _prepare(self, unit: Unit, name: str) -> None:
        functions = functions_of(unit, is_fresh=True)
        assert isinstance(unit.node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not functions or len({function.__code__.co_freevars for function in functions}) != 1:
            return
        call = ast.Call(ast.Name(_PROBE, ast.Load()), [ast.Constant(len(self.names))], [])
        has_text = ast.get_docstring(unit.node, clean=False) is not None
        body = [*unit.node.body[:has_text], ast.Expr(call), *unit.node.body[has_text:]]
        fields = {**dict(ast.iter_fields(unit.node)), "body": body}
        tree = ast.fix_missing_locations(ast.copy_location(type(unit.node)(**fields), unit.node))
        code = compiled(unit, tree, functions[0].__code__.co_freevars)
        if code.co_freevars == functions[0].__code__.co_freevars:
            self.names.append(name)
            self._codes.append([(function, function.__code__, code) for function in functions])

    def _note(self, number: int) -> None:
        self._seen.add(number)
        for function, original, _ in self._codes[number]:
            function.__code__ = original

    def start(self) -> None:
        """Install the probes in all functions."""
        self._seen = set(range(len(self.names)))
        self.take()

    def take(self) -> list[int]:
        """Return the numbers of the functions called since the last time, and start again."""
        seen = sorted(self._seen)
        for number in seen:
            for function, _, code in self._codes[number]:
                function.__code__ = code
        self._seen = set()
        return seen


class Map:
    """Stored in one file for each test file, so that only those that changed are traced again."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self.seconds: dict[str, float] = {}
        self._breadth: dict[str, int] = {}
        self._tests: dict[str, list[str]] = {}
        self._digests: dict[str, str] = {}

    def load(self) -> None:
        """Read the entries of all test files that still exist."""
        for path in sorted(self._folder.glob("*.json")):
            stored = json.loads(path.read_text())
            if not (self._root / stored["file"]).exists():
                continue
            self._digests[stored["file"]] = stored["digest"]
            for test, (seconds, numbers) in stored["tests"].items():
                self.seconds[test] = seconds
                self._breadth[test] = len(numbers)
                for number in numbers:
                    self._tests.setdefault(stored["functions"][number], []).append(test)

    def is_current(self, file: str) -> bool:
        """Return true if the test file was traced in its current form, at the time of `load`."""
        return self._digests.get(file) == self._digest(file)

    def store(self, file: str, functions: list[str], tests: dict[str, tuple[float, list[int]]]) -> None:
        """Replace the entry of a test file. The functions of a test are positions in the list of functions."""
        used = sorted({number for _, numbers in tests.values() for number in numbers})
        places = {number: place for place, number in enumerate(used)}
        stored = {
            "file": file,
            "digest": self._digest(file),
            "functions": [functions[number] for number in used],
            "tests": {
                test: (seconds, [places[number] for number in numbers]) for test, (seconds, numbers) in tests.items()
            },
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path(file).write_text(json.dumps(stored))

    def _path(self, file: str) -> Path:
        return self._folder / (file.replace("/", "--") + ".json")

    def _digest(self, file: str) -> str:
        return hashlib.sha256((self._root / file).read_bytes()).hexdigest()[:16]

    def tests_of(self, functions: Iterable[str], is_known: Callable[[str], bool] = lambda test: True) -> list[str]:
        """Return the tests that execute one of the functions, in the order in which they should run.

        Fast tests precede slow ones, tests that execute little else precede those that execute everything, tests of the
        own package precede others, and one row of each table precedes the second row of any.
        """
        names = [*functions]
        found = {test for name in names for test in self._tests.get(name, ()) if is_known(test)}
        parts = Path(names[0].partition(":")[0]).with_suffix("").parts if names else ()
        package, module = (parts[2], parts[-1]) if len(parts) > 2 else ("", "")

        def cost(test: str) -> float:
            file = test.partition("::")[0]
            is_own = module in Path(file).stem
            is_near = file.startswith(f"tests/{package}/")
            return (
                self.seconds[test] + self._breadth[test] * _BREADTH_SECONDS + (0 if is_own else 0.2 if is_near else 1)
            )

        return [*self._in_order(found, cost)]

    @staticmethod
    def _in_order(tests: Iterable[str], cost: Callable[[str], float]) -> Iterator[str]:
        costs = {test: cost(test) for test in tests}
        tables: dict[str, list[str]] = {}
        for test in sorted(costs, key=lambda test: (costs[test], test)):
            tables.setdefault(test.partition("[")[0], []).append(test)
        for rows in tables.values():
            # The rows of a table are in no useful order; neighbours tend to test the same.
            rows[1:] = random.Random(0).sample(rows[1:], len(rows) - 1)
        ranked = [
            (costs[test] + rank * _RANK_SECONDS, test) for rows in tables.values() for rank, test in enumerate(rows)
        ]
        yield from (test for _, test in sorted(ranked))
