"""Files that survive a power cut completely: synced before the rename, their directory synced after it.

The table of writers is complete: a module that creates, renames or links files and has no row fails.
"""

import ast
import io
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.atomic_files import FileUnwritable, replace_file, replace_private_file
from holdfast.config.credentials import Credentials, Token
from holdfast.config.saved_settings import ConfigStore
from holdfast.config.toml_edit import set_value
from holdfast.config.trust import TrustStore
from holdfast.server import rotating_log
from holdfast.server.http.token_auth import read_or_make_token
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.vacuum import overwrite_unused
from holdfast.testing.conformance import WorkspaceOwner
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.safe_open import FileLocation
from storage.faulty_disk import FaultyDisk
from storage.sync_recorder import Call, SyncRecorder

SOURCE = Path(holdfast.__file__).parent

WRITERS = {
    # Complete and durable; each has a test below.
    "atomic_files.py": "settings, trust, credentials, the token: whole, and the directory is synced",
    "storage/schema.py": "the database: whole, and the directory is synced",
    # Complete: the old file or the new one. Which one a power cut leaves is undefined.
    "workspace/files/atomic_write.py": "edited files: whole",
    # Order only.
    "server/rotating_log.py": "logs: no rename overwrites a log that is to be kept",
    "storage/data_directory.py": "lock; sets a file aside that has replaced the write-ahead log",
    # No guarantee: locks, files that are created again, output, files of the sandbox.
    "cli/demo.py": "demonstration",
    "cli/run_client/run_lookup.py": "a note that is made again",
    "cli/stats.py": "a report that is made again",
    "cli/console/stdio_errors.py": "standard output",
    "client/server_launcher.py": "lock, and log of a server that starts",
    "config/credentials.py": "lock",
    "server/http/listen.py": "lock",
    "tui/prompt_actions.py": "text for an external editor",
    "workspace/git/git_command.py": "private git directory, made again",
    "workspace/process/process_tag.py": "kernel interface",
    "workspace/process/guard_main.py": "mount point",
    "workspace/process/guard_system.py": "kernel interface",
    "workspace/process/output_capture.py": "output of commands",
    "workspace/sandbox/linked_git_dirs.py": "record of a decision, made again",
    "workspace/sandbox/quarantine.py": "files moved away from the workspace; record of a comparison, made again",
}


_MAY_WRITE = re.compile(
    r"O_CREAT|mkstemp|NamedTemp|\bopen\(.*[\"'][wax+]|os\.(replace|rename|link)|\.rename\(|\.replace\([^,]*\)|\.write_|hardlink"
)
"""Parsing is slow: only modules that name one of these are parsed."""


def _writes(node: ast.AST) -> bool:
    """Return true for a call that creates, renames or links a file."""
    if isinstance(node, ast.Attribute) and node.attr in ("O_CREAT", "mkstemp", "NamedTemporaryFile"):
        return True
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id == "open":
        modes = [item.value for item in node.args[1:2] if isinstance(item, ast.Constant)]
        return any(set(str(mode)) & set("wax+") for mode in modes)
    if not isinstance(node.func, ast.Attribute):
        return False
    is_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
    name, count = node.func.attr, len(node.args) + len(node.keywords)
    if is_os:
        return name in ("replace", "rename", "link", "renames")
    return name in ("write_text", "write_bytes", "hardlink_to") or (name in ("replace", "rename") and count == 1)


def _writers() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text("utf-8")
        if name.startswith("testing/") or not _MAY_WRITE.search(text):
            continue
        if any(map(_writes, ast.walk(ast.parse(text)))):
            yield name


def test_every_module_that_writes_files_has_a_row() -> None:
    assert set(_writers()) == set(WRITERS)


def _set(folder: Path) -> None:
    ConfigStore(str(folder / "config.json"), str(folder / "workspace.json")).set(0, "options.tui.compact_mode", True)


def _trust(folder: Path) -> None:
    TrustStore(str(folder / "trust.json")).trust("/project", "digest", at=1.0)


LASTING: dict[str, tuple[str, Callable[[Path], object]]] = {
    "settings of clients": ("config.json", _set),
    "settings of people": (
        "holdfast.toml",
        lambda folder: set_value(str(folder / "holdfast.toml"), ("options", "max_retries"), 3),
    ),
    "trust": ("trust.json", _trust),
    "key": ("credentials.json", lambda folder: Credentials(str(folder / "credentials.json"), {}).put("acme", "key")),
    "sign-in": (
        "credentials.json",
        lambda folder: Credentials(str(folder / "credentials.json"), {}).put_token("acme", Token("abc")),
    ),
    "token": ("token", read_or_make_token),
    "any small file": ("file", lambda folder: replace_file(str(folder / "file"), b"new")),
    "any private file": ("file", lambda folder: replace_private_file(str(folder / "file"), b"new")),
}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("what", LASTING)
def test_small_file_is_complete_and_durable(what: str, tmp_path: Path, *, is_new: bool) -> None:
    name, write = LASTING[what]
    if not is_new:
        write(tmp_path)
        if what == "token":
            (tmp_path / name).chmod(0o644)
    with SyncRecorder(tmp_path).running() as record:
        write(tmp_path)
    calls = [call for call in record.calls if call.kind != "unlink"]
    draft = calls[0].name
    assert calls == [Call("create", draft), Call("sync", draft), Call("rename", name), Call("sync", ".")]
    assert draft != name
    assert os.listdir(tmp_path) == [name]


def test_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")
    for call in ("fsync", "replace", "fchmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, _refuse)
            with pytest.raises(FileUnwritable):
                replace_file(str(tmp_path / "file"), b"new")
        assert os.listdir(tmp_path) == ["file"]
        assert (tmp_path / "file").read_text() == "old"


def test_a_private_file_that_need_not_be_durable_is_not_synced(tmp_path: Path) -> None:
    with SyncRecorder(tmp_path).running() as record:
        replace_private_file(str(tmp_path / "file"), b"new", is_durable=False)
    calls = [(call.kind, call.name) for call in record.calls if call.kind != "unlink"]
    assert calls == [("create", calls[0][1]), ("rename", "file")]
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("write", [replace_file, replace_private_file])
def test_existing_temporary_file_is_not_written_to(
    write: Callable[[str, bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts: list[str] = []
    rename = os.replace

    def note(draft: str, target: str) -> None:
        drafts.append(draft)
        rename(draft, target)

    monkeypatch.setattr(os, "replace", note)
    write(str(tmp_path / "file"), b"old")
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    for obstruct in (os.link, os.symlink):
        obstruct(outside, drafts[0])
        write(str(tmp_path / "file"), b"new")
        assert outside.read_text() == "untouched"
        assert sorted(os.listdir(tmp_path)) == ["file", "outside"]


def test_a_link_to_a_settings_file_is_kept_and_one_to_a_private_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    for write, is_kept in ((replace_file, True), (replace_private_file, False)):
        target.write_text("old")
        target.chmod(0o644)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        write(str(link), b"new")
        assert (link.is_symlink(), target.read_text()) == ((True, "new") if is_kept else (False, "old"))
        assert link.read_text() == "new"
        assert stat.S_IMODE(link.stat().st_mode) == 0o600


def _refuse(*_arguments: object, **_options: object) -> None:
    raise OSError(28, "No space left on device")


def _draft(folder: Path, name: str, data: bytes = b"new") -> None:
    path = folder / name
    with suppress(FileNotFoundError):
        old = path.stat()
        return _put(AtomicWrite(FileLocation(str(path), str(path), str(folder), is_inside=True), old), data)
    return _put(AtomicWrite(FileLocation(str(path), str(path), str(folder), is_inside=True), None), data)


def _put(draft: AtomicWrite, data: bytes) -> None:
    draft.open()
    draft.add(data[:1])
    draft.add(data[1:])
    draft.finish()
    draft.publish()


@pytest.mark.parametrize("is_new", [True, False])
def test_an_edited_file_is_synced_before_it_gets_its_name(tmp_path: Path, *, is_new: bool) -> None:
    if not is_new:
        (tmp_path / "file").write_bytes(b"old")
    with SyncRecorder(tmp_path).running() as record:
        _draft(tmp_path, "file")
    draft = record.calls[0].name
    place = Call("link" if is_new else "rename", "file")
    assert record.calls[:3] == [Call("create", draft), Call("sync", draft), place]
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_new_database_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    """Including data that SQLite writes through its own layer."""
    record = SyncRecorder(tmp_path)
    disk = FaultyDisk("recorded")
    data = tmp_path / "data"

    def synced(name: str) -> None:
        if name.startswith("holdfast.db.new") and "journal" not in name:
            record.note_sync(str(data / name))

    disk.on_sync = synced
    with record.running():
        SqliteLedger(data, vfs=disk.name).database.close()
    calls = [call for call in record.calls if call.name != "data/lock" and call.kind != "unlink"]
    draft, final = "data/holdfast.db.new", "data/holdfast.db"
    kinds = list(dict.fromkeys(calls))
    assert kinds[:4] == [Call("create", draft), Call("sync", draft), Call("rename", final), Call("sync", "data")]


async def test_closing_syncs_the_database_before_it_removes_the_log(tmp_path: Path) -> None:
    deeds: list[tuple[str, str]] = []
    disk = FaultyDisk("closing", lambda deed, name: deeds.append((deed, name)))
    ledger = SqliteLedger(tmp_path, vfs=disk.name)
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.do(sync=False)
    deeds.clear()
    await ledger.close()
    order = [deed for deed in dict.fromkeys(deeds) if deed[0] != "read"]
    wanted = [("sync", "holdfast.db-wal"), ("write", "holdfast.db"), ("sync", "holdfast.db")]
    places = [order.index(deed) for deed in [*wanted, ("delete", "holdfast.db-wal")]]
    assert places == sorted(places)


def test_overwritten_database_content_is_synced(tmp_path: Path) -> None:
    """Deleted rows whose bytes are still in their page."""
    path = tmp_path / "some.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA secure_delete = 0; CREATE TABLE t (a)").fetchall()
        with connection:
            connection.executemany("INSERT INTO t VALUES (?)", [(f"canary-{number}" * 8,) for number in range(60)])
        connection.execute("DELETE FROM t WHERE rowid % 20 = 2")
        assert b"canary-21canary" in path.read_bytes()
        descriptor = os.open(path, os.O_RDWR)
        try:
            with SyncRecorder(tmp_path).running() as record:
                overwrite_unused(connection, descriptor)
                assert record.calls == [Call("sync", "some.db")]
                overwrite_unused(connection, descriptor)
                assert len(record.calls) == 1, "nothing was left to overwrite"
        finally:
            os.close(descriptor)
        assert b"canary-21canary" not in path.read_bytes()
        assert b"canary-2canary" in path.read_bytes()
        assert connection.pragma("integrity_check") == "ok"
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(57,)]


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_logs_are_rotated_oldest_first(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest two are never lost, and each log keeps its content under its next number."""
    monkeypatch.setattr(rotating_log, "FILE_COUNT", kept)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    path = tmp_path / "server.log"
    path.write_text("now")
    for number in range(1, kept):
        (tmp_path / f"server.log.{number}").write_text(str(number))
    log = rotating_log.RotatingLog(str(path))
    with SyncRecorder(tmp_path).running() as record:
        log._rotate()
    renames = [call.name for call in record.calls if call.kind == "rename"]
    assert renames == [f"server.log.{number}" for number in range(max(kept - 1, 1), 0, -1)]
    assert record.calls[-1] == Call("create", "server.log")
    assert (tmp_path / "server.log.1").read_text() == "now"
    assert [(tmp_path / f"server.log.{number}").read_text() for number in range(2, kept)] == [
        str(number - 1) for number in range(2, kept)
    ]
    assert path.read_text() == ""
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [0, 1, 2])
def test_log_is_rotated_when_it_is_too_long(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.log"
    path.write_text("x" * size)
    monkeypatch.setattr(rotating_log, "MAX_BYTES", 1)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat(path))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    log = rotating_log.RotatingLog(str(path))
    log.setStream(io.StringIO())
    log.emit(logging.LogRecord("n", logging.INFO, "p", 1, "said", None, None))
    assert (tmp_path / "server.log.1").exists() == (size >= 1)
    assert log.stream.getvalue() == "said\n"  # type: ignore[attr-defined]
