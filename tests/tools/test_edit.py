"""edit and multiedit on real files, each through a real run."""

import json
import re
from pathlib import Path

import pytest

from holdfast.tools.registry import BuiltinTools
from tools.direct_calls import DirectCaller
from tools.tool_runner import ToolRunner, metadata_of

CODE = b"def f():\n\tif x:\n\t\treturn 1\n\n\ndef g():\n\treturn 2\n"


@pytest.fixture
async def runner_with_code(runner: ToolRunner) -> ToolRunner:
    runner.write_file("f.py", CODE)
    await runner.call_ok("view", file_path="f.py")
    await runner.call_ok("view", file_path="a.txt")
    return runner


async def test_edit_replaces_one_occurrence(runner_with_code: ToolRunner) -> None:
    result = await runner_with_code.call_ok("edit", file_path="a.txt", old_string="two", new_string="2")
    assert runner_with_code.read("a.txt") == b"one\n2\nthree\n"
    assert metadata_of(result) == {
        "additions": 1,
        "removals": 1,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "one\n2\nthree\n",
    }
    assert await runner_with_code.versions() == [("a.txt", 0, "one\ntwo\nthree\n"), ("a.txt", 1, "one\n2\nthree\n")]
    assert "1 place in a.txt" in result.content


async def test_second_edit_needs_no_second_view(runner_with_code: ToolRunner) -> None:
    for old, new in (("one", "1"), ("two", "2"), ("three", "3")):
        await runner_with_code.call_ok("edit", file_path="a.txt", old_string=old, new_string=new)
    assert runner_with_code.read("a.txt") == b"1\n2\n3\n"


async def test_edit_removes_text(runner_with_code: ToolRunner) -> None:
    await runner_with_code.call_ok("edit", file_path="a.txt", old_string="two\n", new_string="")
    assert runner_with_code.read("a.txt") == b"one\nthree\n"


async def test_edit_creates_a_file(runner_with_code: ToolRunner) -> None:
    result = await runner_with_code.call_ok("edit", file_path="new/n.txt", old_string="", new_string="x\n")
    assert runner_with_code.read("new/n.txt") == b"x\n"
    assert metadata_of(result)["old_content"] == ""
    assert "exists already" in await runner_with_code.call_error(
        "edit", file_path="a.txt", old_string="", new_string="x"
    )
    assert "no file" in await runner_with_code.call_error("edit", file_path="no.txt", old_string="x", new_string="y")


async def test_edit_refuses_an_ambiguous_match(runner_with_code: ToolRunner) -> None:
    answer = await runner_with_code.call_error("edit", file_path="f.py", old_string="return", new_string="yield")
    assert "2 times (lines 3, 7)" in answer
    assert "replace_all" in answer
    result = await runner_with_code.call_ok(
        "edit", file_path="f.py", old_string="return", new_string="yield", replace_all=True
    )
    assert runner_with_code.read("f.py") == CODE.replace(b"return", b"yield")
    assert "2 places" in result.content


async def test_edit_tolerates_different_white_space_and_adapts_it(runner_with_code: ToolRunner) -> None:
    result = await runner_with_code.call_ok(
        "edit",
        file_path="f.py",
        old_string="    if x:\n        return 1\n",
        new_string="    if y:\n        for z in y:\n            return z\n",
    )
    assert runner_with_code.read("f.py") == CODE.replace(
        b"\tif x:\n\t\treturn 1", b"\tif y:\n\t\tfor z in y:\n\t\t\treturn z"
    )
    assert "white space" in result.content
    assert "+\t\tfor z in y:" in result.content


async def test_edit_shows_the_nearest_difference(runner_with_code: ToolRunner) -> None:
    answer = await runner_with_code.call_error(
        "edit", file_path="f.py", old_string="def g():\n\treturn 3\n", new_string="x"
    )
    assert "line 7" in answer
    assert "the file has: →return 2" in answer
    assert "you sent:     →return 3" in answer
    assert runner_with_code.read("f.py") == CODE


async def test_edit_refuses_a_replacement_without_effect(runner_with_code: ToolRunner) -> None:
    assert "same" in await runner_with_code.call_error("edit", file_path="a.txt", old_string="one", new_string="one")
    assert await runner_with_code.versions() == []


async def test_edit_keeps_windows_line_endings(runner: ToolRunner) -> None:
    runner.write_file("dos.txt", b"a\r\nb\r\nc\r\n")
    await runner.call_ok("view", file_path="dos.txt")
    await runner.call_ok("edit", file_path="dos.txt", old_string="a\nb\n", new_string="a\nx\ny\n")
    assert runner.read("dos.txt") == b"a\r\nx\r\ny\r\nc\r\n"


async def test_edit_requires_a_prior_view(runner: ToolRunner) -> None:
    assert "view first" in await runner.call_error("edit", file_path="a.txt", old_string="one", new_string="x")


async def test_metadata_of_large_files_is_an_excerpt(runner: ToolRunner) -> None:
    """A client needs the changed lines, not megabytes around them."""
    lines = [f"line {number}\n" for number in range(40_000)]
    runner.write_file("big.txt", "".join(lines).encode())
    await runner.call_ok("view", file_path="big.txt", limit=1)
    result = await runner.call_ok("edit", file_path="big.txt", old_string="line 20000\n", new_string="changed\n")
    assert metadata_of(result)["new_content"] == "".join(
        ["line 19997\n", "line 19998\n", "line 19999\n", "changed\n", "line 20001\n", "line 20002\n", "line 20003\n"]
    )
    assert (metadata_of(result)["additions"], metadata_of(result)["removals"]) == (1, 1)


# multiedit


def edit_of(old: str, new: str, **more: object) -> dict[str, object]:
    return {"old_string": old, "new_string": new, **more}


async def test_multiedit_applies_edits_in_order(runner_with_code: ToolRunner) -> None:
    edits = [edit_of("one", "uno"), edit_of("uno\ntwo", "dos"), edit_of("e", "E", replace_all=True)]
    result = await runner_with_code.call_ok("multiedit", file_path="a.txt", edits=edits)
    assert runner_with_code.read("a.txt") == b"dos\nthrEE\n"
    assert metadata_of(result) == {
        "additions": 2,
        "removals": 3,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "dos\nthrEE\n",
        "edits_applied": 3,
    }
    assert len(runner_with_code.approver.requests) == 1


async def test_multiedit_applies_the_edits_that_match(runner_with_code: ToolRunner) -> None:
    edits = [edit_of("one", "1"), edit_of("nowhere", "x"), edit_of("three", "3"), edit_of("", "y")]
    result = await runner_with_code.call_ok("multiedit", file_path="a.txt", edits=edits)
    assert runner_with_code.read("a.txt") == b"1\ntwo\n3\n"
    assert metadata_of(result)["edits_applied"] == 2
    failed = metadata_of(result)["edits_failed"]
    assert [item["index"] for item in failed] == [2, 4]
    assert failed[0]["edit"] == edit_of("nowhere", "x", replace_all=False)
    assert "not in the file" in failed[0]["error"]
    assert "Edit 2 failed" in result.content


async def test_multiedit_without_edits_is_an_error(runner_with_code: ToolRunner) -> None:
    answer = await runner_with_code.call_error(
        "multiedit", file_path="a.txt", edits=[edit_of("nowhere", "x"), edit_of("no", "x")]
    )
    assert "Edit 2 failed" in answer
    assert runner_with_code.read("a.txt") == b"one\ntwo\nthree\n"
    assert runner_with_code.approver.requests == []
    back = [edit_of("one", "1"), edit_of("1", "one")]
    assert "No edit" in await runner_with_code.call_error("multiedit", file_path="a.txt", edits=back)


async def test_multiedit_creates_a_file(runner_with_code: ToolRunner) -> None:
    result = await runner_with_code.call_ok(
        "multiedit", file_path="n.txt", edits=[edit_of("", "a b"), edit_of("b", "c")]
    )
    assert runner_with_code.read("n.txt") == b"a c"
    assert metadata_of(result)["edits_applied"] == 2


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
@pytest.mark.parametrize("wrong", [{2}, {3}, {4}, {2, 4}, {2, 3, 4}])
async def test_reported_edit_numbers_are_positions_in_the_call(tmp_path: Path, wrong: set[int], is_new: bool) -> None:
    """Failed edits and remarks are numbered by position in the call, even if the first edit creates the file."""
    call = DirectCaller(tmp_path, await BuiltinTools().current())
    lines = "  line 2\n  line 3\n  line 4\n"
    if not is_new:
        await call("write", file_path="f", content=f"head\n{lines}")
    first = edit_of("", f"first\n{lines}") if is_new else edit_of("head", "first")
    # A tab for two spaces: the edit is applied with a remark.
    others = [edit_of("nowhere" if at in wrong else f"\tline {at}", f"\tLINE {at}") for at in (2, 3, 4)]
    outcome = await call("multiedit", file_path="f", edits=[first, *others])
    failed = json.loads(outcome.metadata)["edits_failed"]
    assert [(item["index"], item["edit"]["new_string"]) for item in failed] == [
        (at, f"\tLINE {at}") for at in sorted(wrong)
    ]
    output = outcome.content.splitlines()
    assert output[0].startswith(f"Made {4 - len(wrong)} of 4 edits in f ")
    assert {int(line.split()[1]) for line in output if re.match(r"Edit \d+ failed: ", line)} == wrong
    assert {int(line.split()[1][:-1]) for line in output if re.match(r"Edit \d+: ", line)} == {2, 3, 4} - wrong
    made = ["  line" if at in wrong else "  LINE" for at in (2, 3, 4)]
    assert (tmp_path / "f").read_text() == "first\n" + "".join(f"{word} {at}\n" for at, word in enumerate(made, 2))
