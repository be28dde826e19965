"""Git, asked in a way that runs nothing a repository's own settings name."""

import os
from collections.abc import Mapping

__all__ = ["git_arguments", "git_environment", "repository_of"]

_SWITCHED_OFF = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.untrackedCache=false",
    "diff.external=",
    "submodule.recurse=false",
    "grep.fullName=false",
    "grep.fallbackToNoIndex=false",
    "protocol.allow=never",
)


def git_arguments(program: str, *arguments: str) -> list[str]:
    """A git command with file system monitors, hooks, pagers and external programs switched off."""
    settings = [word for setting in _SWITCHED_OFF for word in ("-c", setting)]
    return [program, "--no-pager", "--literal-pathspecs", *settings, *arguments]


def git_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would lead git elsewhere; it takes no locks and asks for no password."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    kept |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
        "GIT_NO_LAZY_FETCH": "1",
        "LC_ALL": "C.UTF-8",
    }
    return kept


def repository_of(folder: str) -> str | None:
    """The top of the repository that a directory belongs to, if it does."""
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
