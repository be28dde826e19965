"""`holdfast stats`: usage statistics."""

import time
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path

import click

from holdfast.cli.common import CommandError, location_options, report_errors
from holdfast.cli.server_connection import ServerConnection
from holdfast.cli.stats_html import format_duration, render_page
from holdfast.client.server_launcher import locate
from holdfast.domain.usage import Stats

__all__ = ["command"]

_DAYS = 30
_BARS = " ▁▂▃▄▅▆▇█"
_SHADE_CHARACTERS = " ░▒▓█"
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MAX_ROWS = 8
_BAR_WIDTH = 24


@click.command("stats")
@click.option("--all", "everywhere", is_flag=True, help="Include all directories.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", metavar="FILE", help="Write an HTML page with charts to this file.")
@location_options
def command(*, everywhere: bool, as_json: bool, html: str | None, **location: str | None) -> None:
    """Show usage statistics: sessions, runs, models, tools, tokens, cost.

    \b
      holdfast stats
      holdfast stats --all --html stats.html
      holdfast stats --json
    """
    import msgspec

    with report_errors():
        connection = ServerConnection(
            locate(location["host"], location["data_dir"]), "" if everywhere else str(location["cwd"])
        )
        connection.open()
        query = (("zone", time.localtime().tm_gmtoff // 60),)
        stats = connection.request(Stats, "GET", "/v1/stats" if everywhere else connection.path("stats"), query=query)
        if html:
            _write_page(html, stats, date.today())
        elif as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(stats)))
        else:
            for line in _lines(stats, date.today()):
                click.echo(line)


def _write_page(file: str, stats: Stats, today: date) -> None:
    try:
        Path(file).write_text(render_page(stats, today), "utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from None
    click.echo(f"Written to {file}.", err=True)


def _lines(stats: Stats, today: date) -> Iterable[str]:
    directories = stats.workspaces[0] if len(stats.workspaces) == 1 else f"{len(stats.workspaces)} directories"
    yield click.style(directories, bold=True)
    yield ""
    runs = sum(stats.runs.values())
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(stats.runs.items(), key=lambda item: -item[1]))
    yield _row("sessions", stats.sessions)
    yield _row("messages", stats.messages, _average(stats.messages, stats.sessions, "a session"))
    yield _row("runs", runs, outcomes)
    yield _row("tokens in use", stats.prompt_tokens + stats.completion_tokens, "in the contexts of all sessions")
    cost = "$" + format(stats.cost, ",.2f")
    yield f"  {'cost':<14}{cost:>12}  {_average(stats.cost, stats.sessions, 'a session', '$')}"
    if stats.seconds:
        answer = format_duration(stats.response_seconds)
        yield f"  {'run duration':<14}{format_duration(stats.seconds):>12}  {answer} an answer"
    if runs:
        yield from ("", f"  the last {_DAYS} days", f"  {_days(stats, today)}")
    yield from _bars("models", [(f"{item.provider}/{item.model}", item.messages) for item in stats.models])
    yield from _bars("tools", list(stats.tools.items()))
    if any(any(day) for day in stats.week):
        yield from ("", "  prompts by weekday and hour")
        yield from _heat_map(stats.week)


def _row(name: str, number: int, more: str = "") -> str:
    return f"  {name:<14}{number:>12,}  {more}".rstrip()


def _average(total: float, count: int, what: str, sign: str = "") -> str:
    return f"{sign}{total / count:,.2f} {what}" if count else ""


def _days(stats: Stats, today: date) -> str:
    counts = [stats.days.get((today - timedelta(days=ago)).isoformat(), 0) for ago in reversed(range(_DAYS))]
    most = max(counts) or 1
    bars = "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] if count else "·" for count in counts)
    return f"{bars}  {sum(counts)} runs, {max(counts)} on the busiest day"


def _bars(title: str, rows: Sequence[tuple[str, int]]) -> Iterable[str]:
    if not rows:
        return
    yield from ("", f"  {title}")
    shown = [*rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        shown.append((f"{len(rows) - _MAX_ROWS} others", sum(count for _, count in rows[_MAX_ROWS:])))
    width = max(len(name) for name, _ in shown)
    most = max(count for _, count in shown)
    for name, count in shown:
        yield f"  {name:<{width}}  {'━' * max(1, round(count * _BAR_WIDTH / most))} {count:,}"


def _heat_map(week: Sequence[Sequence[int]]) -> Iterable[str]:
    most = max(count for day in week for count in day)
    for name, day in zip(_WEEKDAYS, week, strict=True):
        cells = "".join(
            _SHADE_CHARACTERS[-(-count * (len(_SHADE_CHARACTERS) - 1) // most)] * 2 if count else "··" for count in day
        )
        yield f"  {name} {cells}"
    yield "      " + "".join(f"{hour:<12}" for hour in (0, 6, 12, 18)).rstrip()
