"""write on real files, through a real run."""

import base64
import os
import time

from holdfast.domain.events import FileEvent
from holdfast.domain.files import ReadMark
from holdfast.domain.store_operations import MarkRead
from tools.tool_runner import ToolRunner, metadata_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_write_creates_a_file_and_its_directories(runner: ToolRunner) -> None:
    result = await runner.call("write", file_path="new/deep/b.txt", content="é\n")
    assert not result.is_error
    assert runner.read("new/deep/b.txt") == "é\n".encode()
    assert await runner.versions() == [("new/deep/b.txt", 0, None), ("new/deep/b.txt", 1, "é\n")]
    assert (metadata_of(result)["additions"], metadata_of(result)["removals"]) == (1, 0)
    assert "(1 line added, 0 removed)" in result.content
    mask = os.umask(0)
    os.umask(mask)
    assert (runner.root / "new/deep/b.txt").stat().st_mode & 0o777 == 0o666 & ~mask
    assert runner.names() == ["a.txt", "new/deep/b.txt"]


async def test_write_requires_a_prior_view(runner: ToolRunner) -> None:
    assert "view" in await runner.call_error("write", file_path="a.txt", content="x")
    assert runner.read("a.txt") == b"one\ntwo\nthree\n"
    assert await runner.versions() == []


async def test_write_after_view(runner: ToolRunner) -> None:
    await runner.call("view", file_path="a.txt")
    result = await runner.call_ok("write", file_path=str(runner.root / "a.txt"), content="one\n2\nthree\n")
    assert runner.read("a.txt") == b"one\n2\nthree\n"
    assert set(metadata_of(result)) == {"diff", "additions", "removals"}
    assert (metadata_of(result)["additions"], metadata_of(result)["removals"]) == (1, 1)
    assert "-two\n+2" in metadata_of(result)["diff"]


async def test_view_in_another_session_does_not_count(runner: ToolRunner) -> None:
    other = (await runner.harness.workspace.sessions.create("Other")).id
    await runner.call_in(other, "view", {"file_path": "a.txt"})
    assert "view" in await runner.call_error("write", file_path="a.txt", content="x")


async def test_change_within_the_same_second_is_detected(runner: ToolRunner) -> None:
    """The content counts, not the time: restored content is the same file, different content is not."""
    await runner.call("view", file_path="a.txt")
    status = (runner.root / "a.txt").stat()
    runner.write_file("a.txt", b"one\nTWO\nthree\n")
    os.utime(runner.root / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    for tool, arguments in (
        ("write", {"content": "x"}),
        ("edit", {"old_string": "one", "new_string": "x"}),
        ("multiedit", {"edits": [{"old_string": "one", "new_string": "x"}]}),
    ):
        assert "changed" in await runner.call_error(tool, file_path="a.txt", **arguments)
    assert runner.read("a.txt") == b"one\nTWO\nthree\n"
    assert await runner.versions() == []
    runner.write_file("a.txt", b"one\ntwo\nthree\n")
    assert not (await runner.call("write", file_path="a.txt", content="x")).is_error


async def test_content_written_by_a_tool_counts_as_read(runner: ToolRunner) -> None:
    for tool, arguments in (
        ("write", {"content": "one"}),
        ("edit", {"old_string": "one", "new_string": "two"}),
        ("multiedit", {"edits": [{"old_string": "two", "new_string": "one"}]}),
    ):
        await runner.call_ok(tool, file_path="b.txt", **arguments)
        path, content = runner.root / "b.txt", runner.read("b.txt")
        runner.write_file("b.txt", b"six")
        os.utime(path, (1, 1))
        assert "changed" in await runner.call_error("write", file_path="b.txt", content="x")
        runner.write_file("b.txt", content)


async def test_read_mark_without_a_digest_is_compared_by_time(runner: ToolRunner) -> None:
    """Clients that attach a file send the time of reading, not its digest."""
    path = str(runner.root / "a.txt")
    now = time.time_ns() // 1_000_000
    for read_at, is_known in ((now - 100_000, False), (now + 100_000, True)):
        await runner.harness.workspace.engine.recorder.put(MarkRead(ReadMark(runner.harness.session, path, read_at)))
        assert (await runner.call("write", file_path="a.txt", content="x")).is_error is not is_known


async def test_write_refuses_identical_content(runner: ToolRunner) -> None:
    await runner.call("view", file_path="a.txt")
    assert "already" in await runner.call_error("write", file_path="a.txt", content="one\ntwo\nthree\n")
    assert await runner.versions() == []


async def test_second_write_needs_no_view(runner: ToolRunner) -> None:
    """Content written by the tool counts as read."""
    for content in ("1", "2", "3"):
        assert not (await runner.call("write", file_path="b.txt", content=content)).is_error
    assert runner.read("b.txt") == b"3"


async def test_write_keeps_the_old_and_the_new_content(runner: ToolRunner) -> None:
    await runner.call("view", file_path="a.txt")
    await runner.call("write", file_path="a.txt", content="new")
    assert await runner.versions() == [("a.txt", 0, "one\ntwo\nthree\n"), ("a.txt", 1, "new")]
    events = [event.change.object for _, event in runner.harness.published.events if isinstance(event, FileEvent)]
    assert [file.version for file in events] == [0, 1]
    assert len({file.id for file in events}) == 2


async def test_outside_change_is_recorded_before_the_next_change(runner: ToolRunner) -> None:
    await runner.call_ok("write", file_path="b.txt", content="ours")
    runner.write_file("b.txt", b"theirs")
    await runner.call("view", file_path="b.txt")
    await runner.call_ok("write", file_path="b.txt", content="ours again")
    assert [content for _, _, content in await runner.versions()] == [None, "ours", "theirs", "ours again"]
    assert [file.origin for file in await runner.files()] == ["outside", "tool", "outside", "tool"]
    assert all(file.run_id for file in await runner.files())


async def test_write_keeps_line_endings_and_encoding(runner: ToolRunner) -> None:
    """A model does not see Windows line endings, byte order marks or encodings: it does not mean to change them."""
    runner.write_file("dos.txt", b"\xef\xbb\xbfa\r\nb\r\n")
    await runner.call("view", file_path="dos.txt")
    assert "already" in await runner.call_error("write", file_path="dos.txt", content="a\nb\n")
    await runner.call_ok("write", file_path="dos.txt", content="a\nc\n")
    assert runner.read("dos.txt") == b"\xef\xbb\xbfa\r\nc\r\n"
    assert await runner.versions() == [("dos.txt", 0, "a\r\nb\r\n"), ("dos.txt", 1, "a\r\nc\r\n")]
    runner.write_file("wide.txt", "\ufeffä\n".encode("utf-16-be"))
    await runner.call("view", file_path="wide.txt")
    await runner.call_ok("write", file_path="wide.txt", content="ö\n")
    assert runner.read("wide.txt") == "\ufeffö\n".encode("utf-16-be")


async def test_write_keeps_the_mode(runner: ToolRunner) -> None:
    path = runner.write_file("run.sh", b"#!/bin/sh\n")
    path.chmod(0o751)
    await runner.call("view", file_path="run.sh")
    await runner.call_ok("edit", file_path="run.sh", old_string="/bin/sh", new_string="/bin/bash")
    assert path.stat().st_mode & 0o7777 == 0o751


async def test_write_keeps_hard_links(runner: ToolRunner) -> None:
    os.link(runner.root / "a.txt", runner.root / "b.txt")
    await runner.call("view", file_path="a.txt")
    await runner.call_ok("write", file_path="a.txt", content="x")
    assert runner.read("b.txt") == b"x"
    assert runner.names() == ["a.txt", "b.txt"]


async def test_write_refuses_a_directory(runner: ToolRunner) -> None:
    (runner.root / "b").mkdir()
    assert "directory" in await runner.call_error("write", file_path="b", content="x")


async def test_write_refuses_to_replace_binary_content(runner: ToolRunner) -> None:
    runner.write_file("a.bin", b"\x80\x00\xff")
    await runner.call("view", file_path="a.bin")
    await runner.call_error("write", file_path="a.bin", content="x")
    assert runner.read("a.bin") == b"\x80\x00\xff"


async def test_file_as_a_parent_directory_is_an_error(runner: ToolRunner) -> None:
    """The tool fails, the turn does not."""
    assert "not a directory" in await runner.call_error("write", file_path="a.txt/b.txt", content="x")
