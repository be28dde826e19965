"""Where the runs are that were left to the server: a note for each, so that they are found from any directory."""

import os

__all__ = ["directory_of", "noted", "remember"]

_MOST = 500
"""Older ones go. A note stays when its answer was fetched: who asks again is told again."""


def remember(data_dir: str, run: str, directory: str) -> None:
    """A note that cannot be written is no reason to fail: the run is found from its own directory."""
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
    try:
        with open(os.path.join(data_dir, "detached", run), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def noted(data_dir: str) -> list[str]:
    """The runs that there is a note of."""
    try:
        return os.listdir(os.path.join(data_dir, "detached"))
    except OSError:
        return []
