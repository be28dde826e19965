"""Statistics as a self-contained HTML page without scripts or external resources.

Each colour has one meaning: blue is a quantity, outcomes have their own colours. Light and dark follow the browser's
setting.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from html import escape

from holdfast.domain.usage import Stats

__all__ = ["format_duration", "render_page"]

_DAYS = 30
_MAX_ROWS = 12
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_OUTCOMES = ("completed", "failed", "cancelled", "interrupted", "open")

_STYLE = """
:root{color-scheme:light dark;--page:#f9f9f7;--card:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--faint:#898781;--line:#e1e0d9;
--edge:#0b0b0b1a;--bar:#2a78d6;--h0:#eef2f7;--h1:#cde2fb;--h2:#9ec5f4;--h3:#5598e7;--h4:#256abf;--h5:#104281;
--completed:#0ca30c;--failed:#d03b3b;--cancelled:#898781;--interrupted:#ec835a;--open:#2a78d6}
@media(prefers-color-scheme:dark){:root{--page:#0d0d0d;--card:#1a1a19;--ink:#fff;--soft:#c3c2b7;--faint:#898781;
--line:#2c2c2a;--edge:#ffffff1a;--bar:#3987e5;--h0:#242423;--h1:#0d366b;--h2:#184f95;--h3:#2a78d6;--h4:#6da7ec;
--h5:#b7d3f6}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1040px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:26px;margin:0 0 4px;font-weight:650;letter-spacing:-.01em}
.about{color:var(--soft);margin:0 0 28px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}
.tile,section{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:16px 18px}
.tile b{display:block;font-size:26px;font-weight:620;line-height:1.2;letter-spacing:-.01em}
.tile span,.tile small{color:var(--soft);font-size:13px}
.tile small{display:block;color:var(--faint)}
.wide,.pair>*{margin-bottom:16px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 16px;align-items:start}
@media(max-width:760px){.pair{grid-template-columns:1fr}}
h2{font-size:15px;font-weight:620;margin:0}
section p{margin:0 0 12px;color:var(--soft);font-size:13px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--faint)}
svg .name{fill:var(--soft)} svg .value{fill:var(--ink)}
.grid{stroke:var(--line);stroke-width:1}
.bar{fill:var(--bar)} .bar:hover,.cell:hover{opacity:.75}
.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}.h5{fill:var(--h5)}
.completed{fill:var(--completed)}.failed{fill:var(--failed)}.cancelled{fill:var(--cancelled)}
.interrupted{fill:var(--interrupted)}.open{fill:var(--open)}
.key{display:flex;flex-wrap:wrap;gap:6px 18px;margin-top:12px;font-size:13px;color:var(--soft)}
.key i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px}
.key b{color:var(--ink);font-weight:600}
details{margin-top:12px;font-size:13px;color:var(--soft)} summary{cursor:pointer}
table{border-collapse:collapse;margin-top:8px;width:100%}
td,th{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--line);font-weight:400;overflow-wrap:anywhere}
td:last-child{text-align:right;font-variant-numeric:tabular-nums;color:var(--ink);padding-right:0}
footer{color:var(--faint);font-size:13px;margin-top:24px}
"""


def render_page(stats: Stats, today: date) -> str:
    """Return the page. It is deterministic for the same numbers."""
    single = stats.workspaces[0] if len(stats.workspaces) == 1 else ""
    where = single or f"{len(stats.workspaces)} directories"
    days = [today - timedelta(days=ago) for ago in reversed(range(_DAYS))]
    runs = [(day, float(stats.days.get(day.isoformat(), 0))) for day in days]
    costs = [(day, stats.costs.get(day.isoformat(), 0.0)) for day in days]
    models = [(f"{item.provider}/{item.model}", item.messages) for item in stats.models]
    body = [
        _tiles(stats),
        _section("Runs by outcome", "Outcomes of all runs", _outcomes(stats), "wide"),
        _section(f"Runs, the last {_DAYS} days", "By the day of acceptance", _columns(runs, _integer), "wide"),
    ]
    if any(cost for _, cost in costs):
        head = f"Cost, the last {_DAYS} days"
        body.append(_section(head, "By the day the session was created", _columns(costs, _dollars), "wide"))
    pair = [
        _section("Models", "Answers per model", _bars(models)),
        _section("Tools", "Calls per tool", _bars(list(stats.tools.items()))),
    ]
    body += [f'<div class="pair">{"".join(pair)}</div>']
    body.append(_section("Prompts", "By weekday and hour", _heat_map(stats.week), "wide"))
    title = f"Holdfast: {where}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>Usage</h1><p class="about">{escape(where)} · {today:%-d %B %Y}</p>'
        f"{''.join(body)}<footer>{_directory_list(stats)}Created by holdfast stats.</footer></main></body></html>\n"
    )


def _directory_list(stats: Stats) -> str:
    if len(stats.workspaces) < 2:
        return ""
    rows = "".join(f"<tr><td>{escape(path)}</td></tr>" for path in stats.workspaces)
    return f"<details><summary>The directories</summary><table>{rows}</table></details>"


def _section(title: str, about: str, inner: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f"<section{name}><h2>{escape(title)}</h2><p>{escape(about)}</p>{inner}</section>"


def _tiles(stats: Stats) -> str:
    runs = sum(stats.runs.values())
    a_session = f"${stats.cost / stats.sessions:,.2f} a session" if stats.sessions else ""
    facts = [
        ("sessions", f"{stats.sessions:,}", ""),
        ("runs", f"{runs:,}", f"{format_duration(stats.seconds)} each" if stats.seconds else ""),
        (
            "messages",
            f"{stats.messages:,}",
            f"{format_duration(stats.response_seconds)} an answer" if stats.models else "",
        ),
        ("tool calls", f"{sum(stats.tools.values()):,}", f"{len(stats.tools)} tools" if stats.tools else ""),
        ("context tokens", _abbreviate_number(stats.prompt_tokens + stats.completion_tokens), ""),
        ("cost", f"${stats.cost:,.2f}", a_session),
    ]
    tiles = (
        f'<div class="tile"><span>{name}</span><b>{value}</b><small>{escape(more) or "&nbsp;"}</small></div>'
        for name, value, more in facts
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _abbreviate_number(number: int) -> str:
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def format_duration(seconds: float) -> str:
    """Format a duration in a few characters."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _integer(value: float) -> str:
    return f"{value:,.0f}"


def _dollars(value: float) -> str:
    return f"${value:,.2f}"


def _outcomes(stats: Stats) -> str:
    """Draw one bar in parts with gaps, and a legend."""
    counts = [(name, stats.runs[name]) for name in _OUTCOMES if stats.runs.get(name)]
    total = sum(count for _, count in counts)
    if not total:
        return "<p>There are no runs yet.</p>"
    room = 1000 - 4 * (len(counts) - 1)
    at, parts = 0.0, []
    for name, count in counts:
        wide = max(3.0, room * count / total)
        label = f"{name}: {count:,}"
        parts.append(
            f'<rect class="{name}" x="{at:.1f}" y="0" width="{wide:.1f}" height="20" rx="4">{_tooltip(label)}</rect>'
        )
        at += wide + 4
    keys = "".join(
        f'<span><i style="background:var(--{name})"></i>{name} <b>{count:,}</b> ({_percentage(count, total)})</span>'
        for name, count in counts
    )
    whole = f'<svg viewBox="0 0 {at - 4:.1f} 20" role="img" aria-label="Runs by outcome">{"".join(parts)}</svg>'
    return f'{whole}<div class="key">{keys}</div>'


def _percentage(count: int, total: int) -> str:
    return "&lt;1%" if count * 100 < total else f"{count / total:.0%}"


def _columns(values: Sequence[tuple[date, float]], shown: Callable[[float], str]) -> str:
    """Draw a column for each day, with the value as a tooltip."""
    high, wide, left = 150.0, 1000.0, 44.0
    most = max((value for _, value in values), default=0.0)
    step = (wide - left) / len(values)
    top = _round_up(most)
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = high - high * share
        parts.append(f'<line class="grid" x1="{left}" x2="{wide}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(top * share)}</text>')
    for index, (day, value) in enumerate(values):
        x = left + index * step
        if value:
            parts.append(
                _column(x + step * 0.15, high * value / top, step * 0.7, high, f"{day:%-d %B}: {shown(value)}")
            )
        if index % 7 == len(values) % 7 - 1 or index == len(values) - 1:
            parts.append(f'<text x="{x + step / 2:.1f}" y="{high + 20}" text-anchor="middle">{day:%-d %b}</text>')
    rows = [(f"{day:%A, %-d %B}", shown(value)) for day, value in values if value]
    chart = f'<svg viewBox="0 -8 {wide} {high + 34}" role="img">{"".join(parts)}</svg>'
    return chart + _table(rows)


def _column(x: float, tall: float, wide: float, base: float, label: str) -> str:
    """Draw a column that is rounded at the top and square at the base."""
    radius = min(4.0, tall, wide / 2)
    y = base - tall
    path = (
        f"M{x:.1f} {base}V{y + radius:.1f}q0 -{radius:.1f} {radius:.1f} -{radius:.1f}"
        f"h{wide - 2 * radius:.1f}q{radius:.1f} 0 {radius:.1f} {radius:.1f}V{base}z"
    )
    return f'<path class="bar" d="{path}">{_tooltip(label)}</path>'


def _round_up(value: float) -> float:
    """Return a round number that is at least as large."""
    if value <= 0:
        return 1.0
    size = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1 if value >= 0.1 else 0.01
    return next(size * step for step in (1, 2, 4, 6, 8, 10, 20) if size * step >= value)


def _bars(rows: Sequence[tuple[str, int]]) -> str:
    if not rows:
        return "<p>None yet.</p>"
    shown = list(rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        shown.append((f"{len(rows) - _MAX_ROWS} others", sum(count for _, count in rows[_MAX_ROWS:])))
    most = max(count for _, count in shown)
    parts = []
    for index, (name, count) in enumerate(shown):
        y = index * 40
        long = max(4.0, 400 * count / most)
        label = f"{name}: {count:,}"
        parts.append(f'<text class="name" x="0" y="{y + 12}">{escape(_clip(name))}{_tooltip(label)}</text>')
        parts.append(
            f'<rect class="bar" x="0" y="{y + 18}" width="{long:.1f}" height="10" rx="4">{_tooltip(label)}</rect>'
        )
        parts.append(f'<text class="value" x="{long + 8:.1f}" y="{y + 27}">{count:,}</text>')
    return f'<svg viewBox="0 0 460 {len(shown) * 40 - 8}" role="img">{"".join(parts)}</svg>'


def _heat_map(week: Sequence[Sequence[int]]) -> str:
    most = max((count for day in week for count in day), default=0)
    if not most:
        return "<p>None yet.</p>"
    parts = []
    for row, (name, day) in enumerate(zip(_WEEKDAYS, week, strict=True)):
        parts.append(f'<text class="name" x="0" y="{row * 28 + 18}">{name}</text>')
        for hour, count in enumerate(day):
            level = -(-count * 5 // most)
            label = f"{name} {hour:02}:00: {count:,}"
            place = f'x="{44 + hour * 40}" y="{row * 28}"'
            parts.append(f'<rect class="cell h{level}" {place} width="36" height="24" rx="4">{_tooltip(label)}</rect>')
    parts += [f'<text x="{44 + hour * 40}" y="{7 * 28 + 14}">{hour:02}:00</text>' for hour in (0, 6, 12, 18)]
    return f'<svg viewBox="0 0 1000 {7 * 28 + 20}" role="img">{"".join(parts)}</svg>'


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Return the same numbers as a table, as an alternative to the chart."""
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<details><summary>As a table</summary><table>{lines}</table></details>" if lines else ""


def _tooltip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _clip(text: str) -> str:
    return text if len(text) <= 52 else text[:51] + "…"
