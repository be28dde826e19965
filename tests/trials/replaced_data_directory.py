"""A data directory that is moved, removed, replaced or mounted over while a server runs.

A trial is a real process that stores prompts one after the other and reports each acknowledgement. Another process
changes the directory at a random moment; a little later the server is killed. A prompt that was sent after the change
and acknowledged must be found at the next start, at the old path or at the new one; so must all earlier ones, unless
the change destroyed them.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import apsw

from forked_process import forkserver_context
from holdfast.domain.errors import DataDirectoryBusy, StorageDetached
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner

__all__ = ["DATABASE", "DESTRUCTIVE", "FORMS", "WAL", "Form", "copy_over", "data_dir_for", "stored_runs", "try_detach"]

Form = Callable[[Path], None]
DATABASE, WAL = "holdfast.db", "holdfast.db-wal"
_LINK = "link_changed"
_COVERED = "covered"


def move(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def make_again(data: Path) -> None:
    move(data)
    data.mkdir()


def replace_by_a_copy(data: Path) -> None:
    """The copy is made after the move: a copy of a database during a write would be incomplete."""
    move(data)
    shutil.copytree(data.with_name("elsewhere"), data)


def move_parent(data: Path) -> None:
    data.parent.rename(data.parent.with_name("other parent"))


def change_link(data: Path) -> None:
    """The server was started with a link to the directory."""
    target = data.with_name("target of the link")
    target.mkdir()
    data.unlink()
    data.symlink_to(target)


def copy_over(path: Path) -> None:
    """As `cp` and `mv` do: another file under the same name."""
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.rename(path)


def move_database(data: Path) -> None:
    (data / DATABASE).rename(data / "moved.db")


def overwrite_database(data: Path) -> None:
    """In place, by an older state: inode and link count stay."""
    body = bytearray((data / DATABASE).read_bytes())
    body[24:28] = b"\0\0\0\1"
    (data / DATABASE).write_bytes(body)


FORMS: dict[str, Form] = {
    "moved": move,
    "removed": lambda data: shutil.rmtree(data, ignore_errors=True),
    "made_again": make_again,
    "replaced_by_a_copy": replace_by_a_copy,
    "parent_moved": move_parent,
    _LINK: change_link,
    "database_unlinked": lambda data: (data / DATABASE).unlink(),
    "database_replaced": lambda data: copy_over(data / DATABASE),
    "database_moved": move_database,
    "database_linked": lambda data: os.link(data / DATABASE, data / "second name"),
    "database_overwritten": overwrite_database,
    "wal_unlinked": lambda data: (data / WAL).unlink(),
    "wal_replaced": lambda data: copy_over(data / WAL),
    "wal_linked": lambda data: os.link(data / WAL, data / "second name"),
    "wal_emptied": lambda data: os.truncate(data / WAL, 0),
    "wal_cut": lambda data: os.truncate(data / WAL, 32 + 4120),
}
DESTRUCTIVE = {
    "removed", "database_unlinked", "database_replaced", "database_moved", "database_overwritten", "wal_unlinked",
    "wal_replaced", "wal_emptied", "wal_cut",
}  # fmt: skip
"""These destroy, or may destroy, earlier writes: only prompts sent afterwards are promised."""


def data_dir_for(form: str, root: Path) -> Path:
    data = root / "parent" / "data"
    if form == _LINK:
        (root / "real").mkdir(parents=True)
        data.parent.mkdir()
        data.symlink_to(root / "real")
    return data


def stored_runs(root: Path) -> set[str]:
    """Return the runs that a new server would find at any path below."""
    found: set[str] = set()
    for path in (item for item in root.rglob("*.db") if item.name != "copy"):
        with contextlib.closing(apsw.Connection(str(path))) as connection, contextlib.suppress(apsw.Error):
            found |= {str(run) for (run,) in connection.execute("SELECT run_id FROM runs")}
    return found


def try_detach(seed: int) -> int:
    """Run one trial and return the number of acknowledged prompts. Raise `AssertionError` on a violation."""
    rng = random.Random(seed)
    form = rng.choice([*FORMS, _COVERED])
    with tempfile.TemporaryDirectory(prefix="holdfast-detach-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        data = data_dir_for(form, root)
        mine, theirs = forkserver_context().Pipe()
        server = forkserver_context().Process(target=_serve, args=(data, theirs, form == _COVERED), name="server")
        server.start()
        theirs.close()
        try:
            acknowledged, changed_at = _play(rng, form, data, mine)
        finally:
            server.kill()
            server.join()
            server.close()
        _check(seed, form, root, acknowledged, changed_at)
    return len(acknowledged)


def _play(rng: random.Random, form: str, data: Path, server: Connection) -> tuple[dict[str, int], int]:
    """Change the directory after some prompts, and read on until the server refuses. Return the prompts with their send
    times, and the time of the change.
    """
    acknowledged: dict[str, int] = {}
    change_after, changed_at = rng.randint(1, 40), 0
    deadline = time.monotonic() + 20
    while server.poll(max(0.0, deadline - time.monotonic())):
        word, name, sent_at = server.recv()
        if word == "refused":
            if changed_at and form != _COVERED:
                _start_second_server(data)
            return acknowledged, changed_at or int(sent_at)
        acknowledged[name] = sent_at
        if len(acknowledged) == change_after and form != _COVERED:
            with contextlib.suppress(FileNotFoundError):
                FORMS[form](data)
            changed_at = time.monotonic_ns()
    raise AssertionError(f"{form}: the server neither acknowledges nor refuses")


def _start_second_server(data: Path) -> None:
    try:
        SqliteLedger(data)
    except DataDirectoryBusy:
        return
    raise AssertionError("a second server started while the first one lived")


def _check(seed: int, form: str, root: Path, acknowledged: dict[str, int], changed_at: int) -> None:
    if form == "database_moved":
        with contextlib.suppress(FileNotFoundError):
            (root / "parent" / "data" / "moved.db").rename(root / "parent" / "data" / DATABASE)
    found = stored_runs(root)
    promised = {name for name, sent_at in acknowledged.items() if form not in DESTRUCTIVE or sent_at > changed_at}
    lost = sorted(promised - found)
    assert not lost, f"seed {seed}, {form}: acknowledged and lost: {', '.join(lost)}"


def _serve(data: Path, parent: Connection, covers: bool) -> None:
    """The server: stores prompts until one is refused."""
    if covers and not _own_mounts():
        parent.send(("refused", "", time.monotonic_ns()))
        return
    asyncio.run(_store(data, parent, covers=covers))


async def _store(data: Path, parent: Connection, *, covers: bool) -> None:
    owner = await WorkspaceOwner.with_session(SqliteLedger(data))
    number = 0
    while True:
        number += 1
        sent_at = time.monotonic_ns()
        if covers and number == 10:
            _mount_over(data)
        try:
            await owner.admit(f"r{number}")
        except StorageDetached:
            parent.send(("refused", "", sent_at))
            # It runs until it is killed.
            await asyncio.Event().wait()
        parent.send(("stored", f"r{number}", sent_at))


def _own_mounts() -> bool:
    """Give this process mounts of its own. Only root may, and not everywhere."""
    if sys.platform != "linux" or os.getuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    namespace, private = 0x00020000, 0x40000 | 0x4000
    return not libc.unshare(namespace) and not libc.mount(b"none", b"/", None, private, None)


def _mount_over(data: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(data), b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")
