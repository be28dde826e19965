"""`holdfast web`: a real command, a real server, and the requests of a browser."""

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from cli.isolated_home import TIMEOUT, IsolatedHome


def _link(text: str) -> tuple[str, dict[str, str]]:
    """Return the URL of the page and the values in its fragment."""
    address, _, fragment = text.partition("#")
    return address, dict(urllib.parse.parse_qsl(fragment))


def _asked(address: str, path: str = "", body: object = None, token: str = "") -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address.rstrip("/") + "/" + path, data, headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=TIMEOUT) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_the_link_opens_the_page_and_the_workspace(alone: IsolatedHome) -> None:
    alone.work = alone.home / "my projects & more #1"
    alone.work.mkdir()
    alone.environment["HOLDFAST_TEST_CANARY"] = "c4n4ry-value"
    address, reported = _link(alone.stdout_of("web", "--no-open"))
    assert reported["dir"] == str(alone.work)
    assert "?" not in address
    status, page = _asked(address)
    assert (status, b"<script" in page) == (200, True)
    status, answer = _asked(address, "v1/web/exchange", {"code": reported["code"]})
    assert status == 200
    token = json.loads(answer)["token"]
    client = {"id": "", "path": reported["dir"], "client_id": "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"}
    status, opened = _asked(address, "v1/workspaces", client, token)
    assert (status, json.loads(opened)["path"]) == (200, reported["dir"])
    assert b"c4n4ry-value" not in opened
    status, answer = _asked(address, "v1/web/exchange", {"code": reported["code"]})
    assert (status, b"holdfast web" in answer) == (400, True)
    again, more = _link(alone.stdout_of("web", "--no-open"))
    assert (again, more["code"] != reported["code"]) == (address, True)
    log = Path(alone.where.data_dir, "logs", "server.log").read_text()
    assert "the page is open" in log
    assert not any(secret in log for secret in (reported["code"], more["code"], token))


def test_the_browser_is_opened_if_there_is_one(alone: IsolatedHome) -> None:
    browser, seen = alone.home / "browser", alone.home / "seen"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" >{seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    alone.environment["BROWSER"] = str(browser)
    printed = alone.stdout_of("web")
    assert seen.read_text() == printed
    seen.unlink()
    alone.stdout_of("web", "--no-open")
    assert not seen.exists()
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        alone.environment.pop(name, None)
    assert _link(alone.stdout_of("web"))[1]["code"]


def test_closing_and_a_fixed_port(alone: IsolatedHome) -> None:
    assert alone.stdout_of("web", "--close") == "No server is running, so no page is open."
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        refused = alone.call("web", "--no-open", "--port", taken)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr.startswith(f"holdfast: 127.0.0.1:{taken} cannot be used")
    address, _ = _link(alone.stdout_of("web", "--no-open", "--port", taken))
    assert address == f"http://127.0.0.1:{taken}/"
    other_port = alone.call("web", "--no-open", "--port", "1")
    assert (other_port.returncode, "--close" in other_port.stderr) == (4, True)
    assert alone.stdout_of("web", "--close").startswith("Closed")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(taken))) != 0
