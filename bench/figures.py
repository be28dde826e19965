"""Measured values, the limits they are compared with, their goals, and the printed table."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

__all__ = ["Figure", "Goal", "format_number", "ratio_of_medians", "table"]


class Goal(msgspec.Struct, frozen=True):
    """A bound for the value or, with `is_ratio`, for the value divided by the limit. Less is better unless `at_least`.

    `plus` is added to the bound of a ratio: the value is at most `bound` × limit + `plus`.
    """

    bound: float
    is_ratio: bool = False
    at_least: bool = False
    plus: float = 0.0

    def is_met(self, figure: "Figure") -> bool:
        """Return whether a figure reaches the goal."""
        if self.is_ratio and figure.limit is None:
            return False
        bound = self.bound * (figure.limit or 0.0) + self.plus if self.is_ratio else self.bound
        return figure.value >= bound if self.at_least else figure.value <= bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        plus = f" + {format_number(self.plus)}" if self.plus else ""
        return f"{sign} {format_number(self.bound)}{' ×' if self.is_ratio else ''}{plus}"


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measured value. `limit` is the same without Holdfast, measured alternately; `beside` describes it.

    `reference` is the result of Crush in an earlier measurement, with its ratio to the same limit where it is known.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    beside: str = ""
    goal: Goal | None = None
    key: str = ""
    section: str = ""
    reference: str = ""
    reference_ratio: float | None = None

    @property
    def ratio(self) -> float | None:
        """The value divided by the limit."""
        return self.value / self.limit if self.limit else None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.goal.is_met(self)


def ratio_of_medians(name: str, unit: str, pairs: Iterable[tuple[float, float]], beside: str, goal: Goal) -> Figure:
    """Return the figure of pairs of value and limit, each pair measured at the same time."""
    values, limits = zip(*pairs, strict=True)
    return Figure(name, median(values), unit, median(limits), beside, goal)


def format_number(value: float) -> str:
    """Return a number with three significant digits or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.{1 if value >= 10 else 2}f}"


def _cells(figure: Figure) -> tuple[str, ...]:
    goal = figure.goal
    return (
        figure.name,
        format_number(figure.value),
        figure.unit,
        "" if figure.limit is None else format_number(figure.limit),
        "" if figure.ratio is None else f"{figure.ratio:.2f} ×",
        "" if goal is None else f"{goal}",
        "" if goal is None else "✓" if figure.is_met else "✗",
        figure.reference,
        figure.beside,
    )


_HEADS = ("", "measured", "", "limit", "ratio", "goal", "", "Crush", "the limit is")
_ALIGN: Sequence[Callable[[str, int], str]] = (
    str.ljust, str.rjust, str.ljust, str.rjust, str.rjust, str.rjust, str.ljust, str.ljust, str.ljust,
)  # fmt: skip


def table(figures: Iterable[Figure]) -> str:
    """Return the figures as text, one line each, with a line before each section."""
    known = list(figures)
    rows = [_HEADS, *map(_cells, known)]
    # A column that is empty in all rows is left out.
    used = [column for column in range(len(_HEADS)) if column == 0 or any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    lines = ["  ".join(_ALIGN[column](row[column], widths[column]) for column in used).rstrip() for row in rows]
    printed, section = lines[:1], ""
    for figure, line in zip(known, lines[1:], strict=True):
        if figure.section != section:
            section = figure.section
            printed += ["", section]
        printed.append(line)
    return "\n".join(printed)
