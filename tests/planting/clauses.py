"""Guards whose every clause is needed: a table of rows is complete if no mutant of the guard passes it."""

import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from planting.live import planted, refresh
from planting.mutant import Mutant, mutants_of
from planting.operators import CLAUSES

__all__ = ["assert_async_clauses_decide", "assert_every_clause_decides", "find_survivors"]

LIMIT_SECONDS = 5.0
"""Processor time of one check. A mutant may run for ever."""


class _OutOfTimeError(BaseException):
    """A check used too much processor time: its mutant is detected."""


def assert_every_clause_decides(
    functions: object,
    check: Callable[[], object],
    equivalent: Mapping[str, str] | None = None,
    kinds: Iterable[str] = CLAUSES,
) -> None:
    """Plant each mutant of the functions, by default those of `and`, `or`, `not` and conditions: `check` must fail.

    `functions` is a function, class or module, or a collection of them. `check` runs a table of rows and raises an
    error on the first difference; it must pass without a mutant. `equivalent` maps the text of a mutant, `before ->
    after`, to the reason why no row can show it; an entry without a surviving mutant is an error too.
    """
    check()
    _judge(find_survivors(functions, check, kinds), equivalent or {})


async def assert_async_clauses_decide(
    functions: object,
    check: Callable[[], Awaitable[object]],
    equivalent: Mapping[str, str] | None = None,
    kinds: Iterable[str] = CLAUSES,
) -> None:
    """Do the same with a check that is awaited."""
    await check()
    survivors = []
    for mutant in _mutants(functions, kinds):
        with planted(mutant):
            try:
                with _limit():
                    await check()
            except (Exception, _OutOfTimeError):
                continue
        survivors.append(mutant)
    _judge(survivors, equivalent or {})


def find_survivors(functions: object, check: Callable[[], object], kinds: Iterable[str] = CLAUSES) -> list[Mutant]:
    """Return the mutants with which `check` still passes."""
    return [mutant for mutant in _mutants(functions, kinds) if _passes(mutant, check)]


def _mutants(functions: object, kinds: Iterable[str]) -> list[Mutant]:
    several = functions if isinstance(functions, list | tuple | set | frozenset) else (functions,)
    mutants = mutants_of(*several, kinds=kinds)
    assert mutants, "there is nothing to plant in these functions"
    refresh()
    return mutants


def _passes(mutant: Mutant, check: Callable[[], object]) -> bool:
    with planted(mutant):
        try:
            with _limit():
                check()
        except (Exception, _OutOfTimeError):
            return False
    return True


def _judge(survivors: list[Mutant], equivalent: Mapping[str, str]) -> None:
    unexplained = [mutant for mutant in survivors if mutant.text not in equivalent]
    assert not unexplained, "no row fails with these mistakes:\n" + "\n".join(map(str, unexplained))
    stale = sorted({*equivalent} - {mutant.text for mutant in survivors})
    assert not stale, f"called equivalent, but not among the survivors: {stale}"


@contextmanager
def _limit() -> Iterator[None]:
    """Raise after LIMIT_SECONDS of processor time. The clock is not the one that pytest-timeout uses."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _OutOfTimeError

    kept = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, kept)
