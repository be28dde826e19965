"""`holdfast stats`: the same numbers as lines, as JSON and as a page."""

import re
from datetime import date
from html.parser import HTMLParser

import msgspec
import pytest

from cli.isolated_home import IsolatedHome
from holdfast.cli.stats_html import render_page
from holdfast.domain.usage import ModelUse, Stats

WEEK = tuple(tuple(day * hour for hour in range(24)) for day in range(7))
SOME = Stats(
    sessions=2,
    messages=9,
    prompt_tokens=1_500,
    completion_tokens=200,
    cost=1.25,
    runs={"completed": 200, "failed": 1},
    days={"2026-11-15": 3, "2026-11-16": 7},
    seconds=75.0,
    response_seconds=2.5,
    models=(ModelUse("acme", "<b>", 8, 2.5),),
    tools={"view": 5, "bash": 2},
    week=WEEK,
    costs={"2026-11-16": 1.25},
    workspaces=("/home/me/<project>",),
)


@pytest.fixture(scope="module")
def used(home: IsolatedHome) -> IsolatedHome:
    home.stdout_of("run", "words=3 tool=ls")
    home.call("run", "please fail")
    return home


def test_statistics_as_text(used: IsolatedHome) -> None:
    output = used.stdout_of("stats")
    assert str(used.work) in output
    assert re.search(r"sessions +2", output)
    assert "1 completed" in output
    assert "1 failed" in output
    assert re.search(r"demo/tour +━+ \d", output)
    assert re.search(r"ls +━+ 1", output)
    assert re.search(r"^  (Mon|Tue|Wed|Thu|Fri|Sat|Sun) .*█", output, re.MULTILINE)
    assert max(map(len, output.splitlines())) <= 100


def test_statistics_as_json(used: IsolatedHome) -> None:
    here = msgspec.json.decode(used.stdout_of("stats", "--json"), type=Stats)
    everywhere = msgspec.json.decode(used.stdout_of("stats", "--all", "--json"), type=Stats)
    assert here.tools == {"ls": 1}
    assert here.workspaces == (str(used.work),)
    assert sum(map(sum, here.week)) == 2, "every prompt has its hour"
    assert everywhere.sessions >= here.sessions
    assert here.workspaces[0] in everywhere.workspaces


def test_statistics_as_a_page(used: IsolatedHome) -> None:
    file = used.home / "stats.html"
    used.stdout_of("stats", "--html", str(file))
    text = file.read_text()
    assert "demo/tour" in text
    done = used.call("stats", "--html", str(used.home / "no" / "where.html"))
    assert done.returncode == 4
    assert "cannot be written" in done.stderr


class _Reader(HTMLParser):
    """Records open elements, text, and everything that could cause a request."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attrs)}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_valid_and_loads_nothing() -> None:
    text = render_page(SOME, date(2026, 11, 16))
    reader = _Reader()
    reader.feed(text)
    assert not reader.open
    assert not reader.names & {"script", "link", "img", "iframe", "src", "href", "onclick", "onload"}
    assert "url(" not in text
    assert "http" not in text
    output = " ".join(reader.texts)
    for words in ("/home/me/<project>", "acme/<b>: 8", "$1.25", "completed", "<1%", "16 November: 7", "Sun 23:00: 138"):
        assert words in output, words
    assert "prefers-color-scheme:dark" in text


def test_a_page_without_numbers() -> None:
    empty = Stats(0, 0, 0, 0, 0.0, {}, {}, 0.0, workspaces=("/x",), week=tuple((0,) * 24 for _ in range(7)))
    reader = _Reader()
    reader.feed(render_page(empty, date(2026, 11, 16)))
    assert "There are no runs yet." in reader.texts
