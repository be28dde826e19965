"""The directory for files moved out of a workspace. Its content is never deleted or obeyed.

Other commands of the workspace may still run during a move and create links in the path. So the parent directory is
opened component by component without following links, and the entry is renamed relative to it.
"""

import contextlib
import errno
import logging
import os
import shutil
import stat
from pathlib import Path

from holdfast.workspace.sandbox_git_scan import open_below

__all__ = ["Quarantine", "restore"]

_log = logging.getLogger("holdfast.sandbox")
_MAX_NUMBER = 100_000


class Quarantine:
    """Numbered entries in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def move(self, path: str, root: str) -> str:
        """Move a path below `root` here and return its new path; empty if that failed."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            target = self._free_name(os.path.basename(path))
            above = open_below(root, os.path.dirname(path))
            try:
                _move_entry(os.path.basename(path), above, target)
            finally:
                os.close(above)
        except (OSError, shutil.Error) as error:
            _log.warning("%s could not be moved away: %s", path, error)
            return ""
        return target

    def _free_name(self, name: str) -> str:
        taken = {entry.partition("-")[0] for entry in os.listdir(self._directory)}
        number = next(number for number in range(1, _MAX_NUMBER) if str(number) not in taken)
        return str(self._directory / f"{number}-{name}")


def _move_entry(name: str, above: int, target: str) -> None:
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        _make_accessible(name, above)
    try:
        os.rename(name, target, src_dir_fd=above)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_across(f"/proc/self/fd/{above}/{name}", target)


def _make_accessible(name: str, above: int) -> None:
    """Make a directory writable: renaming it into another one requires write access to it."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _copy_across(source: str, target: str) -> None:
    """Copy to another file system, then remove: links as links, without sockets, pipes and devices."""
    if os.path.islink(source) or not os.path.isdir(source):
        shutil.move(source, target)
        return
    for folder, folders, _ in os.walk(source):
        for name in folders:
            place = os.path.join(folder, name)
            if not os.path.islink(place):
                with contextlib.suppress(OSError):
                    above = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                    try:
                        _make_accessible(name, above)
                    finally:
                        os.close(above)
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)
    shutil.rmtree(source)


def _copy_file(source: str, target: str) -> None:
    """Copy a regular file regardless of its mode."""
    descriptor = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        place = f"/proc/self/fd/{descriptor}"
        if not os.access(place, os.R_OK):
            os.chmod(place, 0o600)
        with open(place, "rb") as reading, open(target, "wb") as writing:
            shutil.copyfileobj(reading, writing)
    finally:
        os.close(descriptor)


def restore(path: str, root: str, content: bytes) -> None:
    """Restore a file below `root`, or a link if the content is a NUL and a target, unless the path exists."""
    name = os.path.basename(path)
    try:
        above = open_below(root, os.path.dirname(path))
        try:
            if content.startswith(b"\0"):
                os.symlink(os.fsdecode(content[1:]), name, dir_fd=above)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, 0o644, dir_fd=above), "wb") as file:
                file.write(content)
        finally:
            os.close(above)
    except OSError as error:
        _log.warning("%s could not be restored: %s", path, error)
