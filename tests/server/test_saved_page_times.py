"""Times at which saved pages are written, also after failures, and default periods of the server."""

import os
from pathlib import Path

import pytest

from holdfast.server.http.connection import Receive, Scope, Send
from holdfast.server.web import web_app
from holdfast.server.web.web_app import WebSessions, read_note
from holdfast.server.workspace_manager import GracePeriods

START = 1_000_000.0


class Now:
    """A clock moved by the test."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


async def _unused(_scope: Scope, _receive: Receive, _send: Send) -> None:
    return


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def opened(tmp_path: Path, now: Now, monkeypatch: pytest.MonkeyPatch) -> WebSessions:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    monkeypatch.setattr(web_app, "BUNDLE", bundle)
    made = WebSessions(_unused, tmp_path / "web.json", now)
    made.app.port = 4711
    return made


@pytest.mark.parametrize(("seconds", "is_written"), [(0.0, False), (600.0, False), (600.5, True)])
def test_request_saves_pages_after_ten_minutes(
    tmp_path: Path, now: Now, opened: WebSessions, seconds: float, is_written: bool
) -> None:
    now.time += seconds
    opened._use()
    assert (tmp_path / "web.json").exists() is is_written


def test_every_save_restarts_period(tmp_path: Path, now: Now, opened: WebSessions) -> None:
    note = tmp_path / "web.json"
    opened.exchange(opened.link(()).code)
    for step, is_written in ((600.5, True), (600.0, False), (0.5, True)):
        note.unlink()
        now.time += step
        opened._use()
        assert note.exists() is is_written, step
        note.touch()


def test_failed_save_restarts_period_and_leaves_no_temporary_file(
    tmp_path: Path, now: Now, opened: WebSessions
) -> None:
    note = tmp_path / "web.json"
    note.mkdir()
    page = opened.exchange(opened.link(()).code)
    assert sorted(os.listdir(tmp_path)) == ["bundle", "web.json"], "no draft is left"
    note.rmdir()
    now.time += 600.0
    opened._use()
    assert not note.exists(), "a failed note is not repeated at every request"
    now.time += 0.5
    opened._use()
    found = read_note(note)
    assert (found.port, [item.id for item in found.pages]) == (4711, [page.page])
    assert sorted(os.listdir(tmp_path)) == ["bundle", "web.json"]


def test_default_periods() -> None:
    assert GracePeriods() == GracePeriods(create=30.0, detach=10.0, linger=60.0, check_interval=2.0)
