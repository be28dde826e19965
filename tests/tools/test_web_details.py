"""fetch and download in edge cases: time limits, content types, size limits, proxies, repeated approvals."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import html_to_markdown
import pytest

from holdfast.domain.errors import PermissionDenied, ToolError
from holdfast.testing.seeded_loop import elapse, in_virtual_time
from holdfast.tools import download
from holdfast.tools.agentic_fetch import WebFetch
from holdfast.tools.fetch import without_clock
from holdfast.tools.registry import BuiltinTools, ToolNeeds
from holdfast.workspace.web_client import WebClient, WebTarget, address_note, parse_target
from tools.direct_calls import DirectCaller
from workspace.web_server import Visit, WebServer, web_server


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    return root


async def caller(root: Path, limit: int = 1 << 20) -> DirectCaller:
    async def resolve(host: str, _: int) -> Sequence[str]:
        if host == "odd.example":
            raise UnicodeError
        if host.endswith(".example") and host != "inner.example":
            raise OSError
        return ["127.0.0.1"]

    way = WebClient(resolve)
    tools = await BuiltinTools(ToolNeeds(web=way, download_limit=limit)).current()
    return DirectCaller(root, [*tools, WebFetch(way)])


def send(server: WebServer, path: str, body: bytes = b"", status: int = 200, *headers: str) -> None:
    async def show(visit: Visit) -> None:
        await visit.answer(body, status, headers=headers)

    server.pages[path] = show


def test_the_time_limit_is_suspended_while_an_approval_is_pending() -> None:
    """It continues with the remaining time, not with more."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def slow(_: WebTarget) -> None:
            await elapse(1_000)

        deadline = asyncio.timeout(30)
        async with deadline:
            await elapse(20)
            await without_clock(deadline, slow)(parse_target("http://a.example"))
            assert deadline.when() == pytest.approx(loop.time() + 10)

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        ("text/html", b"<p>a <b>b</b></p>", "a **b**"),
        ("application/xhtml+xml", b"<p>a <b>b</b></p>", "a **b**"),
        ("", b" \n<p>a <b>b</b></p>", "a **b**"),
        ("", b"a <b>b</b>", "a <b>b</b>"),
        ("text/plain", b"<p>a <b>b</b></p>", "<p>a <b>b</b></p>"),
        ("text/plain; charset=no-such", b"a", "a"),
        ("text/plain; charset=latin-1", b"\xe9", "é"),
        ("text/plain", b" \n", "(the page is empty)"),
        ("image/png", b"a", "error: This is image/png, not text. Use download to save it."),
    ],
)
async def test_content_is_converted_by_its_type(root: Path, web: WebServer, kind: str, body: bytes, shown: str) -> None:
    send(web, "/", body, 200, *([f"Content-Type: {kind}"] if kind else []))
    call = await caller(root)
    assert (await call.text("fetch", url=f"{web.url}/")).strip() == shown


@pytest.mark.parametrize("status", [201, 204, 206, 304, 404, 500])
async def test_incomplete_response_is_an_error(root: Path, web: WebServer, status: int) -> None:
    send(web, "/", b"", status, "Content-Type: text/plain")
    call = await caller(root)
    assert f"status {status}; nothing was fetched" in await call.text("fetch", url=f"{web.url}/")
    assert f"status {status}; nothing was saved" in await call.text("download", url=f"{web.url}/", file_path="f")
    assert os.listdir(root) == []


async def test_a_page_that_cannot_be_converted_is_shown_as_it_is(
    root: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise html_to_markdown.ConversionError("no")

    monkeypatch.setattr(html_to_markdown, "convert", refuse)
    send(web, "/", b"<p>a</p>", 200, "Content-Type: text/html")
    assert await (await caller(root)).text("fetch", url=f"{web.url}/") == "<p>a</p>"


# Approvals


async def test_redirect_within_the_host_needs_no_approval(root: Path, web: WebServer) -> None:
    web.page("/b", b"x", "text/plain")
    web.redirect("/a", "/b")
    web.redirect("/away", f"http://localhost:{web.port}/b")
    for tool, more in (("fetch", {}), ("download", {"file_path": "f"})):
        call = await caller(root)
        await call(tool, url=f"{web.url}/a", **more)
        assert [(permit.params["url"], permit.is_agreed) for permit in call.permits] == [
            (f"{web.url}/a", False),
            (f"{web.url}/b", True),
        ]
        (root / "f").unlink(missing_ok=True)
        call.permits.clear()
        await call(tool, url=f"{web.url}/away", **more)
        assert [permit.is_agreed for permit in call.permits] == [False, False]
        assert "this computer" in call.permits[1].description
        (root / "f").unlink(missing_ok=True)


async def test_private_address_behind_a_name_needs_one_approval(root: Path, web: WebServer) -> None:
    web.page("/b", b"x", "text/plain")
    web.redirect("/a", "/b")
    inner = f"http://inner.example:{web.port}"
    call = await caller(root)
    await call("fetch", url=f"{inner}/a")
    asked = [(permit.params["url"], "not the open internet" in permit.description) for permit in call.permits]
    assert asked == [(f"{inner}/a", False), (f"{inner}/a", True), (f"{inner}/b", False)]


async def test_sub_agents_follow_rules_and_reach_only_public_addresses(root: Path, web: WebServer) -> None:
    web.page("/page", b"x", "text/plain")
    call = await caller(root)
    call.environment = {"http_proxy": web.url}
    send(web, "http://open.example/a", b"page", 200, "Content-Type: text/plain")
    web.redirect("http://open.example/in", f"{web.url}/page")
    assert await call.text("web_fetch", url=" http://Open.example/a") == "page"
    (permit,) = call.permits
    assert (permit.tool, permit.action, permit.is_agreed) == ("fetch", "fetch", True)
    assert permit.params == {"url": "http://open.example/a"}
    for url in (f"{web.url}/page", "http://open.example/in"):
        with pytest.raises(PermissionDenied, match="sub-agents cannot access it") as refused:
            await call("web_fetch", url=url)
        assert not refused.value.stops_turn
    assert [visit.path for visit in web.visits] == ["http://open.example/a", "http://open.example/in"]


# Proxies


@pytest.mark.parametrize(
    ("environment", "is_used"),
    [
        ({"http_proxy": "P"}, True),
        ({"HTTP_PROXY": "P"}, True),
        ({"all_proxy": "P"}, True),
        ({"ALL_PROXY": "P", "https_proxy": "http://127.0.0.1:1"}, True),
        ({"https_proxy": "P"}, False),
        ({}, False),
        ({"http_proxy": "P", "no_proxy": "open.example"}, False),
        ({"http_proxy": "P", "no_proxy": " other , .Example"}, False),
        ({"http_proxy": "P", "NO_PROXY": "*"}, False),
        ({"http_proxy": "P", "no_proxy": "pen.example,other"}, True),
    ],
)
async def test_proxy_selection(root: Path, web: WebServer, environment: dict[str, str], is_used: bool) -> None:
    send(web, "http://open.example/a", b"page", 200, "Content-Type: text/plain")
    web.page("/own", b"own", "text/plain")
    call = await caller(root)
    call.environment = {name: value.replace("P", web.url, value == "P") for name, value in environment.items()}
    shown = await call.text("fetch", url="http://open.example/a")
    assert shown == ("page" if is_used else "error: There is no host open.example, or the network cannot be reached.")
    # Private addresses are contacted directly.
    assert await call.text("fetch", url=f"{web.url}/own") == "own"
    assert [visit.path for visit in web.visits] == ["http://open.example/a"] * is_used + ["/own"]


async def test_unknown_host_is_reported(root: Path) -> None:
    call = await caller(root)
    for host in ("none.example", "odd.example"):
        assert f"There is no host {host}" in await call.text("fetch", url=f"http://{host}/")


@pytest.mark.parametrize(("redirects", "is_reached"), [(9, True), (10, False)])
async def test_redirect_limit(web: WebServer, redirects: int, is_reached: bool) -> None:
    async def allow(_: WebTarget) -> None:
        return

    for number in range(redirects):
        web.redirect(f"/{number}", f"/{number + 1}")
    web.page(f"/{redirects}", b"end", "text/plain")
    way = WebClient().get(parse_target(f"{web.url}/0"), allow, {})
    if is_reached:
        async with way as answer:
            assert await answer.read(10) == (b"end", False)
    else:
        with pytest.raises(ToolError, match="more than 10 times"):
            await way.__aenter__()
    assert len(web.visits) == 10


# Saving


async def test_download_in_many_pieces_is_saved_unchanged(
    root: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(600_000)
    web.page("/", data, "application/octet-stream")
    monkeypatch.setattr(download, "_BUFFER", 1_000)
    ticks = iter(range(10_000))
    # 0.4 s pass with each piece.
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: 0.4 * next(ticks)))
    call = await caller(root)
    assert "Saved 600,000 bytes" in await call.text("download", url=f"{web.url}/", file_path="f")
    assert (root / "f").read_bytes() == data
    pieces = next(ticks) - 1 - len(call.output)
    assert len(call.output) == pieces // 3 > 0, "published about once a second"


@pytest.mark.parametrize("has_length", [True, False])
async def test_download_size_limit(root: Path, web: WebServer, has_length: bool) -> None:
    async def show(visit: Visit) -> None:
        await visit.begin(200, ("Content-Length: 1000" if has_length else "Transfer-Encoding: chunked",))
        await visit.send(b"x" * 1000 if has_length else b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")

    web.pages["/"] = show
    refused = await (await caller(root, 999)).text("download", url=f"{web.url}/", file_path="f")
    assert ("has 1,000 bytes" if has_length else "larger than 999") in refused
    assert os.listdir(root) == []
    assert "Saved 1,000 bytes" in await (await caller(root, 1_000)).text("download", url=f"{web.url}/", file_path="f")


async def test_history_contains_only_small_text_downloads(
    root: Path, web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_FILE_BYTES", 10)
    call = await caller(root)
    for size in (10, 11):
        web.page("/", b"y" * size, "text/plain")
        await call("download", url=f"{web.url}/", file_path=f"f{size}")
    known = [version.content == "y" * size for version, size in zip(call.versions[1::2], (10, 11), strict=True)]
    assert known == [True, False]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "this computer"),
        ("0.0.0.0", "this computer"),
        ("::", "this computer"),
        ("::1", "this computer"),
        ("::ffff:127.0.0.1", "this computer"),
        ("64:ff9b::7f00:1", "this computer"),
        ("2002:7f00:1::", "this computer"),
        ("169.254.169.254", "a link-local address"),
        ("fe80::1%eth0", "a link-local address"),
        ("10.1.2.3", "a private network"),
        ("192.0.0.9", "a private network"),
        ("224.0.0.251", "a private network"),
        ("fec0::1", "a private network"),
        ("9.9.9.9", ""),
        ("2620:fe::fe", ""),
        ("no address", ""),
    ],
)
def test_address_classification(address: str, kind: str) -> None:
    note = address_note(address)
    assert note.startswith(f"{kind} ({address})") if kind else note == ""
