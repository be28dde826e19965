"""Project context of a session: the facts about its directory in the system prompt."""

import msgspec

__all__ = ["ContextFile", "GitChanges", "GitState", "ProjectContext"]


class ContextFile(msgspec.Struct, frozen=True):
    """A file with instructions for agents, such as AGENTS.md. `left_out` counts the characters that were cut off."""

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


class ProjectContext(msgspec.Struct, frozen=True):
    """Facts that stay unchanged during a session, so that the provider's prompt cache stays valid."""

    directory: str
    platform: str = ""
    date: str = ""
    git: GitState | None = None
    context: tuple[ContextFile, ...] = ()
    notes: tuple[str, ...] = ()
    """Additions of extensions: instructions of MCP servers, skills."""
    trailer: str = ""
    """The trailer for commit messages, if one is configured."""
