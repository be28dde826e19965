"""What was measured, what the machine alone can do, what is to be reached; and the table of it."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

__all__ = ["Figure", "Goal", "ratio_of_medians", "table"]


class Goal(msgspec.Struct, frozen=True):
    """A bound for the value, or for the value divided by the limit. Less is better unless it says `at_least`."""

    bound: float
    is_ratio: bool = False
    at_least: bool = False

    def is_met(self, figure: "Figure") -> bool:
        seen = figure.ratio if self.is_ratio else figure.value
        return seen is not None and (seen >= self.bound if self.at_least else seen <= self.bound)

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {_number(self.bound)}{' ×' if self.is_ratio else ''}"


class Figure(msgspec.Struct, frozen=True):
    """`limit` is the same with nothing of ours in it, measured in turns with the value; `beside` says what it is."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    beside: str = ""
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit if self.limit else None


def ratio_of_medians(name: str, unit: str, pairs: Iterable[tuple[float, float]], beside: str, goal: Goal) -> Figure:
    """From pairs of value and limit, each pair measured in one breath."""
    values, limits = zip(*pairs, strict=True)
    return Figure(name, median(values), unit, median(limits), beside, goal)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.{1 if value >= 10 else 2}f}"


def _cells(figure: Figure) -> tuple[str, ...]:
    goal = figure.goal
    return (
        figure.name,
        _number(figure.value),
        figure.unit,
        "" if figure.limit is None else _number(figure.limit),
        "" if figure.ratio is None else f"{figure.ratio:.2f} ×",
        "" if goal is None else f"{goal}",
        "" if goal is None else "✓" if goal.is_met(figure) else "✗",
        figure.beside,
    )


_HEADS = ("", "measured", "", "limit", "ratio", "goal", "", "the limit is")
_ALIGN: Sequence[Callable[[str, int], str]] = (
    str.ljust, str.rjust, str.ljust, str.rjust, str.rjust, str.rjust, str.ljust, str.ljust,
)  # fmt: skip


def table(figures: Iterable[Figure]) -> str:
    rows = [_HEADS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = [
        "  ".join(align(cell, width) for align, cell, width in zip(_ALIGN, row, widths, strict=True)) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
