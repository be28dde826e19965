"""fetch and download, from a real server on this computer."""

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
from tools.desk import Desk
from tools.test_undo import take_back
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


async def test_a_page_is_read_as_markdown_text_or_source(desk: Desk, web: WebServer) -> None:
    url = f"{web.url}/page"
    markdown = (await desk.does("fetch", url=url, format="markdown")).content
    assert "# Head" in markdown
    assert "**bold** [link](/x)" in markdown
    assert "bad()" not in markdown
    text = (await desk.does("fetch", url=url, format="text")).content
    assert "Some bold link" in text
    assert "<h1>Head</h1>" in (await desk.does("fetch", url=url, format="html")).content
    assert (await desk.does("fetch", url=f"{web.url}/data.json")).content == '{"a": [1]}'
    assert web.visits[0].headers["user-agent"].startswith("holdfast/")


async def test_an_approval_is_requested_before_anything_is_sent(desk: Desk, web: WebServer) -> None:
    """And told that it is no place of the open internet."""
    desk.porter.refuses = lambda _: True
    assert "denied" in await desk.fails("fetch", url=f"{web.url}/page", format="text", timeout=7)
    assert "denied" in await desk.fails("download", url=f"{web.url}/page", file_path="x")
    assert web.visits == []
    fetch, download = desk.porter.asked
    assert (fetch.tool, fetch.action, fetch.path) == ("fetch", "fetch", str(desk.root))
    assert fetch.params == {"url": f"{web.url}/page", "format": "text", "timeout": 7}
    assert "this computer (127.0.0.1)" in fetch.description
    assert (download.action, download.path) == ("download", str(desk.root / "x"))
    assert download.params == {"url": f"{web.url}/page", "file_path": str(desk.root / "x"), "timeout": 300}


async def test_a_name_that_leads_to_a_private_place_is_asked_about_again(project: Path, web: WebServer) -> None:
    """Nobody could see it in the name; it is resolved once, and the address that was judged is the one asked."""
    resolved: list[str] = []

    async def resolve(host: str, _: int) -> Sequence[str]:
        resolved.append(host)
        return ["127.0.0.1"]

    desk = await Desk(project).open(ToolNeeds(web=WebClient(resolve)))
    url = f"http://innocent.example:{web.port}/page"
    desk.porter.refuses = lambda permit: "this computer" in permit.description
    assert "denied" in await desk.fails("fetch", url=url)
    first, second = desk.porter.asked
    assert "internet" not in first.description
    assert "this computer (127.0.0.1)" in second.description
    assert web.visits == []
    desk.porter.refuses = lambda _: False
    assert "# Head" in (await desk.does("fetch", url=url)).content
    assert resolved == ["innocent.example"] * 2
    assert web.visits[0].headers["host"] == f"innocent.example:{web.port}"


async def test_one_private_place_does_not_stand_for_another(desk: Desk, web: WebServer) -> None:
    async with web_server() as other:
        other.page("/secret", b"secret", "text/plain")
        web.redirect("/go", f"{other.url}/secret")
        desk.porter.refuses = lambda permit: "secret" in permit.description
        assert "denied" in await desk.fails("fetch", url=f"{web.url}/go")
        assert [permit.params["url"] for permit in desk.porter.asked] == [f"{web.url}/go", f"{other.url}/secret"]
        assert other.visits == []


def _packed(data: bytes, times: int = 1) -> bytes:
    for _ in range(times):
        data = gzip.compress(data)
    return data


async def test_a_packed_page_is_unpacked_piece_by_piece(desk: Desk, web: WebServer) -> None:
    """A few bytes may stand for more than there is memory: no more is unpacked than is shown."""

    def serve(path: str, body: bytes, *headers: str) -> str:
        async def show(visit: Visit) -> None:
            await visit.answer(body, headers=("Content-Type: text/plain", *headers))

        web.pages[path] = show
        return f"{web.url}{path}"

    small = serve("/small", _packed(b"hello"), "Content-Encoding: gzip")
    assert "hello" in (await desk.does("fetch", url=small)).content
    deflated = serve("/deflated", zlib.compress(b"hello"), "Content-Encoding: deflate")
    assert "hello" in (await desk.does("fetch", url=deflated)).content
    bomb = serve("/bomb", _packed(b"x" * 50_000_000), "Content-Encoding: gzip")
    tracemalloc.start()
    assert "(cut:" in (await desk.does("fetch", url=bomb)).content
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 30_000_000
    nested = serve("/nested", _packed(b"hello", 2), "Content-Encoding: gzip, gzip")
    assert "packed" in await desk.fails("fetch", url=nested)
    cut = serve("/cut", _packed(b"hello" * 100)[:-12], "Content-Encoding: gzip")
    assert "broke off" in await desk.fails("fetch", url=cut)
    broken = serve("/broken", b"hello", "Content-Encoding: gzip")
    assert "broke off" in await desk.fails("fetch", url=broken)


async def test_redirects_are_followed_and_reported(desk: Desk, web: WebServer) -> None:
    web.redirect("/one", "/two")
    web.redirect("/two", f"{web.url}/page")
    result = await desk.does("fetch", url=f"{web.url}/one")
    assert f"redirected to {web.url}/page" in result.content
    web.redirect("/loop", "/loop")
    assert "more than 10 times" in await desk.fails("fetch", url=f"{web.url}/loop")
    web.redirect("/file", "file:///etc/passwd")
    assert "Only http" in await desk.fails("fetch", url=f"{web.url}/file")


async def test_a_redirect_to_a_private_place_is_asked_about(desk: Desk, web: WebServer) -> None:
    """The page is public, and reached by the user's proxy; where it leads is not."""
    web.redirect("http://public.example/go", f"{web.url}/page")
    desk.environment["http_proxy"] = web.url
    desk.porter.refuses = lambda permit: "this computer" in permit.description
    assert "denied" in await desk.fails("fetch", url="http://public.example/go")
    asked = [str(permit.params["url"]) for permit in desk.porter.asked]
    assert asked == ["http://public.example/go", f"{web.url}/page"]
    assert [visit.path for visit in web.visits] == ["http://public.example/go"]
    desk.porter.refuses = lambda _: False
    assert "# Head" in (await desk.does("fetch", url="http://public.example/go")).content
    assert web.visits[-1].path == "/page"


async def test_a_text_that_was_saved_has_a_history_and_can_be_taken_back(desk: Desk, web: WebServer) -> None:
    await desk.does("download", url=f"{web.url}/data.json", file_path="d.json")
    assert await desk.versions() == [("d.json", 0, None), ("d.json", 1, '{"a": [1]}')]
    assert "not read" in await desk.fails("edit", file_path="d.json", old_string="1", new_string="2")
    await take_back(desk, "d.json")
    assert desk.names() == ["a.txt"]


@pytest.mark.parametrize("most", [1_000, 20 * 1024 * 1024])
async def test_what_is_no_text_or_too_long_is_known_by_its_digest(
    desk: Desk, web: WebServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """It can be taken back too, but not what somebody has made of it since: no history could give that back."""
    monkeypatch.setattr("holdfast.tools.download.MAX_FILE_BYTES", most)
    monkeypatch.setattr("holdfast.workspace.files.undo._MAX_TEXT_SIZE", most)
    await desk.does("download", url=f"{web.url}/file.bin", file_path="f.bin")
    before, after = await desk.versions()
    assert before == ("f.bin", 0, None)
    assert str(after[2]).startswith("(256,000 bytes that are not kept, blake2b ")
    (desk.root / "f.bin").write_bytes(b"\0other")
    for force in (False, True):
        report = await take_back(desk, "f.bin", force=force)
        assert report.files[0].reason == "it has changed since and is no text: move it away first"
        assert desk.read("f.bin") == b"\0other"
    (desk.root / "f.bin").write_bytes(bytes(range(256)) * 1_000)
    assert (await take_back(desk)).files[0].outcome == "removed"
    assert desk.names() == ["a.txt"]
    assert (await take_back(desk, "f.bin")).files[0].outcome == "unchanged"


@pytest.mark.parametrize("tool", ["fetch", "download"])
async def test_a_redirect_does_not_lead_where_a_rule_forbids_it(desk: Desk, web: WebServer, tool: str) -> None:
    """Nobody is asked a second time; but what is forbidden is forbidden by every way."""
    web.redirect("/go", "/page")
    web.redirect("/astray", "/secret")
    desk.porter.rules = RuleSet(PermissionSettings(deny=(f"{tool}({web.url}/secret**)",)), str(desk.root))
    more = {"file_path": "page"} if tool == "download" else {}
    await desk.does(tool, url=f"{web.url}/go", **more)
    desk.porter.asked.clear()
    more = {"file_path": "secret"} if tool == "download" else {}
    assert "forbids" in await desk.fails(tool, url=f"{web.url}/astray", **more)
    assert [permit.params["url"] for permit in desk.porter.asked] == [f"{web.url}/astray"]
    assert "/secret" not in [visit.path for visit in web.visits]


async def test_what_cannot_be_fetched_is_explained(desk: Desk, web: WebServer, reserved_port: int) -> None:
    assert "status 404" in await desk.fails("fetch", url=f"{web.url}/none")
    assert "download" in await desk.fails("fetch", url=f"{web.url}/file.bin")
    for url, says in (
        ("ftp://example.org", "Only http"),
        ("example.org", "Only http"),
        ("https://", "no host"),
        ("http://a b/", "spaces"),
        ("http://user:pw@example.org/", "password"),
        ("http://[::1/", "not one"),
    ):
        assert says in await desk.fails("fetch", url=url), url
    assert "could not be asked" in await desk.fails("fetch", url=f"http://127.0.0.1:{reserved_port}/")


async def test_long_pages_are_cut(desk: Desk, web: WebServer) -> None:
    web.page("/long", "é".encode() * 100_000, "text/plain; charset=utf-8")
    result = await desk.does("fetch", url=f"{web.url}/long", format="text")
    assert "cut: only the first 102,400 bytes" in result.content
    assert result.content.count("é") == 51_200


async def test_other_character_sets_are_understood(desk: Desk, web: WebServer) -> None:
    web.page("/latin", "Grüße".encode("latin-1"), "text/plain; charset=iso-8859-1")
    assert (await desk.does("fetch", url=f"{web.url}/latin")).content == "Grüße"
    web.page("/odd", b"x", "text/plain; charset=nonsense")
    assert (await desk.does("fetch", url=f"{web.url}/odd")).content == "x"


async def test_a_page_that_never_ends_is_given_up(desk: Desk, web: WebServer) -> None:
    web.endless("/endless")
    assert "within 1 s" in await desk.fails("fetch", url=f"{web.url}/endless", timeout=1)
    await web.left.wait()


@pytest.mark.parametrize("tool", ["fetch", "download"])
async def test_a_cancel_closes_the_connection(desk: Desk, web: WebServer, tool: str) -> None:
    web.endless("/endless")
    arguments = {"url": f"{web.url}/endless"} | ({"file_path": "new/x"} if tool == "download" else {})
    run = await desk.begin((tool, dict(arguments)))
    await web.gate.reached.wait()
    await desk.harness.cancel()
    await desk.harness.quiet()
    assert desk.harness.end_of(run).outcome == "cancelled"
    await web.left.wait()
    await until(lambda: desk.names() == ["a.txt"])
    assert not (desk.root / "new").exists()


# download


async def test_a_file_is_saved_whole(desk: Desk, web: WebServer) -> None:
    result = await desk.does("download", url=f"{web.url}/file.bin", file_path="deep/file.bin")
    assert desk.read("deep/file.bin") == bytes(range(256)) * 1_000
    assert "256,000 bytes" in result.content
    assert desk.names() == ["a.txt", "deep/file.bin"]


async def test_a_download_overwrites_nothing(desk: Desk, web: WebServer) -> None:
    assert "exists already" in await desk.fails("download", url=f"{web.url}/page", file_path="a.txt")
    assert web.visits == []


async def test_large_files_are_refused(project: Path, web: WebServer) -> None:
    desk = await Desk(project).open(ToolNeeds(download_limit=1_000))
    assert "256,000 bytes" in await desk.fails("download", url=f"{web.url}/file.bin", file_path="x")

    async def silent(visit: Visit) -> None:
        await visit.begin(200, ("Transfer-Encoding: chunked",))
        for _ in range(20):
            await visit.send(b"64\r\n" + b"x" * 100 + b"\r\n")
        await visit.send(b"0\r\n\r\n")

    web.pages["/silent"] = silent
    assert "larger than 1,000" in await desk.fails("download", url=f"{web.url}/silent", file_path="x")
    assert desk.names() == ["a.txt"]


async def test_a_download_that_breaks_off_leaves_nothing(desk: Desk, web: WebServer) -> None:
    async def broken(visit: Visit) -> None:
        await visit.begin(200, ("Content-Length: 1000",))
        await visit.send(b"half")

    web.pages["/broken"] = broken
    assert "broke off" in await desk.fails("download", url=f"{web.url}/broken", file_path="x/y")
    assert "status 404" in await desk.fails("download", url=f"{web.url}/none", file_path="x/y")
    assert desk.names() == ["a.txt"]
    assert not (desk.root / "x").exists()


async def test_progress_is_published(desk: Desk, web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tools.download._PAUSE", -1.0)
    await desk.does("download", url=f"{web.url}/file.bin", file_path="x")
    said = [event.payload.text for _, event in desk.harness.published.events if isinstance(event, ToolOutputEvent)]
    assert "256,000 of 256,000 bytes\n" in said


async def test_rules_for_addresses_are_asked_before_and_after_each_redirect(project: Path, web: WebServer) -> None:
    """However the address is spelled; another host is judged like an address of its own."""

    async def resolve(_host: str, _: int) -> Sequence[str]:
        return ["127.0.0.1"]

    desk = await Desk(project).open(ToolNeeds(web=WebClient(resolve)))
    here, other = f"http://here.example:{web.port}", f"http://other.example:{web.port}"
    deny = (f"fetch({other}/page)", f"fetch({here}/secret/*)")
    settings = PermissionSettings(allow=(f"fetch({here}/*)",), deny=deny)
    desk.porter.rules = RuleSet(settings, str(project))
    web.page("/secret/x", b"secret", "text/plain")
    web.redirect("/out", f"http://OTHER.example.:{web.port}/%70age")
    web.redirect("/in", "/a/%2e%2e/secret/x")
    web.redirect("/on", f"{other}/data.json")
    for start in ("/out", "/in", "/secret/x", "/a/../secret/x", "/%73ecret/x", "//secret/x"):
        assert "forbids it" in await desk.fails("fetch", url=f"{here}{start}"), start
    assert [visit.path for visit in web.visits] == ["/out", "/in"]
    desk.porter.asked.clear()
    desk.porter.refuses = lambda permit: "other.example" in str(permit.params["url"])
    assert "denied" in await desk.fails("fetch", url=f"{here}/on")
    assert desk.porter.asked[-1].description == f"Fetch {other}/data.json."
    assert [visit.path for visit in web.visits] == ["/out", "/in", "/on"]
