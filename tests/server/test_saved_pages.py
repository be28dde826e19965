"""Saved pages that one server leaves to the next: contents and failures."""

import json
import os
from pathlib import Path

import pytest

from holdfast.protocol.bodies import PageChallengeRequest, PageCredentials, PageProof
from holdfast.server.http.connection import Asgi, Message, Receive, Scope, Send
from holdfast.server.web import web_app, web_auth
from holdfast.server.web.web_app import NoPage, SavedPages, WebSessions, is_worth_it, read_note

PORT = 4711
HOUR = 3600.0


class Now:
    """A clock moved by the test."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Now:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    monkeypatch.setattr(web_app, "BUNDLE", bundle)
    return Now()


async def unused_application(_scope: Scope, _receive: Receive, _send: Send) -> None:
    return


def opened(tmp_path: Path, now: Now) -> WebSessions:
    made = WebSessions(unused_application, tmp_path / "web.json", now)
    made.app.port = PORT
    return made


def reconnect(sessions: WebSessions, page: PageCredentials) -> PageCredentials:
    greeting = sessions.begin_return(PageChallengeRequest(page.page, "n" * 16))
    assert greeting.proof == web_auth.proof(page.key, "server", PORT, "n" * 16, greeting.nonce)
    return sessions.complete_return(
        PageProof(page.page, web_auth.proof(page.key, "page", PORT, "n" * 16, greeting.nonce))
    )


def is_admitted(sessions: WebSessions, token: str) -> bool:
    return web_auth.admit(sessions.app.auth, web_auth.digest(token), sessions._clock())[1] is not None


def test_page_reconnects_to_next_server(tmp_path: Path, now: Now) -> None:
    """With its key and a new token; the old token ends with its server.

    The file contains neither token nor environment.
    """
    first = opened(tmp_path, now)
    page = first.exchange(first.link(("SECRET=1",)).code)
    assert is_admitted(first, page.token)
    file = tmp_path / "web.json"
    assert (file.stat().st_mode & 0o777, list(tmp_path.glob("*.new"))) == (0o600, [])
    noted = json.loads(file.read_text())
    assert (noted["port"], [item["id"] for item in noted["pages"]]) == (PORT, [page.page])
    assert page.token not in file.read_text()
    assert "SECRET" not in file.read_text()
    second = opened(tmp_path, now)
    with pytest.raises(NoPage):
        reconnect(second, page)
    second.restore(read_note(file))
    assert not is_admitted(second, page.token)
    back = reconnect(second, page)
    assert (back.page, back.key, is_admitted(second, back.token)) == (page.page, page.key, True)
    third = opened(tmp_path, now)
    third.restore(read_note(file))
    assert reconnect(third, page).page == page.page, "who came back is noted again"


def test_renewed_token_replaces_previous(tmp_path: Path, now: Now) -> None:
    sessions = opened(tmp_path, now)
    page = sessions.exchange(sessions.link(()).code)
    (tmp_path / "web.json").unlink()
    renewed = sessions.renew(sessions.app.auth.pages[page.page])
    assert (renewed.page, renewed.key) == (page.page, page.key)
    assert (is_admitted(sessions, page.token), is_admitted(sessions, renewed.token)) == (False, True)
    assert (tmp_path / "web.json").exists()


def test_failed_save_refuses_no_page(
    tmp_path: Path, now: Now, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stays, and no temporary file is left."""
    sessions = opened(tmp_path, now)
    sessions.exchange(sessions.link(()).code)
    before, names = (tmp_path / "web.json").read_bytes(), os.listdir(tmp_path)

    def refuse(*_paths: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        page = sessions.exchange(sessions.link(()).code)
    assert is_admitted(sessions, page.token)
    assert (tmp_path / "web.json").read_bytes() == before
    assert os.listdir(tmp_path) == names
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(("age", "is_worth"), [(0.0, True), (11.9 * HOUR, True), (12 * HOUR, False), (-9.0, True)])
def test_saved_page_reopens_port_while_it_may_reconnect(
    age: float, is_worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    assert is_worth_it(SavedPages(PORT, (web_auth.Page("p", "key", 1_000_000.0 - age),))) is is_worth
    assert not is_worth_it(SavedPages(PORT, ()))


def test_page_with_request_in_flight_is_saved_as_present(tmp_path: Path, now: Now) -> None:
    sessions = opened(tmp_path, now)
    page = sessions.exchange(sessions.link(()).code)
    now.time += HOUR
    sessions.app.auth, _ = web_auth.admit(sessions.app.auth, web_auth.digest(page.token), now())
    sessions.exchange(sessions.link(()).code)
    seen = {item["id"]: item["seen"] for item in json.loads((tmp_path / "web.json").read_text())["pages"]}
    assert seen[page.page] == now()
    sessions.app.auth = web_auth.leave(sessions.app.auth, page.page, now() - 60)
    sessions.exchange(sessions.link(()).code)
    seen = {item["id"]: item["seen"] for item in json.loads((tmp_path / "web.json").read_text())["pages"]}
    assert seen[page.page] == now() - 60


async def test_page_is_kept_while_served_and_dropped_after_absence(tmp_path: Path, now: Now) -> None:
    """Also if a request failed."""
    sessions = opened(tmp_path, now)
    page = sessions.exchange(sessions.link(()).code)

    async def status(application: Asgi) -> int:
        output: list[Message] = []

        async def send(message: Message) -> None:
            output.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        sessions.app._application = application
        headers = [(b"host", b"127.0.0.1:4711"), (b"authorization", f"Bearer {page.token}".encode())]
        scope = {
            "method": "GET",
            "raw_path": b"/v1/x",
            "target": b"/v1/x",
            "headers": headers,
            "client": ("127.0.0.1", 1),
        }
        await sessions.app(scope, receive, send)
        return int(output[0]["status"]) if output else 200

    async def slow(_scope: Scope, _receive: Receive, _send: Send) -> None:
        now.time += 13 * HOUR
        assert await status(unused_application) == 200, "it is there"

    async def breaks(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ValueError("broken")

    assert await status(slow) == 200
    now.time += 11 * HOUR
    with pytest.raises(ValueError, match="broken"):
        await status(breaks)
    now.time += 11 * HOUR
    assert await status(unused_application) == 200
    now.time += 12 * HOUR
    assert await status(unused_application) == 401
