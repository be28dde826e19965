"""Git repositories to measure in: a small one with 21 files, and one with 60,000 files and a dirty tree.

Each is made once and kept in the directory for temporary files; a server gets a copy of the small one.
"""

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["SMALL_FILES", "copy_small", "large", "temporary_directory"]

SMALL_FILES = 21
LARGE_FILES = 60_000
_PER_DIRECTORY = 100
_CHANGED, _UNTRACKED = 300, 300
_VERSION = 1
"""Part of the names of cached repositories: increase it with every change of their contents."""


def temporary_directory() -> Path:
    """Return the directory for temporary files: $TMPDIR, else /var/tmp, because /tmp may be in memory."""
    return Path(os.environ.get("TMPDIR") or "/var/tmp")


def copy_small(path: Path) -> None:
    """Create the small repository at a path."""
    shutil.copytree(_cached("small", SMALL_FILES), path, symlinks=True, dirs_exist_ok=True)


def large() -> Path:
    """Return the path of the large repository. Making it takes about ten seconds, once."""
    return _cached("large", LARGE_FILES)


def _cached(name: str, files: int) -> Path:
    path = temporary_directory() / f"holdfast-bench-{name}-{_VERSION}-{os.getuid()}"
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        _make(unfinished, files)
        unfinished.rename(path)
    return path


def _make(path: Path, files: int) -> None:
    path.mkdir(mode=0o700)
    names = [f"package{number // _PER_DIRECTORY:03}/module{number:05}.py" for number in range(files)]
    for number, name in enumerate(names):
        file = path / name
        if number % _PER_DIRECTORY == 0:
            file.parent.mkdir()
        file.write_text(f'"""Module {number}."""\n\n\ndef value() -> int:\n    return {number}\n')
    _git(path, "init", "--quiet", "--initial-branch=main")
    _git(path, "add", "--all")
    _git(path, "-c", "user.name=Bench", "-c", "user.email=bench@example.com", "commit", "--quiet", "-m", "Begin")
    if files >= LARGE_FILES:
        for name in names[: _CHANGED * _PER_DIRECTORY : _PER_DIRECTORY]:
            (path / name).write_text("changed = True\n")
        for number in range(_UNTRACKED):
            (path / f"untracked{number:03}.py").write_text("new = True\n")
    # Otherwise the disk is busy with these files for another half a minute, and the commits that are measured wait.
    os.sync()


def _git(path: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=path, check=True)
