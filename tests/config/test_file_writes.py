"""Every writer of settings, trust and credentials: synced before and after the rename; a failed step changes nothing
and leaves no temporary file, descriptor or lock.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import atomic_files
from holdfast.atomic_files import FileUnwritable
from holdfast.config.credentials import Credentials, Token
from holdfast.config.saved_settings import ConfigStore
from holdfast.config.toml_edit import set_value, unset_value
from holdfast.config.trust import TrustStore
from holdfast.domain.errors import Conflict

Writer = Callable[[Path], object]
OFF = {"HOLDFAST_KEYRING": "0"}


def _credentials(file: Path) -> Credentials:
    return Credentials(str(file), OFF)


def _store(file: Path) -> ConfigStore:
    return ConfigStore(str(file), str(file.parent / "other.json"))


OLD = "[options]\nmax_steps = 5\n"
KEYS = '[keys]\na = "old"\n\n[tokens.t]\naccess_token = "old"\n'
TRUST = '{"projects":{"/p":{"digest":"1","at":1.0}},"files":{"/f":{"digest":"1","at":1.0}}}'
WRITERS: dict[str, tuple[str, str, Writer]] = {
    "set": ("config.toml", OLD, lambda file: set_value(str(file), ("options", "max_steps"), 7)),
    "set with a mode": ("config.toml", OLD, lambda file: set_value(str(file), ("options", "debug"), True, mode=0o600)),
    "unset": ("config.toml", OLD, lambda file: unset_value(str(file), ("options", "max_steps"))),
    "a client's setting": ("config.json", "{}", lambda file: _store(file).set(0, "options.debug", True)),
    "a client's removal": ("config.json", '{"a": 1}', lambda file: _store(file).remove(0, "a")),
    "a key": ("credentials.toml", KEYS, lambda file: _credentials(file).put("b", "new")),
    "a key replaced": ("credentials.toml", KEYS, lambda file: _credentials(file).put("a", "new")),
    "a key removed": ("credentials.toml", KEYS, lambda file: _credentials(file).remove("a")),
    "a token": ("credentials.toml", KEYS, lambda file: _credentials(file).put_token("t", Token("new"))),
    "trust": ("trust.json", TRUST, lambda file: TrustStore(str(file)).trust("/q", "2", at=2.0)),
    "trust in files": ("trust.json", TRUST, lambda file: TrustStore(str(file)).trust_files({"/g": "2"}, at=2.0)),
    "trust revoked": ("trust.json", TRUST, lambda file: TrustStore(str(file)).revoke("/p")),
    "trust in files revoked": ("trust.json", TRUST, lambda file: TrustStore(str(file)).revoke_files(["/f"])),
}
PRIVATE_FILES = [name for name in WRITERS if name not in ("set", "unset")]


class Recorder:
    """Records the system calls that write, in order; one of them may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.fails_at = -1
        self._paths: dict[int, str] = {}
        self._real_open = os.open
        self._real_close = os.close
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "close", self._close)
        for name in ("fchmod", "fsync", "replace"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))
        monkeypatch.setattr(fcntl, "flock", self._wrap("flock", fcntl.flock))

    def _step(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 == self.fails_at:
            raise OSError(errno.EIO, "Input/output error")

    def _open(self, path: str, flags: int, mode: int = 0o777, **more: Any) -> int:  # noqa: ANN401
        if flags & os.O_CREAT:
            self._step(f"create {'draft' if str(path).endswith('.new') else 'another'}")
        elif flags & os.O_DIRECTORY:
            self._step("open directory")
        descriptor = self._real_open(path, flags, mode, **more)
        self._paths[descriptor] = "directory" if os.path.isdir(path) else "draft"
        return descriptor

    def _close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        self._real_close(descriptor)

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: int | str, *rest: Any) -> Any:  # noqa: ANN401
            shown = self._paths.get(first, "draft") if isinstance(first, int) else ""
            self._step(f"{name} {shown}".strip())
            return real(first, *rest)

        return call


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def is_lockable(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


ORDER = [
    "open directory",
    "flock directory",
    "create draft",
    "fchmod draft",
    "fsync draft",
    "replace",
    "open directory",
    "fsync directory",
]


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_and_its_directory_are_synced_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base, old, write = WRITERS[name]
    file = tmp_path / base
    file.write_text(old)
    recorder = Recorder(monkeypatch)
    write(file)
    assert recorder.calls == ORDER
    assert file.read_text() != old


@pytest.mark.parametrize("step", range(len(ORDER)))
@pytest.mark.parametrize("name", WRITERS)
def test_failed_step_changes_nothing_and_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int
) -> None:
    base, old, write = WRITERS[name]
    file = tmp_path / base
    file.write_text(old)
    with monkeypatch.context() as patched:
        recorder = Recorder(patched)
        recorder.fails_at = step
        before = open_descriptors()
        with pytest.raises((FileUnwritable, OSError)):
            write(file)
        assert recorder.calls == ORDER[: step + 1]
        assert open_descriptors() == before
    is_renamed = step > ORDER.index("replace")
    assert (file.read_text() != old) == is_renamed
    assert [path.name for path in tmp_path.iterdir()] == [base], "no draft is left"
    with is_lockable(tmp_path):
        pass
    file.write_text(old)
    write(file)
    assert file.read_text() != old


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("mode", [0o640, 0o604])
@pytest.mark.parametrize("name", WRITERS)
def test_mode_of_the_new_file(tmp_path: Path, name: str, mode: int, umask: int) -> None:
    """A settings file keeps its mode; a file that may contain keys becomes private."""
    base, old, write = WRITERS[name]
    file = tmp_path / base
    file.write_text(old)
    file.chmod(mode)
    kept = os.umask(umask)
    try:
        write(file)
    finally:
        os.umask(kept)
    assert stat.S_IMODE(file.stat().st_mode) == (0o600 if name in PRIVATE_FILES else mode)


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith(("unset", "removed", "revoked"))])
def test_first_write_creates_file_and_directory(tmp_path: Path, name: str) -> None:
    base, _, write = WRITERS[name]
    file = tmp_path / "a" / "b" / base
    kept = os.umask(0)
    try:
        write(file)
    finally:
        os.umask(kept)
    if name == "a client's removal":
        assert file.read_text().strip() == "{}"
    assert stat.S_IMODE(file.stat().st_mode) == (0o644 if name == "set" else 0o600)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", WRITERS)
def test_link_is_kept(tmp_path: Path, name: str) -> None:
    """Dotfiles are often links into a repository: the target is replaced, with a temporary file beside it."""
    base, old, write = WRITERS[name]
    (tmp_path / "home").mkdir()
    (tmp_path / "dotfiles").mkdir()
    target, file = tmp_path / "dotfiles" / base, tmp_path / "home" / base
    target.write_text(old)
    file.symlink_to(target)
    write(file)
    assert file.is_symlink()
    assert target.read_text() != old


@pytest.mark.parametrize("name", WRITERS)
def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    base, old, write = WRITERS[name]
    file = tmp_path / base
    file.write_text(old)
    monkeypatch.setattr(atomic_files, "_LOCK_TIMEOUT", 0.0)
    with is_lockable(tmp_path), pytest.raises(Conflict, match="Another process"):
        write(file)
    assert file.read_text() == old


@pytest.mark.parametrize("name", ["a key removed", "trust revoked", "trust in files revoked"])
def test_unset_of_a_missing_key_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    base, _, write = WRITERS[name]
    recorder = Recorder(monkeypatch)
    assert write(tmp_path / base) is False
    assert "create draft" not in recorder.calls
    assert not (tmp_path / base).exists()
