"""view on real files, through a real run."""

import base64
import os
import time
from pathlib import Path

import pytest

from tools.tool_runner import ToolRunner, metadata_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_view_numbers_lines(runner: ToolRunner) -> None:
    result = await runner.call("view", file_path="a.txt")
    assert result.content == "<file>\n     1|one\n     2|two\n     3|three\n</file>"
    assert metadata_of(result) == {"file_path": str(runner.root / "a.txt"), "content": "one\ntwo\nthree"}


async def test_view_shows_a_section(runner: ToolRunner) -> None:
    result = await runner.call("view", file_path="a.txt", offset=1, limit=1)
    assert result.content == "<file>\n     2|two\n(1 more lines; continue with offset=2)\n</file>"
    assert "only 3 lines" in (await runner.call("view", file_path="a.txt", offset=9)).content
    assert "1|one" in (await runner.call("view", file_path="a.txt", offset=-5)).content


async def test_view_shows_200_lines_by_default(runner: ToolRunner) -> None:
    runner.write_file("long.txt", b"x\n" * 250)
    assert "(50 more lines" in (await runner.call("view", file_path="long.txt")).content
    assert "250|x" in (await runner.call("view", file_path="long.txt", limit=500)).content


async def test_view_cuts_long_lines_at_a_character(runner: ToolRunner) -> None:
    runner.write_file("wide.txt", b"x" * 3_000)
    assert f"|{'x' * 2_000}...\n" in (await runner.call("view", file_path="wide.txt")).content
    runner.write_file("wide.txt", ("x" + "é" * 3_000).encode())
    assert f"|x{'é' * 999}...\n" in (await runner.call("view", file_path="wide.txt")).content


async def test_view_refuses_sections_that_are_too_large(runner: ToolRunner) -> None:
    """The size of the section counts, not that of the file."""
    runner.write_file("big.txt", (b"x" * 1_023 + b"\n") * 1_000)
    assert not (await runner.call("view", file_path="big.txt", limit=200)).is_error
    assert "limit" in await runner.call_error("view", file_path="big.txt", limit=201)


async def test_view_reads_a_part_of_an_enormous_file(runner: ToolRunner) -> None:
    path = runner.write_file("huge.txt", b"")
    with path.open("wb") as stream:
        stream.write(b"first\nsecond\n")
        stream.truncate(25 * 1024 * 1024)
    assert "2|second" in (await runner.call_ok("view", file_path="huge.txt", offset=1, limit=1)).content


async def test_view_hides_line_endings(runner: ToolRunner) -> None:
    runner.write_file("dos.txt", b"\xef\xbb\xbfa\r\nb\x0cc\r\n")
    assert (await runner.call_ok("view", file_path="dos.txt")).content == "<file>\n     1|a\n     2|b\x0cc\n</file>"
    runner.write_file("wide.txt", "\ufeffä\r\n".encode("utf-16-le"))
    assert "1|ä\n" in (await runner.call_ok("view", file_path="wide.txt")).content


async def test_view_refuses_binary_files(runner: ToolRunner) -> None:
    runner.write_file("a.bin", b"\x80\x00\xff")
    assert "UTF-8" in await runner.call_error("view", file_path="a.bin")
    runner.write_file("latin.txt", "é".encode("latin-1"))
    assert "Latin-1" in await runner.call_error("view", file_path="latin.txt")
    assert await runner.read_marks() == []


@pytest.mark.parametrize("path", ["nothing.txt", "."])
async def test_view_refuses_a_directory(runner: ToolRunner, path: str) -> None:
    assert path in await runner.call_error("view", file_path=path)


async def test_view_suggests_similar_paths(runner: ToolRunner) -> None:
    for name in ("src/config.py", "src/config_test.py", "src/other.py"):
        runner.write_file(name, b"")
    answer = await runner.call_error("view", file_path="src/Config.py")
    assert "src/config.py" in answer
    assert "other" not in answer


async def test_view_stores_a_read_mark(runner: ToolRunner) -> None:
    before = time.time_ns() // 1_000_000
    await runner.call("view", file_path="./a.txt")
    (mark,) = await runner.read_marks()
    assert mark.path == str(runner.root / "a.txt")
    assert before <= mark.read_at <= time.time_ns() // 1_000_000
    assert len(mark.digest) == 64


async def test_view_sends_images_to_models_that_support_them(project: Path) -> None:
    runner = await ToolRunner(project).open(takes_images=True)
    runner.write_file("p.png", PNG)
    result = await runner.call_ok("view", file_path="p.png")
    assert (base64.b64decode(result.data), result.mime_type) == (PNG, "image/png")
    runner.write_file("fake.png", b"hello")
    assert "does not match its name" in await runner.call_error("view", file_path="fake.png")
    runner.write_file("big.png", PNG + bytes(200 * 1024))
    assert "bytes" in await runner.call_error("view", file_path="big.png")
    without_images = await ToolRunner(project).open()
    assert "does not accept images" in await without_images.call_error("view", file_path="p.png")


async def test_special_files_are_refused(runner: ToolRunner) -> None:
    """A pipe would block for ever; opening a device may have side effects."""
    os.mkfifo(runner.root / "pipe")
    for path, kind in (("pipe", "a pipe"), ("/dev/zero", "the system"), ("/proc/self/environ", "the system")):
        assert kind in await runner.call_error("view", file_path=path)
        assert kind in await runner.call_error("edit", file_path=path, old_string="a", new_string="b")
