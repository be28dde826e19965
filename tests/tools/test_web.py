"""fetch and download from a real local server."""

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from holdfast.domain.events import ToolOutputEvent
from holdfast.domain.settings import PermissionSettings
from holdfast.permissions.rule_decision import RuleSet
from holdfast.testing.gates import until
from holdfast.tools.registry import ToolNeeds
from holdfast.workspace.web_client import WebClient
from tools.test_undo import undo_last
from tools.tool_runner import ToolRunner
from workspace.web_server import Visit, WebServer, web_server

PAGE = b"""<html><head><title>T</title><script>bad()</script></head>
<body><h1>Head</h1><p>Some <b>bold</b> <a href="/x">link</a></p></body></html>"""


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        server.page("/page", PAGE)
        server.page("/data.json", b'{"a": [1]}', "application/json")
        server.page("/file.bin", bytes(range(256)) * 1_000, "application/octet-stream")
        yield server


async def test_a_page_is_read_as_markdown_text_or_source(runner: ToolRunner, web: WebServer) -> None:
    url = f"{web.url}/page"
    markdown = (await runner.call_ok("fetch", url=url, format="markdown")).content
    assert "# Head" in markdown
    assert "**bold** [link](/x)" in markdown
    assert "bad()" not in markdown
    text = (await runner.call_ok("fetch", url=url, format="text")).content
    assert "Some bold link" in text
    assert "<h1>Head</h1>" in (await runner.call_ok("fetch", url=url, format="html")).content
    assert (await runner.call_ok("fetch", url=f"{web.url}/data.json")).content == '{"a": [1]}'
    assert web.visits[0].headers["user-agent"].startswith("holdfast/")


async def test_an_approval_is_requested_before_anything_is_sent(runner: ToolRunner, web: WebServer) -> None:
    """The request says that the address is not on the public internet."""
    runner.approver.denies = lambda _: True
    assert "denied" in await runner.call_error("fetch", url=f"{web.url}/page", format="text", timeout=7)
    assert "denied" in await runner.call_error("download", url=f"{web.url}/page", file_path="x")
    assert web.visits == []
    fetch, download = runner.approver.requests
    assert (fetch.tool, fetch.action, fetch.path) == ("fetch", "fetch", str(runner.root))
    assert fetch.params == {"url": f"{web.url}/page", "format": "text", "timeout": 7}
    assert "this computer (127.0.0.1)" in fetch.description
    assert (download.action, download.path) == ("download", str(runner.root / "x"))
    assert download.params == {"url": f"{web.url}/page", "file_path": str(runner.root / "x"), "timeout": 300}


async def test_name_that_resolves_to_a_private_address_needs_a_second_approval(project: Path, web: WebServer) -> None:
    """The name does not show it. It is resolved once, and the checked address is the one that is contacted."""
    resolved: list[str] = []

    async def resolve(host: str, _: int) -> Sequence[str]:
        resolved.append(host)
        return ["127.0.0.1"]

    runner = await ToolRunner(project).open(ToolNeeds(web=WebClient(resolve)))
    url = f"http://innocent.example:{web.port}/page"
    runner.approver.denies = lambda permit: "this computer" in permit.description
    assert "denied" in await runner.call_error("fetch", url=url)
    first, second = runner.approver.requests
    assert "internet" not in first.description
    assert "this computer (127.0.0.1)" in second.description
    assert web.visits == []
    runner.approver.denies = lambda _: False
    assert "# Head" in (await runner.call_ok("fetch", url=url)).content
    assert resolved == ["innocent.example"] * 2
    assert web.visits[0].headers["host"] == f"innocent.example:{web.port}"


async def test_approval_for_one_private_address_does_not_cover_another(runner: ToolRunner, web: WebServer) -> None:
    async with web_server() as other:
        other.page("/secret", b"secret", "text/plain")
        web.redirect("/go", f"{other.url}/secret")
        runner.approver.denies = lambda permit: "secret" in permit.description
        assert "denied" in await runner.call_error("fetch", url=f"{web.url}/go")
        assert [permit.params["url"] for permit in runner.approver.requests] == [f"{web.url}/go", f"{other.url}/secret"]
        assert other.visits == []


def _compressed(data: bytes, times: int = 1) -> bytes:
    for _ in range(times):
        data = gzip.compress(data)
    return data


async def test_compressed_page_is_decompressed_in_pieces(runner: ToolRunner, web: WebServer) -> None:
    """A few bytes may expand beyond memory: no more is decompressed than is shown."""

    def serve(path: str, body: bytes, *headers: str) -> str:
        async def show(visit: Visit) -> None:
            await visit.answer(body, headers=("Content-Type: text/plain", *headers))

        web.pages[path] = show
        return f"{web.url}{path}"

    small = serve("/small", _compressed(b"hello"), "Content-Encoding: gzip")
    assert "hello" in (await runner.call_ok("fetch", url=small)).content
    deflated = serve("/deflated", zlib.compress(b"hello"), "Content-Encoding: deflate")
    assert "hello" in (await runner.call_ok("fetch", url=deflated)).content
    bomb = serve("/bomb", _compressed(b"x" * 50_000_000), "Content-Encoding: gzip")
    tracemalloc.start()
    assert "(truncated:" in (await runner.call_ok("fetch", url=bomb)).content
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 30_000_000
    nested = serve("/nested", _compressed(b"hello", 2), "Content-Encoding: gzip, gzip")
    assert "content encoding" in await runner.call_error("fetch", url=nested)
    cut = serve("/cut", _compressed(b"hello" * 100)[:-12], "Content-Encoding: gzip")
    assert "before it was complete" in await runner.call_error("fetch", url=cut)
    broken = serve("/broken", b"hello", "Content-Encoding: gzip")
    assert "content encoding" in await runner.call_error("fetch", url=broken)


async def test_redirects_are_followed_and_reported(runner: ToolRunner, web: WebServer) -> None:
    web.redirect("/one", "/two")
    web.redirect("/two", f"{web.url}/page")
    result = await runner.call_ok("fetch", url=f"{web.url}/one")
    assert f"redirected to {web.url}/page" in result.content
    web.redirect("/loop", "/loop")
    assert "more than 10 times" in await runner.call_error("fetch", url=f"{web.url}/loop")
    web.redirect("/file", "file:///etc/passwd")
    assert "Only http" in await runner.call_error("fetch", url=f"{web.url}/file")


async def test_redirect_to_a_private_address_needs_an_approval(runner: ToolRunner, web: WebServer) -> None:
    """The page is public and fetched through the user's proxy; its redirect target is not public."""
    web.redirect("http://public.example/go", f"{web.url}/page")
    runner.environment["http_proxy"] = web.url
    runner.approver.denies = lambda permit: "this computer" in permit.description
    assert "denied" in await runner.call_error("fetch", url="http://public.example/go")
    asked = [str(permit.params["url"]) for permit in runner.approver.requests]
    assert asked == ["http://public.example/go", f"{web.url}/page"]
    assert [visit.path for visit in web.visits] == ["http://public.example/go"]
    runner.approver.denies = lambda _: False
    assert "# Head" in (await runner.call_ok("fetch", url="http://public.example/go")).content
    assert web.visits[-1].path == "/page"


async def test_downloaded_text_has_a_history_and_can_be_undone(runner: ToolRunner, web: WebServer) -> None:
    await runner.call_ok("download", url=f"{web.url}/data.json", file_path="d.json")
    assert await runner.versions() == [("d.json", 0, None), ("d.json", 1, '{"a": [1]}')]
    assert "not read" in await runner.call_error("edit", file_path="d.json", old_string="1", new_string="2")
    await undo_last(runner, "d.json")
    assert runner.names() == ["a.txt"]


@pytest.mark.parametrize("most", [1_000, 20 * 1024 * 1024])
async def test_binary_or_long_download_is_recorded_by_digest(
    runner: ToolRunner, web: WebServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """It can be undone too, but not after a change from outside: the history could not restore that."""
    monkeypatch.setattr("holdfast.tools.download.MAX_FILE_BYTES", most)
    monkeypatch.setattr("holdfast.workspace.files.undo._MAX_TEXT_SIZE", most)
    await runner.call_ok("download", url=f"{web.url}/file.bin", file_path="f.bin")
    before, after = await runner.versions()
    assert before == ("f.bin", 0, None)
    assert str(after[2]).startswith("(256,000 bytes that are not kept, blake2b ")
    (runner.root / "f.bin").write_bytes(b"\0other")
    for force in (False, True):
        report = await undo_last(runner, "f.bin", force=force)
        assert report.files[0].reason == "it has changed since and is not a text file: move it away first"
        assert runner.read("f.bin") == b"\0other"
    (runner.root / "f.bin").write_bytes(bytes(range(256)) * 1_000)
    assert (await undo_last(runner)).files[0].outcome == "removed"
    assert runner.names() == ["a.txt"]
    assert (await undo_last(runner, "f.bin")).files[0].outcome == "unchanged"


@pytest.mark.parametrize("tool", ["fetch", "download"])
async def test_redirect_to_a_denied_address_is_refused(runner: ToolRunner, web: WebServer, tool: str) -> None:
    """No second approval is requested; a deny rule applies to redirects too."""
    web.redirect("/go", "/page")
    web.redirect("/astray", "/secret")
    runner.approver.rules = RuleSet(PermissionSettings(deny=(f"{tool}({web.url}/secret**)",)), str(runner.root))
    more = {"file_path": "page"} if tool == "download" else {}
    await runner.call_ok(tool, url=f"{web.url}/go", **more)
    runner.approver.requests.clear()
    more = {"file_path": "secret"} if tool == "download" else {}
    assert "forbids" in await runner.call_error(tool, url=f"{web.url}/astray", **more)
    assert [permit.params["url"] for permit in runner.approver.requests] == [f"{web.url}/astray"]
    assert "/secret" not in [visit.path for visit in web.visits]


async def test_failed_fetch_is_explained(runner: ToolRunner, web: WebServer, reserved_port: int) -> None:
    assert "status 404" in await runner.call_error("fetch", url=f"{web.url}/none")
    assert "download" in await runner.call_error("fetch", url=f"{web.url}/file.bin")
    for url, says in (
        ("ftp://example.org", "Only http"),
        ("example.org", "Only http"),
        ("https://", "no host"),
        ("http://a b/", "spaces"),
        ("http://user:pw@example.org/", "password"),
        ("http://[::1/", "not valid"),
    ):
        assert says in await runner.call_error("fetch", url=url), url
    assert "could not be reached" in await runner.call_error("fetch", url=f"http://127.0.0.1:{reserved_port}/")


async def test_long_pages_are_cut(runner: ToolRunner, web: WebServer) -> None:
    web.page("/long", "é".encode() * 100_000, "text/plain; charset=utf-8")
    result = await runner.call_ok("fetch", url=f"{web.url}/long", format="text")
    assert "truncated: only the first 102,400 bytes" in result.content
    assert result.content.count("é") == 51_200


async def test_other_character_sets_are_decoded(runner: ToolRunner, web: WebServer) -> None:
    web.page("/latin", "Grüße".encode("latin-1"), "text/plain; charset=iso-8859-1")
    assert (await runner.call_ok("fetch", url=f"{web.url}/latin")).content == "Grüße"
    web.page("/odd", b"x", "text/plain; charset=nonsense")
    assert (await runner.call_ok("fetch", url=f"{web.url}/odd")).content == "x"


async def test_endless_page_is_aborted(runner: ToolRunner, web: WebServer) -> None:
    web.endless("/endless")
    assert "within 1 s" in await runner.call_error("fetch", url=f"{web.url}/endless", timeout=1)
    await web.left.wait()


@pytest.mark.parametrize("tool", ["fetch", "download"])
async def test_a_cancel_closes_the_connection(runner: ToolRunner, web: WebServer, tool: str) -> None:
    web.endless("/endless")
    arguments = {"url": f"{web.url}/endless"} | ({"file_path": "new/x"} if tool == "download" else {})
    run = await runner.start((tool, dict(arguments)))
    await web.gate.reached.wait()
    await runner.harness.cancel()
    await runner.harness.wait_until_idle()
    assert runner.harness.end_of(run).outcome == "cancelled"
    await web.left.wait()
    await until(lambda: runner.names() == ["a.txt"])
    assert not (runner.root / "new").exists()


# download


async def test_download_saves_the_complete_file(runner: ToolRunner, web: WebServer) -> None:
    result = await runner.call_ok("download", url=f"{web.url}/file.bin", file_path="deep/file.bin")
    assert runner.read("deep/file.bin") == bytes(range(256)) * 1_000
    assert "256,000 bytes" in result.content
    assert runner.names() == ["a.txt", "deep/file.bin"]


async def test_download_refuses_an_existing_path(runner: ToolRunner, web: WebServer) -> None:
    assert "exists already" in await runner.call_error("download", url=f"{web.url}/page", file_path="a.txt")
    assert web.visits == []


async def test_download_over_the_limit_is_refused(project: Path, web: WebServer) -> None:
    runner = await ToolRunner(project).open(ToolNeeds(download_limit=1_000))
    assert "256,000 bytes" in await runner.call_error("download", url=f"{web.url}/file.bin", file_path="x")

    async def silent(visit: Visit) -> None:
        await visit.begin(200, ("Transfer-Encoding: chunked",))
        for _ in range(20):
            await visit.send(b"64\r\n" + b"x" * 100 + b"\r\n")
        await visit.send(b"0\r\n\r\n")

    web.pages["/silent"] = silent
    assert "larger than 1,000" in await runner.call_error("download", url=f"{web.url}/silent", file_path="x")
    assert runner.names() == ["a.txt"]


async def test_interrupted_download_leaves_nothing(runner: ToolRunner, web: WebServer) -> None:
    async def broken(visit: Visit) -> None:
        await visit.begin(200, ("Content-Length: 1000",))
        await visit.send(b"half")

    web.pages["/broken"] = broken
    assert "was cut off" in await runner.call_error("download", url=f"{web.url}/broken", file_path="x/y")
    assert "status 404" in await runner.call_error("download", url=f"{web.url}/none", file_path="x/y")
    assert runner.names() == ["a.txt"]
    assert not (runner.root / "x").exists()


async def test_progress_is_published(runner: ToolRunner, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tools.download._PAUSE", -1.0)
    await runner.call_ok("download", url=f"{web.url}/file.bin", file_path="x")
    output = [event.payload.text for _, event in runner.harness.published.events if isinstance(event, ToolOutputEvent)]
    assert "256,000 of 256,000 bytes\n" in output


async def test_address_rules_apply_before_and_after_each_redirect(project: Path, web: WebServer) -> None:
    """In every spelling of the address; another host is checked as an address of its own."""

    async def resolve(_host: str, _: int) -> Sequence[str]:
        return ["127.0.0.1"]

    runner = await ToolRunner(project).open(ToolNeeds(web=WebClient(resolve)))
    here, other = f"http://here.example:{web.port}", f"http://other.example:{web.port}"
    deny = (f"fetch({other}/page)", f"fetch({here}/secret/*)")
    settings = PermissionSettings(allow=(f"fetch({here}/*)",), deny=deny)
    runner.approver.rules = RuleSet(settings, str(project))
    web.page("/secret/x", b"secret", "text/plain")
    web.redirect("/out", f"http://OTHER.example.:{web.port}/%70age")
    web.redirect("/in", "/a/%2e%2e/secret/x")
    web.redirect("/on", f"{other}/data.json")
    for start in ("/out", "/in", "/secret/x", "/a/../secret/x", "/%73ecret/x", "//secret/x"):
        assert "forbids it" in await runner.call_error("fetch", url=f"{here}{start}"), start
    assert [visit.path for visit in web.visits] == ["/out", "/in"]
    runner.approver.requests.clear()
    runner.approver.denies = lambda permit: "other.example" in str(permit.params["url"])
    assert "denied" in await runner.call_error("fetch", url=f"{here}/on")
    assert runner.approver.requests[-1].description == f"Fetch {other}/data.json."
    assert [visit.path for visit in web.visits] == ["/out", "/in", "/on"]
