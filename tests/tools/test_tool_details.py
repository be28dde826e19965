"""Details of answers and questions of the tools that read: what is shown at the edges, and who is asked."""

import base64
import json
import os
from pathlib import Path

import pytest

from holdfast.domain.ledger import MarkRead
from holdfast.tools import agent, view
from holdfast.tools.agent import Agent
from holdfast.tools.registry import BuiltinTools, ToolNeeds
from holdfast.workspace.files import digest_of
from tools.direct import Direct

PNG = b"\x89PNG\r\n\x1a\n and more"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    return root


async def caller(root: Path, needs: ToolNeeds | None = None) -> Direct:
    return Direct(root, await BuiltinTools(needs).current())


# view


@pytest.mark.parametrize(
    ("content", "arguments", "shown"),
    [
        ("", {}, ["(the file is empty)"]),
        ("", {"offset": 3}, ["(the file is empty)"]),
        ("\n", {}, ["     1|"]),
        ("a", {}, ["     1|a"]),
        ("a\n", {"offset": 1}, ["(the file has only 1 lines)"]),
        ("a\n\n", {}, ["     1|a", "     2|"]),
        ("a\nb\n", {"limit": 1}, ["     1|a", "(1 more lines; go on with offset=1)"]),
        ("a\nb\nc", {"offset": 1, "limit": 1}, ["     2|b", "(1 more lines; go on with offset=2)"]),
        ("a\nb\n", {"offset": 1, "limit": 1}, ["     2|b"]),
        ("a\nb\n", {"limit": 0}, ["     1|a", "(1 more lines; go on with offset=1)"]),
        ("a\nb\n", {"offset": -1, "limit": -1}, ["     1|a", "(1 more lines; go on with offset=1)"]),
    ],
)
async def test_what_is_said_besides_the_lines(
    root: Path, content: str, arguments: dict[str, object], shown: list[str]
) -> None:
    (root / "f").write_text(content)
    call = await caller(root)
    assert (await call.text("view", file_path="f", **arguments)).split("\n") == ["<file>", *shown, "</file>"]


async def test_a_picture_is_told_and_known_like_a_text(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub/p.png").write_bytes(PNG)
    call = await caller(root)
    call.takes_images = True
    outcome = await call("view", file_path="sub/p.png")
    assert base64.b64decode(outcome.data) == PNG
    assert json.loads(outcome.metadata) == {"file_path": str(root / "sub/p.png"), "content": ""}
    (operation,) = call.operations
    assert isinstance(operation, MarkRead)
    mark = operation.mark
    assert (mark.session_id, mark.path) == (call.session_id, str(root / "sub/p.png"))
    assert (mark.read_at, mark.digest) == (call.now, digest_of(PNG))


async def test_the_lines_of_an_enormous_file_are_bounded_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that a model gives does not make the server hold all of a file that is too large to be held."""
    (root / "f").write_text("".join(f"{number:05}\n" for number in range(1, 101)))
    monkeypatch.setattr(view, "_WHOLE", 60)
    call = await caller(root)
    shown = (await call.text("view", file_path="f", limit=1_000)).split("\n")
    assert shown == [
        "<file>",
        *(f"{number:>6}|{number:05}" for number in range(1, 12)),
        "(the file goes on)",
        "</file>",
    ]
    assert await call.text("view", file_path="f", offset=10**12) == "<file>\n(the file ends before this)\n</file>"


async def test_only_directories_outside_may_be_read_without_asking(root: Path) -> None:
    """Inside of the workspace a rule may forbid it, also if the workspace has skills in it."""
    outside = root.parent / "skills"
    outside.mkdir()
    for folder in (root, outside, root.parent):
        (folder / "f").write_text("x\n")
    call = await caller(root, ToolNeeds(readable=lambda: [str(outside), str(root)]))
    for path, asked in (("f", 1), (str(outside / "f"), 0), (str(root.parent / "f"), 1)):
        call.permits.clear()
        assert "1|x" in await call.text("view", file_path=path)
        assert [permit.path for permit in call.permits] == [os.path.join(root, path)] * asked


# agent


def test_agents_are_described_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is bounded as a whole; where it gets too long there are only names."""
    monkeypatch.setattr(agent, "_LONGEST_LIST", 60)
    offered = [("a", "x" * 40), ("b", "x" * 40), ("c", "y" * 20), ("d", " z\n z ")]
    tool = Agent(lambda: offered)
    assert tool.spec.description.splitlines()[-4:] == [f"- a: {'x' * 40}", "- b", "- c", "- d: z z"]
    assert tool.spec is tool.spec
    offered = [("e", "")]
    assert tool.spec.description.splitlines()[-1] == "- e: "
    offered = []
    assert "- e" not in tool.spec.description
