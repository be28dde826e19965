"""Numbers of `holdfast stats` as lines and as charts: bounds, sums of what is left out, and the smallest values."""

import re
from datetime import date, timedelta
from types import ModuleType

import pytest

from holdfast.cli import stats as text
from holdfast.cli import stats_html as page
from holdfast.domain.usage import ModelUse, Stats
from planting import CLAUSES, assert_every_clause_decides

TODAY = date(2026, 11, 16)
EMPTY_WEEK = tuple((0,) * 24 for _ in range(7))
WEEK = ((0,) * 23 + (8,), (1, 2, 3) + (0,) * 21, *((0,) * 24 for _ in range(5)))
EMPTY = Stats(0, 0, 0, 0, 0.0, {}, {}, 0.0, workspaces=("/x",), week=EMPTY_WEEK)
FULL = Stats(
    sessions=4,
    messages=9_000,
    prompt_tokens=1_400,
    completion_tokens=200,
    cost=10.0,
    runs={"failed": 1, "completed": 200, "unknown": 3},
    days={"2026-10-17": 9, "2026-10-18": 1, "2026-11-16": 8},
    seconds=75.0,
    response_seconds=2.5,
    models=(ModelUse("acme", "m", 8, 2.5), ModelUse("acme", "n", 0, 0.0)),
    tools={f"tool{number}": 20 - number for number in range(14)},
    week=WEEK,
    costs={"2026-11-16": 1.25},
    workspaces=("/a", "/b"),
)


def check_durations_and_numbers() -> None:
    for seconds, expected in ((0, "0.0 s"), (59.9, "59.9 s"), (60, "1.0 min"), (3599, "60.0 min"), (3600, "1.0 h")):
        assert page.format_duration(seconds) == expected
    for number, expected in (
        (0, "0"), (999, "999"), (1_000, "1.0K"), (999_999, "1000.0K"), (1_000_000, "1.0M"), (2_500_000_000, "2.5B"),
    ):  # fmt: skip
        assert page._abbreviate_number(number) == expected
    for count, expected in ((0, "&lt;1%"), (1, "&lt;1%"), (2, "1%"), (100, "50%"), (200, "100%")):
        assert page._percentage(count, 200) == expected
    for value, rounded in (
        (-1, 1), (0, 1), (0.001, 0.01), (0.05, 0.06), (0.1, 0.1), (0.15, 0.2), (0.99, 1.0), (1, 1), (3, 4), (9, 10),
        (10, 10), (11, 20), (99, 100), (101, 200), (1999, 2000),
    ):  # fmt: skip
        assert page._round_up(value) == pytest.approx(rounded), value
    assert (page._clip("x" * 52), page._clip("x" * 53)) == ("x" * 52, "x" * 51 + "…")


def _attributes(svg: str, tag: str, *names: str) -> list[tuple[str, ...]]:
    found = re.findall(rf"<{tag} [^>]*>", svg)
    return [tuple(re.findall(rf' {name}="([^"]*)"', item)[0] for name in names) for item in found]


def _texts(svg: str) -> list[str]:
    return [item for item in re.sub(r"<title>.*?</title>", "", svg).replace("<", "\n<").splitlines() if item]


def _labels(svg: str) -> list[str]:
    return re.findall(r"<title>(.*?)</title>", svg)


def check_bars() -> None:
    assert page._bars([]) == "<p>None yet.</p>"
    for count, shown in ((1, 1), (12, 12), (13, 13), (14, 13)):
        rows = [(f"r{number}", 1_000 - number) for number in range(count)]
        svg = page._bars(rows)
        assert len(_attributes(svg, "rect", "x")) == shown
        assert f'viewBox="0 0 460 {shown * 40 - 8}"' in svg
        rest = sum(value for _, value in rows[12:])
        last = f"{count - 12} others: {rest:,}" if count > 12 else f"r{count - 1}: {1_001 - count:,}"
        assert _labels(svg)[-2:] == [last, last]
        assert len(_labels(svg)) == 2 * shown
    most = text._MAX_ROWS
    for count in (1, most, most + 1, most + 2):
        rows = [(f"r{number}", 1_000 - number) for number in range(count)]
        lines = list(text._bars("models", rows))[2:]
        assert len(lines) == min(count, most + 1)
        rest = sum(value for _, value in rows[most:])
        assert lines[-1].split()[0] == (f"{count - most}" if count > most else f"r{count - 1}")
        assert lines[-1].split()[-1] == f"{rest or 1_001 - count:,}"
    svg = page._bars([("a", 100), ("<b>", 50), ("c", 0)])
    assert _attributes(svg, "rect", "y", "width") == [("18", "400.0"), ("58", "200.0"), ("98", "4.0")]
    assert [item for item in _texts(svg) if item.startswith("<text")] == [
        '<text class="name" x="0" y="12">a', '<text class="value" x="408.0" y="27">100',
        '<text class="name" x="0" y="52">&lt;b&gt;', '<text class="value" x="208.0" y="67">50',
        '<text class="name" x="0" y="92">c', '<text class="value" x="12.0" y="107">0',
    ]  # fmt: skip
    assert list(text._bars("tools", [])) == []
    assert list(text._bars("tools", [("a", 100), ("bcd", 50), ("c", 0)])) == [
        "", "  tools", f"  a    {'━' * text._BAR_WIDTH} 100", f"  bcd  {'━' * (text._BAR_WIDTH // 2)} 50", "  c    ━ 0",
    ]  # fmt: skip


def check_outcomes() -> None:
    assert page._outcomes(EMPTY) == "<p>There are no runs yet.</p>"
    svg = page._outcomes(FULL)
    assert _attributes(svg, "rect", "class", "x", "width") == [
        ("completed", "0.0", "991.0"),
        ("failed", "995.0", "5.0"),
    ]
    assert 'viewBox="0 0 1000.0 20"' in svg
    assert _labels(svg) == ["completed: 200", "failed: 1"]
    assert re.findall(r"<b>(\d+)</b> \((.*?)\)", svg) == [("200", "100%"), ("1", "&lt;1%")]


def check_columns() -> None:
    days = [TODAY - timedelta(days=ago) for ago in reversed(range(9))]
    svg = page._columns([(day, float(index % 4)) for index, day in enumerate(days)], page._integer)
    assert len(_attributes(svg, "path", "d")) == 6
    assert _labels(svg) == [f"{day:%-d %B}: {index % 4}" for index, day in enumerate(days) if index % 4]
    assert re.findall(r">([^<>]+)</text>", svg) == ["0", "2", "4", "9 Nov", "16 Nov"]
    assert _attributes(svg, "line", "y1") == [("150.0",), ("75.0",), ("0.0",)]
    assert re.findall(r"<td>(.*?)</td>", svg)[:4] == ["Monday, 9 November", "1", "Tuesday, 10 November", "2"]
    week = page._columns([(day, 1.0) for day in days[:7]], page._integer)
    assert re.findall(r">([^<>]+)</text>", week)[3:] == ["14 Nov"]
    assert "<table>" not in page._columns([(day, 0.0) for day in days], page._dollars)
    tall = page._column(10.0, 100.0, 20.0, 150.0, "x")
    assert 'd="M10.0 150.0V54.0q0 -4.0 4.0 -4.0h12.0q4.0 0 4.0 4.0V150.0z"' in tall
    assert 'd="M10.0 150.0V150.0q0 -2.0 2.0 -2.0h16.0' in page._column(10.0, 2.0, 20.0, 150.0, "x")


def check_heat_maps() -> None:
    assert page._heat_map(EMPTY_WEEK) == page._heat_map(()) == "<p>None yet.</p>"
    svg = page._heat_map(WEEK)
    classes = [name for (name,) in _attributes(svg, "rect", "class")]
    assert [classes[24 * 0 + 23], *classes[24:28]] == ["cell h5", "cell h1", "cell h2", "cell h2", "cell h0"]
    assert _attributes(svg, "rect", "x", "y")[25] == ("84", "28")
    assert _labels(svg)[23] == "Mon 23:00: 8"
    assert len(classes) == 7 * 24
    hours = ["00:00", "06:00", "12:00", "18:00"]
    assert re.findall(r">([^<>]+)</text>", svg) == [*page._WEEKDAYS, *hours]
    lines = list(text._heat_map(WEEK))
    shades = text._SHADE_CHARACTERS
    assert lines[0] == f"  Mon {'··' * 23}{shades[-1] * 2}"
    assert lines[1].startswith(f"  Tue {shades[1] * 2}")
    assert lines[7] == "      0           6           12          18"


def check_tiles() -> None:
    def facts(stats: Stats) -> list[tuple[str, ...]]:
        return re.findall(r"<span>(.*?)</span><b>(.*?)</b><small>(.*?)</small>", page._tiles(stats))

    assert facts(EMPTY) == [
        ("sessions", "0", "&nbsp;"), ("runs", "0", "&nbsp;"), ("messages", "0", "&nbsp;"),
        ("tool calls", "0", "&nbsp;"), ("context tokens", "0", "&nbsp;"), ("cost", "$0.00", "&nbsp;"),
    ]  # fmt: skip
    assert facts(FULL) == [
        ("sessions", "4", "&nbsp;"), ("runs", "204", "1.2 min each"), ("messages", "9,000", "2.5 s an answer"),
        ("tool calls", "189", "14 tools"), ("context tokens", "1.6K", "&nbsp;"), ("cost", "$10.00", "$2.50 a session"),
    ]  # fmt: skip


def check_page() -> None:
    whole, empty = page.render_page(FULL, TODAY), page.render_page(EMPTY, TODAY)
    assert "<title>Holdfast: 2 directories</title>" in whole
    assert "<td>/b</td>" in whole
    assert "<title>Holdfast: /x</title>" in empty
    assert "The directories" not in empty
    assert ("Cost, the last 30 days" in whole, "Cost, the last 30 days" in empty) == (True, False)
    assert "18 October: 1<" in whole
    assert "17 October" not in whole, "the thirty-first day"
    for words in ("acme/n: 0", "2 others: 15", "16 November: $1.25", "16 November: 8"):
        assert words in whole, words
    assert re.findall(r'<section class="(\w+)"><h2>(.*?)</h2>', empty) == [
        ("wide", "Runs by outcome"), ("wide", "Runs, the last 30 days"), ("wide", "Prompts"),
    ]  # fmt: skip


def check_lines() -> None:
    assert list(text._lines(EMPTY, TODAY))[1:] == [
        "", "  sessions                 0", "  messages                 0", "  runs                     0",
        "  tokens in use            0  in the contexts of all sessions", "  cost                 $0.00  ",
    ]  # fmt: skip
    lines = list(text._lines(FULL, TODAY))
    assert lines[2:8] == [
        "  sessions                 4",
        "  messages             9,000  2,250.00 a session",
        "  runs                   204  200 completed, 3 unknown, 1 failed",
        "  tokens in use        1,600  in the contexts of all sessions",
        "  cost                $10.00  $2.50 a session",
        "  run duration       1.2 min  2.5 s an answer",
    ]
    assert lines[9] == "  the last 30 days"
    assert lines[10].endswith("9 runs, 8 on the busiest day")
    assert lines[10].strip()[:2] == f"{text._BARS[1]}·"
    assert lines[10].split("  ")[1][-1] == text._BARS[-1]
    assert "  prompts by weekday and hour" in lines
    assert "2 directories" in lines[0]


CHECKS = (
    check_durations_and_numbers, check_bars, check_outcomes, check_columns, check_heat_maps, check_tiles, check_page,
    check_lines,
)  # fmt: skip


def check_all() -> None:
    for rows in CHECKS:
        rows()


@pytest.mark.parametrize("module", [page, text])
def test_every_mistake_in_the_numbers_is_noticed(module: ModuleType) -> None:
    names = {
        page: (
            "_bars _outcomes _columns _column _heat_map _tiles render_page _directory_list _round_up _percentage "
            "_abbreviate_number format_duration _clip _table _section"
        ),
        text: "_bars _lines _row _average _days _heat_map",
    }
    functions = [getattr(module, name) for name in names[module].split()]
    equivalent = {
        page: dict.fromkeys(
            ("value >= 1 -> value > 1", "value >= 0.1 -> value > 0.1"), "ten steps of the smaller size are the same"
        ),
        text: {"max(counts) or 1 -> max(counts)": "without counts nothing is divided"},
    }
    assert_every_clause_decides(functions, check_all, equivalent[module], CLAUSES | {"comparison", "exit", "statement"})
