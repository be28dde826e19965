"""Hooks of a repository of the user that a command creates or replaces, beside and over every kind of file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.workspace.sandbox.quarantine import SandboxCleanup
from trials.sandbox_escapes import git

KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("mine"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a file": lambda path: path.symlink_to("../../tool"),
    "link to a directory": lambda path: path.symlink_to("../refs"),
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
}


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a hook folder that is read in the order of its names."""
    place = Path(os.path.realpath(tmp_path)) / "project"
    place.mkdir()
    git("init", "-q", cwd=place)
    (place / "tool").write_text("a tool of the project")
    folder = place / ".git/hooks"
    folder.mkdir(exist_ok=True)
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": sorted(real(path)))
    return folder


def content_of(path: Path) -> str | None:
    """Return what a restored entry must equal."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    return path.read_text() if path.is_file() else None


@pytest.mark.parametrize("existing", KINDS)
def test_new_and_replaced_hooks(hooks: Path, existing: str) -> None:
    """Each is moved away; a replaced file or link is restored."""
    top = hooks.parent.parent
    cleanup = SandboxCleanup(str(top), (), str(top.parent / "kept"))
    mine, made = hooks / "a-mine", hooks / "pre-commit"
    KINDS[existing](mine)
    before = content_of(mine)
    for kind, create in KINDS.items():
        end = cleanup.begin(frozenset())
        create(made)
        said = end()
        assert ".git/hooks/pre-commit (now" in said, kind
        assert "a-mine" not in said
        assert not os.path.lexists(made)
        if kind == existing or before is None:
            continue
        end = cleanup.begin(frozenset())
        mine.unlink()
        create(mine)
        assert ".git/hooks/a-mine (now" in end(), kind
        assert content_of(mine) == before


def test_samples_and_files_of_the_project_are_not_hooks(hooks: Path) -> None:
    top = hooks.parent.parent
    cleanup = SandboxCleanup(str(top), (), str(top.parent / "kept"))
    KINDS["link to a file"](hooks / "pre-commit")
    end = cleanup.begin(frozenset())
    (hooks / "pre-push.sample").write_text("made")
    (top / "tool").write_text("another text of the tool")
    assert end() == ""
    assert (hooks / "pre-push.sample").read_text() == "made"
