"""write on real files, through a real run."""

import base64
import os
import time

from holdfast.domain.events import FileEvent
from holdfast.domain.files import ReadMark
from holdfast.domain.ledger import MarkRead
from tools.desk import Desk, told

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_write_makes_a_file_and_its_directories(desk: Desk) -> None:
    result = await desk.call("write", file_path="new/deep/b.txt", content="é\n")
    assert not result.is_error
    assert desk.read("new/deep/b.txt") == "é\n".encode()
    assert await desk.versions() == [("new/deep/b.txt", 0, None), ("new/deep/b.txt", 1, "é\n")]
    assert (told(result)["additions"], told(result)["removals"]) == (1, 0)
    assert "(1 line added, 0 removed)" in result.content
    mask = os.umask(0)
    os.umask(mask)
    assert (desk.root / "new/deep/b.txt").stat().st_mode & 0o777 == 0o666 & ~mask
    assert desk.names() == ["a.txt", "new/deep/b.txt"]


async def test_write_wants_a_file_to_be_read_first(desk: Desk) -> None:
    assert "view" in await desk.fails("write", file_path="a.txt", content="x")
    assert desk.read("a.txt") == b"one\ntwo\nthree\n"
    assert await desk.versions() == []


async def test_write_after_view(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    result = await desk.does("write", file_path=str(desk.root / "a.txt"), content="one\n2\nthree\n")
    assert desk.read("a.txt") == b"one\n2\nthree\n"
    assert set(told(result)) == {"diff", "additions", "removals"}
    assert (told(result)["additions"], told(result)["removals"]) == (1, 1)
    assert "-two\n+2" in told(result)["diff"]


async def test_reading_counts_for_its_own_session_only(desk: Desk) -> None:
    other = (await desk.harness.workspace.sessions.create("Other")).id
    await desk.call_in(other, "view", {"file_path": "a.txt"})
    assert "view" in await desk.fails("write", file_path="a.txt", content="x")


async def test_a_change_within_the_same_second_is_noticed(desk: Desk) -> None:
    """The content counts, not the time: one that is put back is the same file, one that differs is not."""
    await desk.call("view", file_path="a.txt")
    status = (desk.root / "a.txt").stat()
    desk.put("a.txt", b"one\nTWO\nthree\n")
    os.utime(desk.root / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    for tool, arguments in (
        ("write", {"content": "x"}),
        ("edit", {"old_string": "one", "new_string": "x"}),
        ("multiedit", {"edits": [{"old_string": "one", "new_string": "x"}]}),
    ):
        assert "changed" in await desk.fails(tool, file_path="a.txt", **arguments)
    assert desk.read("a.txt") == b"one\nTWO\nthree\n"
    assert await desk.versions() == []
    desk.put("a.txt", b"one\ntwo\nthree\n")
    assert not (await desk.call("write", file_path="a.txt", content="x")).is_error


async def test_what_a_tool_wrote_is_known_by_its_content_too(desk: Desk) -> None:
    for tool, arguments in (
        ("write", {"content": "one"}),
        ("edit", {"old_string": "one", "new_string": "two"}),
        ("multiedit", {"edits": [{"old_string": "two", "new_string": "one"}]}),
    ):
        await desk.does(tool, file_path="b.txt", **arguments)
        path, content = desk.root / "b.txt", desk.read("b.txt")
        desk.put("b.txt", b"six")
        os.utime(path, (1, 1))
        assert "changed" in await desk.fails("write", file_path="b.txt", content="x")
        desk.put("b.txt", content)


async def test_a_mark_without_a_digest_goes_by_time(desk: Desk) -> None:
    """Clients that attach a file say when they read it, not what was in it."""
    path = str(desk.root / "a.txt")
    now = time.time_ns() // 1_000_000
    for read_at, is_known in ((now - 100_000, False), (now + 100_000, True)):
        await desk.harness.workspace.engine.recorder.put(MarkRead(ReadMark(desk.harness.session, path, read_at)))
        assert (await desk.call("write", file_path="a.txt", content="x")).is_error is not is_known


async def test_write_refuses_what_is_there_already(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    assert "already" in await desk.fails("write", file_path="a.txt", content="one\ntwo\nthree\n")
    assert await desk.versions() == []


async def test_write_may_follow_write(desk: Desk) -> None:
    """What was written is known: it need not be read again."""
    for content in ("1", "2", "3"):
        assert not (await desk.call("write", file_path="b.txt", content=content)).is_error
    assert desk.read("b.txt") == b"3"


async def test_write_keeps_the_old_and_the_new_content(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    await desk.call("write", file_path="a.txt", content="new")
    assert await desk.versions() == [("a.txt", 0, "one\ntwo\nthree\n"), ("a.txt", 1, "new")]
    events = [event.change.object for _, event in desk.harness.published.events if isinstance(event, FileEvent)]
    assert [file.version for file in events] == [0, 1]
    assert len({file.id for file in events}) == 2


async def test_what_others_changed_is_kept_before_the_next_change(desk: Desk) -> None:
    await desk.does("write", file_path="b.txt", content="ours")
    desk.put("b.txt", b"theirs")
    await desk.call("view", file_path="b.txt")
    await desk.does("write", file_path="b.txt", content="ours again")
    assert [content for _, _, content in await desk.versions()] == [None, "ours", "theirs", "ours again"]
    assert [file.origin for file in await desk.files()] == ["outside", "tool", "outside", "tool"]
    assert all(file.run_id for file in await desk.files())


async def test_write_keeps_line_ends_and_encoding(desk: Desk) -> None:
    """A model cannot see Windows line ends, marks and encodings: it does not mean to change them."""
    desk.put("dos.txt", b"\xef\xbb\xbfa\r\nb\r\n")
    await desk.call("view", file_path="dos.txt")
    assert "already" in await desk.fails("write", file_path="dos.txt", content="a\nb\n")
    await desk.does("write", file_path="dos.txt", content="a\nc\n")
    assert desk.read("dos.txt") == b"\xef\xbb\xbfa\r\nc\r\n"
    assert await desk.versions() == [("dos.txt", 0, "a\r\nb\r\n"), ("dos.txt", 1, "a\r\nc\r\n")]
    desk.put("wide.txt", "\ufeffä\n".encode("utf-16-be"))
    await desk.call("view", file_path="wide.txt")
    await desk.does("write", file_path="wide.txt", content="ö\n")
    assert desk.read("wide.txt") == "\ufeffö\n".encode("utf-16-be")


async def test_write_keeps_the_mode(desk: Desk) -> None:
    path = desk.put("run.sh", b"#!/bin/sh\n")
    path.chmod(0o751)
    await desk.call("view", file_path="run.sh")
    await desk.does("edit", file_path="run.sh", old_string="/bin/sh", new_string="/bin/bash")
    assert path.stat().st_mode & 0o7777 == 0o751


async def test_write_keeps_hard_links_together(desk: Desk) -> None:
    os.link(desk.root / "a.txt", desk.root / "b.txt")
    await desk.call("view", file_path="a.txt")
    await desk.does("write", file_path="a.txt", content="x")
    assert desk.read("b.txt") == b"x"
    assert desk.names() == ["a.txt", "b.txt"]


async def test_write_refuses_a_directory(desk: Desk) -> None:
    (desk.root / "b").mkdir()
    assert "directory" in await desk.fails("write", file_path="b", content="x")


async def test_write_does_not_touch_what_is_no_text(desk: Desk) -> None:
    desk.put("a.bin", b"\x80\x00\xff")
    await desk.call("view", file_path="a.bin")
    await desk.fails("write", file_path="a.bin", content="x")
    assert desk.read("a.bin") == b"\x80\x00\xff"


async def test_write_through_a_file_is_an_error(desk: Desk) -> None:
    """A directory on the way that is a file: the tool breaks, the turn does not."""
    assert "not a directory" in await desk.fails("write", file_path="a.txt/b.txt", content="x")
