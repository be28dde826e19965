"""Atomic writes of files: errors of the disk at each step, and the state afterwards."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.errors import ToolError
from holdfast.workspace.files import atomic_write
from holdfast.workspace.files.atomic_write import AtomicWrite, remove_abandoned
from holdfast.workspace.files.safe_open import FileLocation, locate


def place_of(path: Path) -> FileLocation:
    return locate(str(path.parent), str(path))


def draft_of(path: Path) -> AtomicWrite:
    return AtomicWrite(place_of(path), path.stat() if path.exists() else None)


def write(draft: AtomicWrite, data: bytes = b"new") -> None:
    try:
        draft.open()
        draft.add(data)
        draft.finish()
        draft.publish()
    finally:
        draft.discard()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def refused(call: Callable[..., object], number: int, *, is_hit: Callable[[str], bool]) -> Callable[..., object]:
    """Return the call, failing with this error for matching names."""

    def fail_if_matching(path: str, *arguments: object, **named: object) -> object:
        if is_hit(path):
            raise OSError(number, os.strerror(number))
        return call(path, *arguments, **named)

    return fail_if_matching


def is_draft(path: object) -> bool:
    return str(path).startswith(".holdfast-")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_new_file_is_made_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", refused(os.link, number, is_hit=is_draft))
    write(draft_of(tmp_path / "f"))
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_new_file_is_not_made_if_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refused(os.link, errno.EIO, is_hit=is_draft))
    before = descriptors()
    with pytest.raises(ToolError, match="input/output error"):
        write(draft_of(tmp_path / "a/b/f"))
    assert (names(tmp_path), descriptors()) == ([], before)


@pytest.mark.parametrize("step", ["open", "mkdir", "write", "fsync", "fchmod", "rename"])
def test_failure_of_any_step_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    old = tmp_path / "f"
    old.write_bytes(b"old")
    target = tmp_path / "a/b/f" if step == "mkdir" else old
    draft = draft_of(target)
    before = descriptors()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    hit: Callable[..., object] = fail
    if step == "open":
        hit = refused(os.open, errno.EIO, is_hit=is_draft)
    elif step == "mkdir":
        # The first directory is created, the second is not.
        hit = refused(os.mkdir, errno.EIO, is_hit=lambda path: path == "b")
    monkeypatch.setattr(os, step, hit)
    with pytest.raises(ToolError, match="input/output error"):
        write(draft)
    monkeypatch.undo()
    assert (names(tmp_path), old.read_bytes(), descriptors()) == (["f"], b"old", before)


def test_file_in_read_only_directory_is_changed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a user who may write the file but not its directory; creating a new file is refused."""
    path = tmp_path / "f"
    path.write_bytes(b"old content")
    path.chmod(0o604)
    number = path.stat().st_ino
    before = descriptors()
    monkeypatch.setattr(os, "open", refused(os.open, errno.EACCES, is_hit=is_draft))
    write(draft_of(path))
    assert (path.read_bytes(), path.stat().st_ino, stat.S_IMODE(path.stat().st_mode)) == (b"new", number, 0o604)
    with pytest.raises(ToolError, match="permission denied"):
        write(draft_of(tmp_path / "g"))
    assert (names(tmp_path), descriptors()) == (["f"], before)


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(ToolError, match="read-only"):
        write(draft_of(path))
    write(draft_of(tmp_path / "g"))
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["f", "g"])


@pytest.mark.parametrize("act", ["publish", "remove", "set_aside"])
def test_a_file_that_is_not_the_examined_one_is_kept(tmp_path: Path, act: str) -> None:
    """Changed, replaced by one of the same size, removed, or created in the meantime."""
    for what in ("changed", "replaced", "removed", "made"):
        path = tmp_path / what
        if what != "made":
            path.write_bytes(b"old")
        draft = draft_of(path)
        if act == "publish":
            draft.open()
            draft.add(b"new")
            draft.finish()
        if what in ("replaced", "removed"):
            path.unlink()
        if what != "removed":
            path.write_bytes(b"own")
        with pytest.raises(ToolError, match=r"meanwhile|by another program"):
            getattr(draft, act)()
        draft.discard()
        assert not path.exists() if what == "removed" else path.read_bytes() == b"own", what
    assert names(tmp_path) == ["changed", "made", "replaced"]


def test_a_file_that_is_set_aside_is_restored_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    known, before = path.stat(), descriptors()
    draft = draft_of(path)
    draft.set_aside()
    assert not path.exists()
    draft.restore()
    draft.discard()
    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_nlink) == (known.st_ino, known.st_mtime_ns, 1)
    draft_of(path).remove()
    assert (names(tmp_path), descriptors()) == ([], before)
    with pytest.raises(ToolError, match="aborted"):
        draft.set_aside()


def test_a_file_that_cannot_be_restored_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    draft = draft_of(path)
    draft.set_aside()
    path.write_text("of another program")
    with pytest.raises(ToolError):
        draft.restore()
    draft.discard()
    remove_abandoned(str(tmp_path))
    (kept,) = (name for name in names(tmp_path) if name != "a.txt")
    assert ((tmp_path / kept).read_text(), path.read_text()) == ("old", "of another program")


@pytest.mark.parametrize(("is_new", "mode"), [(True, 0o666), (False, 0o600)])
def test_a_draft_of_a_replacement_is_private(tmp_path: Path, is_new: bool, mode: int) -> None:
    """It contains what only the reader of the replaced file may see."""
    path = tmp_path / "a.txt"
    if not is_new:
        path.write_text("old")
    mask = os.umask(0)
    try:
        draft = draft_of(path)
        draft.open()
        (draft_path,) = (item for item in tmp_path.iterdir() if item != path)
        assert stat.S_IMODE(draft_path.stat().st_mode) == mode
    finally:
        os.umask(mask)
        draft.discard()


def test_owner_is_kept_if_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a program does not change its owner by being edited."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    status = os.stat_result((stat.S_IFREG | 0o6755, *path.stat()[1:4], 4_321, 4_322, *path.stat()[6:]))
    owners: list[tuple[int, int]] = []

    def fchown(_: int, user: int, group: int) -> None:
        owners.append((user, group))
        if len(owners) > 1:
            raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "fchown", fchown)
    modes = []
    for _ in range(2):
        with (tmp_path / "draft").open("wb") as file:
            folder = os.open(tmp_path, os.O_RDONLY)
            atomic_write._copy_attributes(file.fileno(), status, folder, "f")
            os.close(folder)
            modes.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    assert (owners, modes) == ([(4_321, 4_322)] * 2, [0o6755, 0o755])
    # The user's own file keeps its owner without a warning.
    path.chmod(0o750)
    write(draft_of(path))
    assert (len(owners), stat.S_IMODE(path.stat().st_mode)) == (2, 0o750)


def test_new_file_is_undone_with_its_directories(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "a/b/f")
    write(draft)
    draft.sync()
    draft.revert(None)
    assert names(tmp_path) == []


def test_directories_in_use_are_kept_by_undo(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "a/b/f")
    write(draft)
    (tmp_path / "a/theirs").write_bytes(b"")
    draft.revert(None)
    assert names(tmp_path) == ["a", "a/theirs"]


def test_old_content_is_restored_with_mode_and_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_bytes(b"old")
        path.chmod(0o640)
    os.link(tmp_path / "two", tmp_path / "second name")
    for name in ("one", "two"):
        draft = draft_of(tmp_path / name)
        write(draft, b"much longer than before")
        draft.revert(b"old")
        assert (tmp_path / name).read_bytes() == b"old"
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
    assert (tmp_path / "second name").read_bytes() == b"old"
    assert names(tmp_path) == ["one", "second name", "two"]


def test_file_system_without_sync_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of(tmp_path / "f")
    write(draft)
    before = descriptors()

    def fail(_: int) -> None:
        raise OSError(errno.EINVAL, "cannot be synced")

    monkeypatch.setattr(os, "fsync", fail)
    draft.sync()
    assert descriptors() == before


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than requested."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data[:2])))
    path = tmp_path / "f"
    draft = draft_of(path)
    write(draft, b"in pieces")
    assert (path.read_bytes(), draft.size) == (b"in pieces", 9)
    os.link(path, tmp_path / "g")
    write(draft_of(path), b"poured in pieces")
    assert (tmp_path / "g").read_bytes() == b"poured in pieces"


def test_abandoned_draft_refuses_writes(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "f")
    draft.open()
    draft.discard()
    for step in (draft.open, lambda: draft.add(b"x"), draft.finish):
        with pytest.raises(ToolError, match="aborted"):
            step()
    with contextlib.suppress(ToolError):
        draft.publish()
    assert names(tmp_path) == []


def test_files_in_use_are_not_removed_as_abandoned(tmp_path: Path) -> None:
    """A draft and a file that is set aside are locked exactly as long as they are in use."""
    (tmp_path / "old").write_bytes(b"old")
    draft, aside = draft_of(tmp_path / "new"), draft_of(tmp_path / "old")
    draft.open()
    aside.set_aside()
    remove_abandoned(str(tmp_path))
    assert len([name for name in names(tmp_path) if is_draft(name)]) == 2
    aside.restore()
    aside.discard()
    draft.discard()
    assert names(tmp_path) == ["old"]
    (tmp_path / ".holdfast-0123456789abcdef.tmp").symlink_to("old")
    os.mkdir(tmp_path / ".holdfast-0123456789abcde0.tmp")
    remove_abandoned(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 3
    remove_abandoned(str(tmp_path / "missing"))


def test_a_draft_that_was_removed_before_it_was_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def remove_first(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        for path in tmp_path.iterdir():
            path.unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    write(draft_of(tmp_path / "f"))
    assert names(tmp_path) == ["f"]
