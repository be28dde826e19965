"""Library for planted mistakes: every operator creates its mutants, which take effect until they are reverted."""

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pytest

from planting import (
    KINDS,
    Mutant,
    assert_async_clauses_decide,
    assert_every_clause_decides,
    find_survivors,
    mutants_of,
    mutants_of_file,
    planted,
)
from planting.live import CannotPlantError, functions_of
from planting.mutant import units_of_file

LIMIT = 3


def guard(a: bool, b: bool, c: bool) -> bool:
    return a and (b or not c)


def classify(number: int) -> str:
    if number < 0:
        return "negative"
    return "small" if number <= LIMIT else "large"


def record(log: list[str], fails: bool = False) -> None:
    try:
        log.append("body")
        if fails:
            raise KeyError
    finally:
        log.append("end")


def parse(text: str) -> int | None:
    try:
        return int(text)
    except (ValueError, KeyError):
        return None


def pick(kind: str) -> str:
    match kind:
        case "a" | "b":
            return "letter"
        case "1" if kind.isdigit():
            return "digit"
        case _:
            return "other"


def order(log: list[str]) -> None:
    log.append("first")
    log.append("second")


def tolerant(items: dict[str, int]) -> list[int]:
    with suppress(KeyError, TypeError):
        items["sum"] += 1
    return sorted((value for key, value in items.items() if key not in {"x", "y"}), reverse=True)


async def awaiting(done: list[int]) -> None:
    await asyncio.sleep(0)
    done.append(1)


class Base:
    """Has a method that a subclass calls."""

    limit = 7

    def name(self) -> str:
        return "base"


class Child(Base):
    """Calls `super()`, which needs a free variable."""

    def __init__(self) -> None:
        self.seen = 0

    def name(self, suffix: str = "!", *, twice: bool = False) -> str:
        self.seen += 1
        text = suffix * 2 if twice else suffix
        return super().name() + text

    @property
    def is_seen(self) -> bool:
        return self.seen > 0

    @functools.lru_cache  # noqa: B019
    def cached(self, number: int) -> int:
        return number + 1


class Struct(msgspec.Struct, frozen=True):
    """Has defaults that only its type contains."""

    name: str
    size: int = 4
    is_open: bool = False


class SubStruct(Struct, frozen=True):
    """Inherits defaults."""

    extra: str = "e"


@dataclass
class Data:
    """Has a default in its constructor."""

    size: int = 4


class Tuple(NamedTuple):
    """Has a default in its constructor."""

    size: int = 4
    name: str = "n"


def one(thing: object, text: str) -> Mutant:
    """Return the only mutant that reads like this."""
    found = [mutant for mutant in mutants_of(thing) if mutant.text == text]
    assert len(found) == 1, [mutant.text for mutant in mutants_of(thing)]
    return found[0]


TEXTS: list[tuple[object, str, str]] = [
    (guard, "clause", "a and (b or not c) -> b or not c"),
    (guard, "clause", "b or not c -> b"),
    (guard, "negation", "not c -> c"),
    (classify, "negation", "if number < 0: -> if not number < 0:"),
    (classify, "comparison", "number <= LIMIT -> number < LIMIT"),
    (classify, "exit", "if number < 0:; return 'negative' -> (nothing)"),
    (classify, "constant", "0 -> -1"),
    (parse, "handler", "except (ValueError, KeyError): -> except (KeyError,):"),
    (parse, "handler", "except (ValueError, KeyError): -> except Exception:"),
    (parse, "handler", "try:; except (ValueError, KeyError):; return None -> (nothing)"),
    (pick, "element", "case 'a' | 'b': -> case 'a':"),
    (pick, "branch", "case 'a' | 'b':; return 'letter' -> (nothing)"),
    (pick, "negation", "case '1' if kind.isdigit(): -> case '1':"),
    (order, "order", "log.append('first') <-> log.append('second')"),
    (order, "statement", "log.append('second') -> (nothing)"),
    (record, "final", "try:; finally: -> (nothing)"),
    (record, "default", "fails=False -> fails=True"),
    (tolerant, "argument", "suppress(KeyError, TypeError) -> suppress(TypeError)"),
    (tolerant, "context", "with suppress(KeyError, TypeError): -> (nothing)"),
    (tolerant, "element", "key not in {'x', 'y'} -> key not in {'y'}"),
    (awaiting, "await", "await asyncio.sleep(0) -> (nothing)"),
    (Child, "statement", "self.seen += 1 -> (nothing)"),
    (Child, "comparison", "self.seen > 0 -> self.seen >= 0"),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "kind", "text"), TEXTS, ids=[f"{kind}: {text}" for _, kind, text in TEXTS])
def test_operators_create_their_mutants(thing: object, kind: str, text: str) -> None:
    assert one(thing, text).kind == kind


def test_every_operator_has_a_row() -> None:
    assert {kind for _, kind, _ in TEXTS} == KINDS


def logged(fails: bool) -> list[str]:
    log: list[str] = []
    with suppress(KeyError):
        record(log, fails=fails)
    return log


def seen_after_name() -> int:
    child = Child()
    child.name()
    return child.seen


SHARED = Child()
"""Its cached results must not survive a change of the code."""

EFFECTS: list[tuple[object, str, Callable[[], object], object, object]] = [
    (guard, "b or not c -> b", lambda: guard(True, False, False), True, False),
    (classify, "0 -> 1", lambda: classify(0), "small", "negative"),
    (record, "try:; finally: -> (nothing)", lambda: logged(True), ["body", "end"], ["body"]),
    (Child, "self.seen += 1 -> (nothing)", seen_after_name, 1, 0),
    (Child, "self.seen > 0 -> self.seen >= 0", lambda: Child().is_seen, False, True),
    (Child.cached, "1 -> 2", lambda: SHARED.cached(1), 2, 3),
    (Struct, "size: int = 4 -> size: int = 5", lambda: Struct("n").size, 4, 5),
    (Struct, "size: int = 4 -> size: int = 5", lambda: SubStruct("n").size, 4, 5),
    (Struct, "size: int = 4 -> size: int = 5", lambda: msgspec.json.decode(b'{"name":"n"}', type=SubStruct).size, 4, 5),
    (Struct, "is_open: bool = False -> is_open: bool = True", lambda: Struct("n").is_open, False, True),
    (Data, "size: int = 4 -> size: int = 5", lambda: Data().size, 4, 5),
    (Tuple, "size: int = 4 -> size: int = 5", lambda: Tuple().size, 4, 5),
    (Base, "limit = 7 -> limit = 8", lambda: Child().limit, 7, 8),
]


@pytest.mark.parametrize(("thing", "text", "act", "before", "after"), EFFECTS)
def test_planted_mutant_takes_effect_until_it_is_reverted(
    thing: object, text: str, act: Callable[[], object], before: object, after: object
) -> None:
    assert act() == before
    with planted(one(thing, text)):
        assert act() == after
    assert act() == before


def test_defaults_of_parameters_change() -> None:
    child = Child()
    with planted(one(Child.name, "suffix='!' -> suffix=''")):
        assert child.name() == "base"
    with planted(one(Child.name, "twice=False -> twice=True")):
        assert child.name() == "base!!"
    assert child.name() == "base!"


def test_a_name_of_a_module_changes() -> None:
    module = sys.modules[__name__]
    with planted(one(module, "LIMIT = 3 -> LIMIT = 4")):
        assert classify(4) == "small"
    assert classify(4) == "large"


def closure_over(base: int) -> Callable[[int], bool]:
    def is_near(number: int) -> bool:
        return number > 0 and number < base

    return is_near


def test_closures_keep_their_variables() -> None:
    before = closure_over(10)
    with planted(one(closure_over, "number > 0 and number < base -> number > 0")):
        assert closure_over(10)(20)
    assert not closure_over(10)(20)
    assert not before(20)


def sometimes(base: Base | None) -> Callable[[], str]:
    return lambda: base.name() if base is not None else "none"


class Lonely(Base):
    """Needs its class in one statement only."""

    def name(self) -> str:
        if self.limit > 0:
            return super().name()
        return "lonely"


def test_code_that_loses_a_free_variable_is_planted() -> None:
    with planted(one(Lonely, "if self.limit > 0:; return super().name() -> (nothing)")):
        assert Lonely().name() == "lonely"
    assert Lonely().name() == "base"


def test_lines_and_descriptions_name_the_location() -> None:
    mutant = one(order, "log.append('second') -> (nothing)")
    assert mutant.line == order.__code__.co_firstlineno + 2
    assert str(mutant).startswith(f"{__file__}:{mutant.line} order: statement: ")
    assert "-    log.append('second')" in mutant.diff()


def test_every_mutant_of_this_file_compiles_on_disk() -> None:
    mutants = mutants_of_file(__file__)
    assert len(mutants) > 50
    for mutant in mutants[::5]:
        compile(mutant.source(), __file__, "exec")


def test_mutants_of_unloaded_code_are_refused() -> None:
    unit = next(unit for unit in units_of_file(__file__) if unit.qualname == "sometimes")
    assert len(functions_of(unit)) == 1
    text = __file__.replace("test_planting", "conftest")
    mutants = [mutant for mutant in mutants_of_file(text) if mutant.unit.kind == "function"]
    for mutant in mutants:
        object.__setattr__(mutant.unit, "file", "/nowhere.py")
    with pytest.raises(CannotPlantError), planted(mutants[0]):
        pass


def full_table() -> None:
    for a, b, c in [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)]:
        assert guard(a, b, c) == bool(a & (b | (not c)))


def short_table() -> None:
    assert guard(True, True, True)
    assert not guard(False, True, True)
    assert not guard(True, False, True)


def test_a_complete_table_passes() -> None:
    assert_every_clause_decides(guard, full_table)
    assert_every_clause_decides([guard], full_table, kinds={"clause"})


def test_a_table_without_a_row_is_refused() -> None:
    assert [mutant.text for mutant in find_survivors(guard, short_table)] == ["b or not c -> b"]
    with pytest.raises(AssertionError, match=r"test_planting.py:\d+ guard: clause: b or not c -> b"):
        assert_every_clause_decides(guard, short_table)
    assert_every_clause_decides(guard, short_table, equivalent={"b or not c -> b": "for the sake of this test"})


def test_an_explanation_of_a_mutant_that_is_detected_is_refused() -> None:
    with pytest.raises(AssertionError, match="not among the survivors"):
        assert_every_clause_decides(guard, full_table, equivalent={"b or not c -> b": "it is not"})


def test_a_check_that_fails_by_itself_is_refused() -> None:
    def wrong() -> None:
        assert guard(False, False, False)

    with pytest.raises(AssertionError, match="guard"):
        assert_every_clause_decides(guard, wrong)


def count_down(number: int) -> int:
    while number > 0 and number < 100:
        number -= 1
    return number


def test_a_mutant_that_never_ends_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planting.clauses.LIMIT_SECONDS", 0.05)

    def check() -> None:
        assert [count_down(number) for number in (0, 1, 200)] == [0, 0, 200]

    assert_every_clause_decides(count_down, check)


async def test_checks_may_be_awaited() -> None:
    async def check() -> None:
        await asyncio.sleep(0)
        full_table()

    async def short() -> None:
        short_table()

    checks: list[Callable[[], Awaitable[None]]] = [check, short]
    await assert_async_clauses_decide(guard, checks[0])
    with pytest.raises(AssertionError, match="b or not c -> b"):
        await assert_async_clauses_decide(guard, checks[1])


def generated() -> Iterator[int]:
    yield 1


def test_a_function_without_conditions_is_refused() -> None:
    with pytest.raises(AssertionError, match="nothing to plant"):
        assert_every_clause_decides(generated, lambda: None)
