"""Where a session works: what a model is told about it before anything else."""

import msgspec

__all__ = ["ContextFile", "GitChanges", "GitState", "Surroundings"]


class ContextFile(msgspec.Struct, frozen=True):
    """A file that says how people want to work here, such as AGENTS.md. `left_out` counts the characters cut off."""

    path: str
    text: str
    left_out: int = 0


class GitState(msgspec.Struct, frozen=True):
    """Branch and commit of the repository when the session began. Both are empty if HEAD has an unusual form; the
    branch is empty on a detached HEAD, the commit before the first one.
    """

    branch: str = ""
    commit: str = ""


class GitChanges(msgspec.Struct, frozen=True):
    """Changed files as `git status --short` lists them, the number of those left out, and the last commits."""

    files: tuple[str, ...] = ()
    more_files: int = 0
    commits: tuple[str, ...] = ()


class Surroundings(msgspec.Struct, frozen=True):
    """Facts that do not change while a session goes on, so that a provider can keep what it has read."""

    directory: str
    platform: str = ""
    date: str = ""
    git: GitState | None = None
    context: tuple[ContextFile, ...] = ()
    notes: tuple[str, ...] = ()
    """What extensions want a model to know: instructions of servers, skills."""
    trailer: str = ""
    """The line that belongs below a commit message, if one does."""
