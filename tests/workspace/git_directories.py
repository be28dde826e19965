"""Git directories created by tests, as git creates them."""

from pathlib import Path

__all__ = ["HASH", "put", "put_git"]

HASH = "a" * 40


def put(path: Path, text: str = "") -> Path:
    """Write a file and create its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def put_git(folder: Path, *, head: str = "ref: refs/heads/main\n", config: str = "") -> Path:
    """Create a git directory as git does."""
    for name in ("objects", "refs/heads", "hooks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    put(folder / "HEAD", head)
    put(folder / "config", config)
    return folder
