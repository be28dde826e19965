"""Checked paths on a real disk: no symlink is followed, no write is partial."""

import os
import stat
import threading
from pathlib import Path

import pytest

from holdfast.domain.errors import ToolError
from holdfast.workspace.files import safe_open as files
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.safe_open import locate, open_plain_file, read_whole_file, status_of


def write(path: Path, data: bytes, root: Path) -> None:
    place = locate(str(root), str(path))
    old = None
    if status_of(place) is not None:
        old = read_whole_file(place, 1_000_000).status
    put(AtomicWrite(place, old), data)


def put(draft: AtomicWrite, data: bytes) -> None:
    try:
        draft.open()
        draft.add(data)
        draft.finish()
        draft.publish()
    finally:
        draft.discard()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_resolved_path_is_real(tmp_path: Path) -> None:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    os.symlink(tmp_path / "root", tmp_path / "way")
    os.symlink("..", tmp_path / "root" / "sub" / "up")
    place = locate(str(tmp_path / "way"), "sub/up/sub/x")
    assert place.path == str(tmp_path / "root/sub/x")
    assert place.is_inside
    assert place.name == "sub/up/sub/x (which is sub/x)"
    assert not locate(str(tmp_path / "root"), "sub/up/../y").is_inside
    assert locate(str(tmp_path / "root"), "./sub//x").name == "./sub//x"


@pytest.mark.parametrize("which", ["directory", "file"])
def test_symlink_created_after_check_is_not_followed(tmp_path: Path, which: str) -> None:
    """The path was checked; then a symlink replaces it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "sub", outside):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"mine" if folder != outside else b"secret")
    place = locate(str(root), "sub/x")
    status = read_whole_file(place, 100).status
    if which == "directory":
        (root / "sub").rename(root / "moved")
        os.symlink(outside, root / "sub")
    else:
        (root / "sub" / "x").unlink()
        os.symlink(outside / "x", root / "sub" / "x")
    with pytest.raises(ToolError), open_plain_file(place):
        pass
    with pytest.raises(ToolError):
        put(AtomicWrite(place, status), b"gotcha")
    assert (outside / "x").read_bytes() == b"secret"
    assert sorted(os.listdir(outside)) == ["x"]


def test_moved_directory_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened inside the workspace and is outside now: its file is not the checked one."""
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "x").write_bytes(b"x")
    place = locate(str(tmp_path / "root"), "sub/x")
    real = files._check_not_moved

    def check(handle: int, folder: str) -> None:
        (tmp_path / "root" / "sub").rename(tmp_path / "away")
        real(handle, folder)

    monkeypatch.setattr(files, "_check_not_moved", check)
    with pytest.raises(ToolError, match="changed while"), open_plain_file(place):
        pass


def test_replacement_is_atomic_for_readers(tmp_path: Path) -> None:
    """Readers see the old content or the new one, never a part."""
    path = tmp_path / "f"
    contents = {bytes([65 + number]) * 200_000 for number in range(20)}
    path.write_bytes(min(contents))
    seen: set[bytes] = set()
    done = threading.Event()

    def read_repeatedly() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read_repeatedly)
    reader.start()
    for content in sorted(contents):
        write(path, content, tmp_path)
    done.set()
    reader.join()
    assert seen <= contents
    assert os.listdir(tmp_path) == ["f"]


def test_concurrent_change_wins(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    place = locate(str(tmp_path), "f")
    draft = AtomicWrite(place, read_whole_file(place, 100).status)
    draft.open()
    draft.add(b"new")
    draft.finish()
    path.write_bytes(b"somebody else")
    with pytest.raises(ToolError, match="another program"):
        draft.publish()
    draft.discard()
    assert path.read_bytes() == b"somebody else"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("swapped", ["pipe", "link", "file"])
def test_file_with_two_names_replaced_after_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """Its content is replaced in place: only that of the checked file, and a pipe does not block."""
    path, other = tmp_path / "f", tmp_path / "other"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "second")
    other.write_bytes(b"other")
    place = locate(str(tmp_path), "f")
    draft = AtomicWrite(place, read_whole_file(place, 100).status)
    real = AtomicWrite._refuse_if_changed

    def is_examined(self: AtomicWrite, folder: int, name: str) -> None:
        real(self, folder, name)
        path.unlink()
        if swapped == "pipe":
            os.mkfifo(path)
        elif swapped == "link":
            path.symlink_to(other)
        else:
            os.link(other, path)

    monkeypatch.setattr(AtomicWrite, "_refuse_if_changed", is_examined)
    with pytest.raises(ToolError):
        put(draft, b"new")
    assert (tmp_path / "second").read_bytes() == b"old"
    assert other.read_bytes() == b"other"


@pytest.mark.parametrize("appears", [True, False])
def test_a_new_file_does_not_overwrite_an_existing_one(tmp_path: Path, appears: bool) -> None:
    draft = AtomicWrite(locate(str(tmp_path), "a/b/f"), None)
    draft.open()
    draft.add(b"new")
    draft.finish()
    if appears:
        (tmp_path / "a/b/f").write_bytes(b"other")
        with pytest.raises(ToolError, match="another program"):
            draft.publish()
    draft.discard()
    assert not list(tmp_path.rglob(".holdfast*"))
    assert (tmp_path / "a").exists() is appears


def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = open_files()
    write(tmp_path / "x/y", b"1", tmp_path)
    write(tmp_path / "x/y", b"2", tmp_path)
    (tmp_path / "d").mkdir()
    for name in ("nothing", "d", "x/y/z"):
        with pytest.raises(ToolError), open_plain_file(locate(str(tmp_path), name)):
            pass
    AtomicWrite(locate(str(tmp_path), "q"), None).discard()
    assert open_files() == before


def test_mode_and_extended_attributes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o2750)
    has_labels = True
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        has_labels = False
    write(path, b"new", tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o2750
    assert not has_labels or os.getxattr(path, "user.note") == b"kept"


def test_new_file_respects_umask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write(tmp_path / "f", b"x", tmp_path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_symlinks_are_not_followed_without_proc_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every system reports the path of an open directory: the walk alone must suffice."""
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"secret")
    place = locate(str(tmp_path / "root"), "sub/x")
    (tmp_path / "root" / "sub").rmdir()
    os.symlink(tmp_path / "outside", tmp_path / "root" / "sub")
    monkeypatch.setattr(files, "_check_not_moved", lambda *_: None)
    with pytest.raises(ToolError), open_plain_file(place):
        pass


def test_special_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a device can have effects, and opening a pipe wakes its other end."""
    os.mkfifo(tmp_path / "pipe")
    place = locate(str(tmp_path), "pipe")
    names: list[object] = []
    real = os.open

    def watched(path: str, *arguments: int, dir_fd: int | None = None) -> int:
        names.append(path)
        return real(path, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watched)
    with pytest.raises(ToolError, match="a pipe"), open_plain_file(place):
        pass
    assert names
    assert "pipe" not in names
