"""edit and multiedit on real files, each through a real run."""

import json
import re
from pathlib import Path

import pytest

from holdfast.tools.registry import BuiltinTools
from tools.desk import Desk, told
from tools.direct import Direct

CODE = b"def f():\n\tif x:\n\t\treturn 1\n\n\ndef g():\n\treturn 2\n"


@pytest.fixture
async def coder(desk: Desk) -> Desk:
    desk.put("f.py", CODE)
    await desk.does("view", file_path="f.py")
    await desk.does("view", file_path="a.txt")
    return desk


async def test_edit_replaces_one_place(coder: Desk) -> None:
    result = await coder.does("edit", file_path="a.txt", old_string="two", new_string="2")
    assert coder.read("a.txt") == b"one\n2\nthree\n"
    assert told(result) == {
        "additions": 1,
        "removals": 1,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "one\n2\nthree\n",
    }
    assert await coder.versions() == [("a.txt", 0, "one\ntwo\nthree\n"), ("a.txt", 1, "one\n2\nthree\n")]
    assert "1 place in a.txt" in result.content


async def test_edit_may_follow_edit(coder: Desk) -> None:
    for old, new in (("one", "1"), ("two", "2"), ("three", "3")):
        await coder.does("edit", file_path="a.txt", old_string=old, new_string=new)
    assert coder.read("a.txt") == b"1\n2\n3\n"


async def test_edit_removes_text(coder: Desk) -> None:
    await coder.does("edit", file_path="a.txt", old_string="two\n", new_string="")
    assert coder.read("a.txt") == b"one\nthree\n"


async def test_edit_makes_a_file(coder: Desk) -> None:
    result = await coder.does("edit", file_path="new/n.txt", old_string="", new_string="x\n")
    assert coder.read("new/n.txt") == b"x\n"
    assert told(result)["old_content"] == ""
    assert "exists already" in await coder.fails("edit", file_path="a.txt", old_string="", new_string="x")
    assert "no file" in await coder.fails("edit", file_path="no.txt", old_string="x", new_string="y")


async def test_edit_wants_one_place_only(coder: Desk) -> None:
    answer = await coder.fails("edit", file_path="f.py", old_string="return", new_string="yield")
    assert "2 times (lines 3, 7)" in answer
    assert "replace_all" in answer
    result = await coder.does("edit", file_path="f.py", old_string="return", new_string="yield", replace_all=True)
    assert coder.read("f.py") == CODE.replace(b"return", b"yield")
    assert "2 places" in result.content


async def test_edit_forgives_white_space_and_adapts_it(coder: Desk) -> None:
    result = await coder.does(
        "edit",
        file_path="f.py",
        old_string="    if x:\n        return 1\n",
        new_string="    if y:\n        for z in y:\n            return z\n",
    )
    assert coder.read("f.py") == CODE.replace(b"\tif x:\n\t\treturn 1", b"\tif y:\n\t\tfor z in y:\n\t\t\treturn z")
    assert "white space" in result.content
    assert "+\t\tfor z in y:" in result.content


async def test_edit_shows_the_nearest_difference(coder: Desk) -> None:
    answer = await coder.fails("edit", file_path="f.py", old_string="def g():\n\treturn 3\n", new_string="x")
    assert "line 7" in answer
    assert "the file has: →return 2" in answer
    assert "you sent:     →return 3" in answer
    assert coder.read("f.py") == CODE


async def test_edit_refuses_to_change_nothing(coder: Desk) -> None:
    assert "same" in await coder.fails("edit", file_path="a.txt", old_string="one", new_string="one")
    assert await coder.versions() == []


async def test_edit_keeps_windows_line_ends(desk: Desk) -> None:
    desk.put("dos.txt", b"a\r\nb\r\nc\r\n")
    await desk.does("view", file_path="dos.txt")
    await desk.does("edit", file_path="dos.txt", old_string="a\nb\n", new_string="a\nx\ny\n")
    assert desk.read("dos.txt") == b"a\r\nx\r\ny\r\nc\r\n"


async def test_edit_wants_a_file_to_be_read_first(desk: Desk) -> None:
    assert "view first" in await desk.fails("edit", file_path="a.txt", old_string="one", new_string="x")


async def test_metadata_of_large_files_is_an_excerpt(desk: Desk) -> None:
    """A screen needs what changed, not megabytes around it."""
    lines = [f"line {number}\n" for number in range(40_000)]
    desk.put("big.txt", "".join(lines).encode())
    await desk.does("view", file_path="big.txt", limit=1)
    result = await desk.does("edit", file_path="big.txt", old_string="line 20000\n", new_string="changed\n")
    assert told(result)["new_content"] == "".join(
        ["line 19997\n", "line 19998\n", "line 19999\n", "changed\n", "line 20001\n", "line 20002\n", "line 20003\n"]
    )
    assert (told(result)["additions"], told(result)["removals"]) == (1, 1)


# multiedit


def piece(old: str, new: str, **more: object) -> dict[str, object]:
    return {"old_string": old, "new_string": new, **more}


async def test_multiedit_goes_one_after_the_other(coder: Desk) -> None:
    edits = [piece("one", "uno"), piece("uno\ntwo", "dos"), piece("e", "E", replace_all=True)]
    result = await coder.does("multiedit", file_path="a.txt", edits=edits)
    assert coder.read("a.txt") == b"dos\nthrEE\n"
    assert told(result) == {
        "additions": 2,
        "removals": 3,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "dos\nthrEE\n",
        "edits_applied": 3,
    }
    assert len(coder.porter.asked) == 1


async def test_multiedit_makes_what_can_be_made(coder: Desk) -> None:
    edits = [piece("one", "1"), piece("nowhere", "x"), piece("three", "3"), piece("", "y")]
    result = await coder.does("multiedit", file_path="a.txt", edits=edits)
    assert coder.read("a.txt") == b"1\ntwo\n3\n"
    assert told(result)["edits_applied"] == 2
    failed = told(result)["edits_failed"]
    assert [item["index"] for item in failed] == [2, 4]
    assert failed[0]["edit"] == piece("nowhere", "x", replace_all=False)
    assert "not in the file" in failed[0]["error"]
    assert "Edit 2 failed" in result.content


async def test_multiedit_of_nothing_is_an_error(coder: Desk) -> None:
    answer = await coder.fails("multiedit", file_path="a.txt", edits=[piece("nowhere", "x"), piece("no", "x")])
    assert "Edit 2 failed" in answer
    assert coder.read("a.txt") == b"one\ntwo\nthree\n"
    assert coder.porter.asked == []
    back = [piece("one", "1"), piece("1", "one")]
    assert "No edit" in await coder.fails("multiedit", file_path="a.txt", edits=back)


async def test_multiedit_makes_a_file(coder: Desk) -> None:
    result = await coder.does("multiedit", file_path="n.txt", edits=[piece("", "a b"), piece("b", "c")])
    assert coder.read("n.txt") == b"a c"
    assert told(result)["edits_applied"] == 2


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
@pytest.mark.parametrize("wrong", [{2}, {3}, {4}, {2, 4}, {2, 3, 4}])
async def test_edits_are_counted_from_the_first_that_was_sent(tmp_path: Path, wrong: set[int], is_new: bool) -> None:
    """Numbers of failed edits and of remarks are places in the call, also if the first edit makes the file."""
    call = Direct(tmp_path, await BuiltinTools().current())
    lines = "  line 2\n  line 3\n  line 4\n"
    if not is_new:
        await call("write", file_path="f", content=f"head\n{lines}")
    first = piece("", f"first\n{lines}") if is_new else piece("head", "first")
    # A tab for two spaces: the edit is made with a remark.
    others = [piece("nowhere" if at in wrong else f"\tline {at}", f"\tLINE {at}") for at in (2, 3, 4)]
    outcome = await call("multiedit", file_path="f", edits=[first, *others])
    failed = json.loads(outcome.metadata)["edits_failed"]
    assert [(item["index"], item["edit"]["new_string"]) for item in failed] == [
        (at, f"\tLINE {at}") for at in sorted(wrong)
    ]
    said = outcome.content.splitlines()
    assert said[0].startswith(f"Made {4 - len(wrong)} of 4 edits in f ")
    assert {int(line.split()[1]) for line in said if re.match(r"Edit \d+ failed: ", line)} == wrong
    assert {int(line.split()[1][:-1]) for line in said if re.match(r"Edit \d+: ", line)} == {2, 3, 4} - wrong
    made = ["  line" if at in wrong else "  LINE" for at in (2, 3, 4)]
    assert (tmp_path / "f").read_text() == "first\n" + "".join(f"{word} {at}\n" for at, word in enumerate(made, 2))
