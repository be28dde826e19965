"""Planted mistakes: syntax-tree mutations of the kind a refactoring introduces, applied to running code.

    from planting import assert_every_clause_decides

    def test_every_clause_of_the_origin_check_decides() -> None:
        assert_every_clause_decides(is_allowed, check_rows, equivalent={"a or b -> b": "a implies b"})

`mutants_of` lists the mutants of functions, classes and modules; `planted` applies one until its block ends.
"""

from planting.clauses import assert_async_clauses_decide, assert_every_clause_decides, find_survivors
from planting.live import planted
from planting.mutant import Mutant, mutants_of, mutants_of_file
from planting.operators import CLAUSES, KINDS

__all__ = [
    "CLAUSES",
    "KINDS",
    "Mutant",
    "assert_async_clauses_decide",
    "assert_every_clause_decides",
    "find_survivors",
    "mutants_of",
    "mutants_of_file",
    "planted",
]
