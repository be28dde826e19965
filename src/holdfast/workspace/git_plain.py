"""Check of git directories created by sandboxed commands: plain ones contain only what git itself writes."""

import os
import re
import stat
from collections.abc import Collection

from holdfast.workspace.git import list_settings
from holdfast.workspace.git_files import read_bytes, read_path, resolve_gitfile
from holdfast.workspace.paths import is_within
from holdfast.workspace.sandbox_git import UNFINISHED

__all__ = ["added_settings", "is_plain_directory", "is_plain_file", "is_plain_settings", "is_plain_step"]

_KEYS = {
    "branch": frozenset(("remote", "merge", "rebase")),
    "core": frozenset(
        (
            "autocrlf",
            "bare",
            "eol",
            "filemode",
            "ignorecase",
            "logallrefupdates",
            "precomposeunicode",
            "repositoryformatversion",
            "sharedrepository",
            "sparsecheckout",
            "sparsecheckoutcone",
            "symlinks",
            "worktree",
        )
    ),
    "extensions": frozenset(("objectformat", "partialclone", "refstorage", "worktreeconfig")),
    "index": frozenset(("sparse",)),
    "init": frozenset(("defaultbranch",)),
    "lfs": frozenset(("repositoryformatversion",)),
    "receive": frozenset(("denynonfastforwards",)),
    "remote": frozenset(("url", "fetch", "tagopt", "mirror", "promisor", "partialclonefilter")),
    "submodule": frozenset(("active", "url", "update")),
    "user": frozenset(("name", "email")),
}
"""Keys that git writes at init, clone, submodule add and sparse-checkout, and a name for commits."""
_UPDATES = frozenset(("checkout", "rebase", "merge", "none"))
"""`submodule.<name>.update` may also be a command."""
_STRATEGIES = frozenset(("", "octopus", "ort", "ours", "recursive", "resolve", "subtree"))
"""The strategies of git itself."""
_HELPER = re.compile(r"[\w+.-]*::")


def is_plain_directory(path: str, root: str, accepted: Collection[str]) -> bool:
    """Return whether nothing in a new git directory below `root` runs a program, now or later.

    `accepted` are the git directories that a linked work tree may share.
    """
    if not _is(stat.S_ISDIR, path):
        return False
    entries = {name: os.path.join(path, name) for name in ("commondir", "gitdir", "config", "config.worktree")}
    there = {name for name, place in entries.items() if os.path.lexists(place)}
    if not _has_only_samples(os.path.join(path, "hooks")) or not all(_is_plain_at(path, name) for name in UNFINISHED):
        return False
    if "commondir" in there or "gitdir" in there:
        return _is_linked(path, there, accepted)
    try:
        return all(is_plain_settings(read_bytes(entries[name]), path, root) for name in there)
    except OSError:
        return False


def is_plain_file(path: str, accepted: Collection[str]) -> bool:
    """Return whether a new `.git` file names an accepted git directory."""
    return _is(stat.S_ISREG, path) and resolve_gitfile(path) in accepted


def is_plain_settings(data: bytes, path: str, root: str) -> bool:
    """Return whether a configuration file of a git directory contains only keys that git itself writes."""
    settings = list_settings(data)
    return settings is not None and all(_is_plain(key, value, path, root) for key, value in settings)


def is_plain_step(name: str, data: bytes) -> bool:
    """Return whether a file of `UNFINISHED` runs no program: git starts `git-merge-NAME` for an unknown strategy."""
    match os.path.basename(name):
        case "git-rebase-todo":
            return not any(line.split()[:1] in ([b"x"], [b"exec"]) for line in data.splitlines())
        case "strategy":
            return _is_strategy(os.fsdecode(data))
        case _:
            settings = list_settings(data)
            return settings is not None and all(
                _is_strategy(value or "") for key, value in settings if key == "options.strategy"
            )


def _is_strategy(text: str) -> bool:
    return text.strip() in _STRATEGIES


def added_settings(data: bytes, before: bytes, path: str, root: str) -> bool:
    """Return whether a changed configuration file has new settings other than the plain ones."""
    settings, known = list_settings(data), list_settings(before)
    if settings is None or known is None:
        return True
    return any(item not in known and not _is_plain(*item, path, root) for item in settings)


def _is_plain(key: str, value: str | None, path: str, root: str) -> bool:
    section, _, rest = key.partition(".")
    name = rest.rpartition(".")[2]
    if name not in _KEYS.get(section, ()):
        return False
    if value is None:
        return section == "core"
    if (section, name) == ("core", "worktree"):
        place = os.path.realpath(os.path.join(path, value))
        return place != root and is_within(root, place) and not is_within(path, place)
    if (section, name) == ("submodule", "update"):
        return value in _UPDATES
    # `ext::command` and the like are addresses that run a program.
    return not _HELPER.match(value) and not value.startswith("-") and not any(character < " " for character in value)


def _is_linked(path: str, there: set[str], accepted: Collection[str]) -> bool:
    """Return whether this is the directory of a linked work tree as created by `git worktree add`, below an accepted
    one.
    """
    if not {"commondir", "gitdir"} <= there or os.path.lexists(os.path.join(path, "hooks")) or len(there) > 2:
        return False
    try:
        shared = read_path(os.path.join(path, "commondir"))
    except OSError:
        return False
    above = os.path.dirname(path)
    return shared == "../.." and os.path.basename(above) == "worktrees" and os.path.dirname(above) in accepted


def _is_plain_at(path: str, name: str) -> bool:
    try:
        return is_plain_step(name, read_bytes(os.path.join(path, name)))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _has_only_samples(folder: str) -> bool:
    if not os.path.lexists(folder):
        return True
    try:
        return _is(stat.S_ISDIR, folder) and all(name.endswith(".sample") for name in os.listdir(folder))
    except OSError:
        return False


def _is(kind: object, path: str) -> bool:
    assert callable(kind)
    try:
        return bool(kind(os.lstat(path).st_mode))
    except OSError:
        return False
