"""Files and directories that must be private to the user: any permission for others, a symlink or another owner is
refused.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.client.errors import UnsafePath
from holdfast.client.server_launcher import secure_directory
from holdfast.domain.errors import HoldfastError
from holdfast.server.http.listen import UnixListener, UnsafeDirectory
from holdfast.server.http.token_auth import read_or_make_token
from holdfast.server.web import web_app
from holdfast.server.web.web_app import read_note

BITS = (0o040, 0o020, 0o010, 0o004, 0o002, 0o001)
TOKEN = "t" * 43
SAVED_PAGES = b'{"port":7,"pages":[]}'


def token_is_used(path: Path) -> bool:
    return read_or_make_token(path.parent) == TOKEN


def saved_pages_are_used(path: Path) -> bool:
    try:
        return read_note(path).port == 7
    except HoldfastError:
        return False


def socket_is_bound(path: Path) -> bool:
    try:
        UnixListener(path / "s").close()
    except UnsafeDirectory:
        return False
    return True


def directory_is_used(path: Path) -> bool:
    try:
        secure_directory(str(path))
    except UnsafePath:
        return False
    return True


FILES: list[tuple[str, Callable[[Path], bool]]] = [("token", token_is_used), ("web.json", saved_pages_are_used)]
DIRECTORIES: list[Callable[[Path], bool]] = [socket_is_bound, directory_is_used]


def written(path: Path) -> Path:
    path.write_bytes(SAVED_PAGES if path.name == "web.json" else TOKEN.encode())
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(("name", "is_used"), FILES)
def test_file_accessible_to_others_is_ignored(name: str, is_used: Callable[[Path], bool], tmp_path: Path) -> None:
    found = {}
    for number, mode in enumerate((0o600, 0o400, *(0o600 | bit for bit in BITS))):
        (tmp_path / str(number)).mkdir()
        path = written(tmp_path / str(number) / name)
        path.chmod(mode)
        found[mode] = is_used(path)
    assert found == {0o600: True, 0o400: True} | {0o600 | bit: False for bit in BITS}


@pytest.mark.parametrize(("name", "is_used"), FILES)
def test_symlink_or_file_of_other_user_is_ignored(
    name: str, is_used: Callable[[Path], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / name).symlink_to(written(tmp_path / "elsewhere" / name))
    assert not is_used(tmp_path / "here" / name)
    path = written(tmp_path / "elsewhere" / name)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert not is_used(path)


@pytest.mark.parametrize("is_used", DIRECTORIES)
def test_directory_accessible_to_others_is_refused(is_used: Callable[[Path], bool], tmp_path: Path) -> None:
    found = {}
    for mode in (0o700, *(0o700 | bit for bit in BITS)):
        path = tmp_path / f"{mode:o}"
        path.mkdir()
        path.chmod(mode)
        found[mode] = is_used(path)
    assert found == {0o700: True} | {0o700 | bit: False for bit in BITS}
    assert is_used(tmp_path / "new" / "below")
    assert stat.S_IMODE((tmp_path / "new" / "below").stat().st_mode) == 0o700


@pytest.mark.parametrize("is_used", DIRECTORIES)
def test_symlink_file_or_directory_of_other_user_is_refused(
    is_used: Callable[[Path], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_used(tmp_path / "real")
    assert not is_used(tmp_path / "link")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert not is_used(tmp_path / "real")


def test_token_below_minimum_length_is_replaced(tmp_path: Path) -> None:
    for length, is_kept in ((42, False), (43, True), (44, True)):
        (tmp_path / "token").write_text("x" * length + "\n")
        (tmp_path / "token").chmod(0o600)
        assert (read_or_make_token(tmp_path) == "x" * length) is is_kept
        assert len(read_or_make_token(tmp_path)) >= 43


@pytest.mark.parametrize("broken", [b"", b"[]", b'{"port":0,"pages":[]}', b'{"port":65536,"pages":[]}', b"\xff"])
def test_malformed_saved_pages_are_ignored(broken: bytes, tmp_path: Path) -> None:
    path = tmp_path / "web.json"
    path.write_bytes(broken)
    path.chmod(0o600)
    assert not saved_pages_are_used(path)
    assert web_app.read_note(written(path)).port == 7
