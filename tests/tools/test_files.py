"""ls, view and write on real files, each through a real run."""

import base64
import json
import os
import time
from pathlib import Path

import pytest

from holdfast.domain.events import FileEvent
from holdfast.domain.files import ReadMark
from holdfast.domain.ledger import MarkRead
from holdfast.domain.settings import PermissionSettings, ToolSettings
from holdfast.permissions.rules import Rules
from holdfast.tools.registry import BuiltinTools, ToolNeeds
from tools.desk import Desk, told

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


# ls


def repository(desk: Desk) -> None:
    (desk.root / ".git").mkdir()


async def test_ls_shows_a_tree(desk: Desk) -> None:
    repository(desk)
    desk.put("b/c.txt", b"")
    desk.put("b/d/e/f.txt", b"")
    desk.put(".github/w.yml", b"")
    os.symlink("b", desk.root / "link")
    result = await desk.does("ls")
    assert result.content.splitlines() == [
        f"- {desk.root}/",
        "  - .github/",
        "    - w.yml",
        "  - a.txt",
        "  - b/",
        "    - c.txt",
        "    - d/",
        "      - e/",
        "        - f.txt",
        "  - link -> b",
    ]
    assert told(result) == {"number_of_files": 9, "truncated": False}
    assert "c.txt" in (await desk.does("ls", path="b", depth=1)).content
    assert "e/" not in (await desk.does("ls", path="b", depth=1)).content


async def test_ls_of_nothing(desk: Desk) -> None:
    (desk.root / "b").mkdir()
    assert "nothing in it" in (await desk.call("ls", path="b")).content


async def test_ls_outside_of_a_repository_is_short(desk: Desk) -> None:
    desk.put("b/c/d/e.txt", b"")
    assert "c/" in (await desk.does("ls")).content
    assert "e.txt" not in (await desk.does("ls")).content
    for number in range(103):
        desk.put(f"f{number:03}", b"")
    result = await desk.does("ls")
    assert told(result) == {"number_of_files": 100, "truncated": True}
    assert len([line for line in result.content.splitlines() if "- f" in line]) < 103


async def test_ls_has_limits_that_a_user_may_set(project: Path) -> None:
    settings = ToolSettings(ls={"max_items": 3, "max_depth": 1})
    desk = await Desk(project).open(ToolNeeds(settings=lambda: settings))
    for name in ("b/x", "c/x", "d/x"):
        desk.put(name, b"")
    result = await desk.does("ls")
    assert told(result) == {"number_of_files": 3, "truncated": True}
    assert "- x" not in result.content


async def test_ls_cuts_at_the_bottom(project: Path) -> None:
    """A large directory does not push its neighbours out."""
    desk = await Desk(project).open(ToolNeeds(settings=lambda: ToolSettings(ls={"max_items": 10, "max_depth": 9})))
    for number in range(50):
        desk.put(f"aa/{number}", b"")
    desk.put("zz/last", b"")
    assert "- zz/" in (await desk.does("ls")).content


async def test_ls_leaves_out_what_is_ignored(desk: Desk) -> None:
    repository(desk)
    for name in ("build/x", "keep/y.log", "keep/z.py", "node_modules/n", "own/o", "crush/c", "sub/only", "sub/other"):
        desk.put(name, b"")
    desk.put(".gitignore", b"build/\n*.log\n")
    desk.put(".holdfastignore", b"own\n")
    desk.put(".crushignore", b"/crush\n")
    desk.put("sub/.ignore", b"only\n")
    content = (await desk.does("ls", ignore=["*.txt"])).content
    assert "z.py" in content
    assert "other" in content
    for hidden in ("build", "y.log", "node_modules", "own/", "crush/", "only", "a.txt", ".git/"):
        assert hidden not in content, hidden
    assert "- x" in (await desk.does("ls", path="build")).content


@pytest.mark.parametrize(("path", "says"), [("a.txt", "is a file"), ("nothing", "no directory")])
async def test_ls_wants_a_directory(desk: Desk, path: str, says: str) -> None:
    answer = await desk.fails("ls", path=path)
    assert path in answer
    assert says in answer


# view


async def test_view_numbers_lines(desk: Desk) -> None:
    result = await desk.call("view", file_path="a.txt")
    assert result.content == "<file>\n     1|one\n     2|two\n     3|three\n</file>"
    assert told(result) == {"file_path": str(desk.root / "a.txt"), "content": "one\ntwo\nthree"}


async def test_view_shows_a_section(desk: Desk) -> None:
    result = await desk.call("view", file_path="a.txt", offset=1, limit=1)
    assert result.content == "<file>\n     2|two\n(1 more lines; go on with offset=2)\n</file>"
    assert "only 3 lines" in (await desk.call("view", file_path="a.txt", offset=9)).content
    assert "1|one" in (await desk.call("view", file_path="a.txt", offset=-5)).content


async def test_view_shows_200_lines_unless_told_otherwise(desk: Desk) -> None:
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


# write


async def test_write_makes_a_file_and_its_directories(desk: Desk) -> None:
    result = await desk.call("write", file_path="new/deep/b.txt", content="é\n")
    assert not result.is_error
    assert desk.read("new/deep/b.txt") == "é\n".encode()
    assert await desk.versions() == [("new/deep/b.txt", 0, None), ("new/deep/b.txt", 1, "é\n")]
    assert (told(result)["additions"], told(result)["removals"]) == (1, 0)
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
    other = (await desk.world.workspace.sessions.create("Other")).id
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
        await desk.world.workspace.engine.recorder.put(MarkRead(ReadMark(desk.world.session, path, read_at)))
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
    events = [event.payload.payload for _, event in desk.world.tape.events if isinstance(event, FileEvent)]
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


# Where they may go


OUTSIDE = ["../secret.txt", "b/../../secret.txt", "link.txt", "dir/secret.txt"]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_outside_of_the_workspace_somebody_is_asked(desk: Desk, path: str) -> None:
    """With the real path: a link or a detour is shown for what it is."""
    os.symlink("../secret.txt", desk.root / "link.txt")
    os.symlink("..", desk.root / "dir")
    (desk.root / "b").mkdir()
    real = str(desk.root.parent / "secret.txt")
    desk.porter.refuses = lambda _: True
    assert "denied" in await desk.fails("view", file_path=path)
    assert "denied" in await desk.fails("grep", pattern="secret", path=path)
    assert desk.porter.actions() == [("view", "read", real), ("grep", "list", real)]
    assert desk.porter.asked[0].params == {"file_path": real, "offset": 0, "limit": 200}
    assert await desk.marks() == []
    desk.porter.refuses = lambda _: False
    assert "1|secret" in (await desk.does("view", file_path=path)).content
    desk.porter.refuses = lambda _: True
    await desk.fails("write", file_path=path, content="x")
    assert desk.porter.actions()[-1] == ("write", "write", real)
    assert (desk.root.parent / "secret.txt").read_bytes() == b"secret"


async def test_inside_nobody_is_asked_for_reading(desk: Desk) -> None:
    for tool, arguments in (
        ("view", {"file_path": "a.txt"}),
        ("ls", {}),
        ("grep", {"pattern": "one"}),
        ("glob", {"pattern": "*"}),
    ):
        await desk.does(tool, **arguments)
    assert desk.porter.asked == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("view", {"file_path": "a.txt"}),
        ("view", {"file_path": "./x/../a.txt"}),
        ("ls", {}),
        ("grep", {"pattern": "one"}),
        ("glob", {"pattern": "*"}),
    ],
)
async def test_inside_rules_count_for_reading_too(desk: Desk, tool: str, arguments: dict[str, str]) -> None:
    settings = PermissionSettings(ask=("view(a.txt)", "ls", "grep", "glob(**)"))
    desk.porter.rules = Rules(settings, str(desk.root), real=os.path.realpath)
    desk.porter.refuses = lambda _: True
    assert "denied" in await desk.fails(tool, **arguments)


async def test_ls_asks_outside(desk: Desk) -> None:
    (desk.root.parent / "project2").mkdir()
    await desk.does("ls", path="../project2")
    assert desk.porter.actions() == [("ls", "list", str(desk.root.parent / "project2"))]
    assert desk.porter.asked[0].params == {"path": str(desk.root.parent / "project2"), "ignore": [], "depth": 0}


async def test_every_change_is_asked_for(desk: Desk) -> None:
    desk.porter.refuses = lambda _: True
    await desk.call("view", file_path="a.txt")
    for tool, arguments in (
        ("write", {"content": "x"}),
        ("edit", {"old_string": "one", "new_string": "x"}),
        ("multiedit", {"edits": [{"old_string": "one", "new_string": "x"}]}),
    ):
        assert "denied" in await desk.fails(tool, file_path="a.txt", **arguments)
    real = str(desk.root / "a.txt")
    assert desk.porter.actions() == [(tool, "write", real) for tool in ("write", "edit", "multiedit")]
    assert desk.porter.asked[1].params == {
        "file_path": real,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "x\ntwo\nthree\n",
    }
    assert desk.read("a.txt") == b"one\ntwo\nthree\n"
    assert await desk.versions() == []


async def test_some_directories_may_be_read_unasked(project: Path) -> None:
    desk = await Desk(project).open(ToolNeeds(readable=lambda: [str(project.parent / "skills")]))
    (project.parent / "skills").mkdir()
    (project.parent / "skills" / "s.md").write_text("skill")
    await desk.does("view", file_path="../skills/s.md")
    assert desk.porter.asked == []


async def test_a_link_to_nothing_leads_to_its_target(desk: Desk) -> None:
    os.symlink("../new.txt", desk.root / "link.txt")
    desk.porter.refuses = lambda permit: not permit.path.startswith(f"{desk.root}/")
    await desk.fails("write", file_path="link.txt", content="x")
    assert "new.txt" not in os.listdir(desk.root.parent)


async def test_a_link_inside_is_followed_and_shown(desk: Desk) -> None:
    os.symlink("a.txt", desk.root / "link.txt")
    await desk.call("view", file_path="link.txt")
    result = await desk.does("write", file_path="link.txt", content="x")
    assert "link.txt (which is a.txt)" in result.content
    assert desk.read("a.txt") == b"x"
    assert os.readlink(desk.root / "link.txt") == "a.txt"


async def test_links_in_a_circle_are_an_error(desk: Desk) -> None:
    os.symlink("two", desk.root / "one")
    os.symlink("one", desk.root / "two")
    for tool in ("view", "ls"):
        await desk.fails(tool, **({"file_path": "one/x"} if tool == "view" else {"path": "one"}))


# Arguments


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("view", {}, "file_path"),
        ("view", {"file_path": "a.txt", "offset": "three"}, "offset"),
        ("view", {"file_path": ""}, "empty"),
        ("view", {"file_path": "a\0b"}, "null"),
        ("write", {"file_path": "a.txt"}, "content"),
        ("write", {"file_path": "a.txt", "content": {"a": 1}}, "content"),
        ("write", {"file_path": "a.txt", "content": "x", "mode": 1}, "mode"),
        ("ls", {"ignore": 7}, "ignore"),
        ("multiedit", {"file_path": "a.txt", "edits": []}, "edits"),
        ("multiedit", {"file_path": "a.txt", "edits": [{"old_string": "x"}]}, "new_string"),
        ("todos", {"todos": [{"content": "x", "status": "soon"}]}, "soon"),
        ("fetch", {"url": "https://example.org", "format": "pdf"}, "pdf"),
    ],
)
async def test_wrong_arguments_are_explained(desk: Desk, tool: str, arguments: dict[str, object], named: str) -> None:
    explanation = await desk.fails(tool, **arguments)
    assert named in explanation


async def test_an_explanation_says_what_a_tool_takes(desk: Desk) -> None:
    assert "view takes: file_path, offset?, limit?." in await desk.fails("view", colour="red")


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a.txt"},
        {"filename": "a.txt", "limit": "2"},
        {"file_path": "a.txt", "offset": None, "limit": 2.0},
        {"file_path": "a.txt", "offset": "0"},
    ],
)
async def test_small_slips_are_understood(desk: Desk, arguments: dict[str, object]) -> None:
    assert "1|one" in (await desk.does("view", **arguments)).content


async def test_slips_in_nested_arguments_are_understood(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    edits = json.dumps([{"old_str": "one", "new_str": "1", "replaceAll": "true"}])
    await desk.does("multiedit", path="a.txt", edits=edits)
    assert desk.read("a.txt") == b"1\ntwo\nthree\n"


async def test_each_tool_tells_a_model_how_to_call_it() -> None:
    tools = {tool.spec.name: tool.spec for tool in await BuiltinTools().current()}
    assert list(tools) == [
        "download", "edit", "fetch", "glob", "grep", "holdfast_info", "holdfast_logs", "ls", "multiedit", "todos",
        "view", "write",
    ]  # fmt: skip
    for spec in tools.values():
        schema = json.loads(spec.parameters)
        assert schema["type"] == "object"
        assert "$ref" not in spec.parameters
        assert all("description" in field for field in schema["properties"].values())
        assert len(spec.description) > 40
    wanted = {
        "view": {"file_path", "offset", "limit"},
        "write": {"file_path", "content"},
        "edit": {"file_path", "old_string", "new_string", "replace_all"},
        "multiedit": {"file_path", "edits"},
        "ls": {"path", "ignore", "depth"},
        "glob": {"pattern", "path"},
        "grep": {"pattern", "path", "include", "literal_text"},
        "fetch": {"url", "format", "timeout"},
        "download": {"url", "file_path", "timeout"},
        "todos": {"todos"},
        "holdfast_info": set(),
        "holdfast_logs": {"lines"},
    }
    assert {name: set(json.loads(spec.parameters)["properties"]) for name, spec in tools.items()} == wanted


async def test_unwanted_tools_are_left_out() -> None:
    tools = BuiltinTools(ToolNeeds(disabled=lambda: ("fetch", "download")))
    assert not {"fetch", "download"} & {tool.spec.name for tool in await tools.current()}
