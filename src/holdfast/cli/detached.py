"""Directories of detached runs, one file per run, so that a run is found from any directory."""

import os

__all__ = ["directory_of", "noted", "remember"]

_MOST = 500
"""Maximum number of files; older ones are removed. A file is kept after its answer was fetched, so it can be fetched
again.
"""


def remember(data_dir: str, run: str, directory: str) -> None:
    """Record the directory of a run. A failed write is ignored: the run is still found from its own directory."""
    place = os.path.join(data_dir, "detached")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        with open(os.path.join(place, run), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(directory)
        notes = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(place))
        for _, path in notes[:-_MOST]:
            os.unlink(path)
    except OSError:
        return


def directory_of(data_dir: str, run: str) -> str | None:
    """Return the recorded directory of a run."""
    try:
        with open(os.path.join(data_dir, "detached", run), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def noted(data_dir: str) -> list[str]:
    """Return the recorded runs."""
    try:
        return os.listdir(os.path.join(data_dir, "detached"))
    except OSError:
        return []
