"""view on real files, through a real run."""

import base64
import os
import time
from pathlib import Path

import pytest

from tools.desk import Desk, told

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_view_numbers_lines(desk: Desk) -> None:
    result = await desk.call("view", file_path="a.txt")
    assert result.content == "<file>\n     1|one\n     2|two\n     3|three\n</file>"
    assert told(result) == {"file_path": str(desk.root / "a.txt"), "content": "one\ntwo\nthree"}


async def test_view_shows_a_section(desk: Desk) -> None:
    result = await desk.call("view", file_path="a.txt", offset=1, limit=1)
    assert result.content == "<file>\n     2|two\n(1 more lines; go on with offset=2)\n</file>"
    assert "only 3 lines" in (await desk.call("view", file_path="a.txt", offset=9)).content
    assert "1|one" in (await desk.call("view", file_path="a.txt", offset=-5)).content


async def test_view_shows_200_lines_by_default(desk: Desk) -> None:
    desk.put("long.txt", b"x\n" * 250)
    assert "(50 more lines" in (await desk.call("view", file_path="long.txt")).content
    assert "250|x" in (await desk.call("view", file_path="long.txt", limit=500)).content


async def test_view_cuts_long_lines_at_a_character(desk: Desk) -> None:
    desk.put("wide.txt", b"x" * 3_000)
    assert f"|{'x' * 2_000}...\n" in (await desk.call("view", file_path="wide.txt")).content
    desk.put("wide.txt", ("x" + "é" * 3_000).encode())
    assert f"|x{'é' * 999}...\n" in (await desk.call("view", file_path="wide.txt")).content


async def test_view_refuses_sections_that_are_too_large(desk: Desk) -> None:
    """The section counts, not the file."""
    desk.put("big.txt", (b"x" * 1_023 + b"\n") * 1_000)
    assert not (await desk.call("view", file_path="big.txt", limit=200)).is_error
    assert "limit" in await desk.fails("view", file_path="big.txt", limit=201)


async def test_view_reads_a_part_of_an_enormous_file(desk: Desk) -> None:
    path = desk.put("huge.txt", b"")
    with path.open("wb") as stream:
        stream.write(b"first\nsecond\n")
        stream.truncate(25 * 1024 * 1024)
    assert "2|second" in (await desk.does("view", file_path="huge.txt", offset=1, limit=1)).content


async def test_view_does_not_show_how_lines_end(desk: Desk) -> None:
    desk.put("dos.txt", b"\xef\xbb\xbfa\r\nb\x0cc\r\n")
    assert (await desk.does("view", file_path="dos.txt")).content == "<file>\n     1|a\n     2|b\x0cc\n</file>"
    desk.put("wide.txt", "\ufeffä\r\n".encode("utf-16-le"))
    assert "1|ä\n" in (await desk.does("view", file_path="wide.txt")).content


async def test_view_refuses_what_is_no_text(desk: Desk) -> None:
    desk.put("a.bin", b"\x80\x00\xff")
    assert "UTF-8" in await desk.fails("view", file_path="a.bin")
    desk.put("latin.txt", "é".encode("latin-1"))
    assert "Latin-1" in await desk.fails("view", file_path="latin.txt")
    assert await desk.marks() == []


@pytest.mark.parametrize("path", ["nothing.txt", "."])
async def test_view_wants_a_file(desk: Desk, path: str) -> None:
    assert path in await desk.fails("view", file_path=path)


async def test_view_names_what_may_have_been_meant(desk: Desk) -> None:
    for name in ("src/config.py", "src/config_test.py", "src/other.py"):
        desk.put(name, b"")
    answer = await desk.fails("view", file_path="src/Config.py")
    assert "src/config.py" in answer
    assert "other" not in answer


async def test_view_marks_what_was_read(desk: Desk) -> None:
    before = time.time_ns() // 1_000_000
    await desk.call("view", file_path="./a.txt")
    (mark,) = await desk.marks()
    assert mark.path == str(desk.root / "a.txt")
    assert before <= mark.read_at <= time.time_ns() // 1_000_000
    assert len(mark.digest) == 64


async def test_view_shows_pictures_to_those_who_can_see(project: Path) -> None:
    desk = await Desk(project).open(takes_images=True)
    desk.put("p.png", PNG)
    result = await desk.does("view", file_path="p.png")
    assert (base64.b64decode(result.data), result.mime_type) == (PNG, "image/png")
    desk.put("fake.png", b"hello")
    assert "not what its name says" in await desk.fails("view", file_path="fake.png")
    desk.put("big.png", PNG + bytes(200 * 1024))
    assert "bytes" in await desk.fails("view", file_path="big.png")
    blind = await Desk(project).open()
    assert "cannot look" in await blind.fails("view", file_path="p.png")


async def test_special_files_are_refused(desk: Desk) -> None:
    """A pipe would block for ever, a device may act when it is opened."""
    os.mkfifo(desk.root / "pipe")
    for path, kind in (("pipe", "a pipe"), ("/dev/zero", "the system"), ("/proc/self/environ", "the system")):
        assert kind in await desk.fails("view", file_path=path)
        assert kind in await desk.fails("edit", file_path=path, old_string="a", new_string="b")
