"""Locate a git repository and read its HEAD, without git.

Only the layouts that git itself creates are understood: a `.git` directory, a linked work tree, and a submodule, the
latter two proven by their location and back-link. Every other layout git would accept (a `.git` link, a directory with
HEAD and `commondir`, a separate git directory, refs stored in reftables ...) is reported as unusual and left out. No
configuration is read. Files are opened without following links and without blocking, and only up to a size.
"""

import os
import re
import stat

import msgspec

from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import stream_of

__all__ = [
    "MAX_FILE",
    "GitHead",
    "Repository",
    "find_repository",
    "read_bytes",
    "read_head",
    "read_path",
    "read_regular",
    "repository_of",
    "resolve_gitfile",
]


_MAX_POINTER = 8_192
_MAX_PACKED_REFS = 64 << 20
_MAX_DEPTH = 8
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(r"refs/heads/([^\x00-\x20\x7f~^:?*\[\\]{1,250})")
_GITFILE = re.compile(r"gitdir: ([^\x00-\x1f]*[^\x00-\x20])\n?")


class Repository(msgspec.Struct, frozen=True):
    """The three directories of a repository. `common_dir` has objects and refs; it differs from `git_dir` in a linked
    work tree only.
    """

    top: str
    git_dir: str
    common_dir: str


class GitHead(msgspec.Struct, frozen=True):
    """The current branch, empty if HEAD is detached; its commit, empty before the first one."""

    branch: str
    commit: str


def repository_of(folder: str) -> str | None:
    """Return the nearest directory, this one or a parent, that has an entry `.git`."""
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def find_repository(folder: str, depth: int = 0) -> Repository | None:
    """Return the repository whose work tree contains a directory; None if there is none or its layout is unusual."""
    top = repository_of(folder)
    if top is None or depth > _MAX_DEPTH:
        return None
    place = os.path.join(top, ".git")
    try:
        mode = os.lstat(place).st_mode
        if stat.S_ISDIR(mode):
            found: Repository | None = Repository(top, place, place)
        else:
            found = _read_git_file(place, top, depth) if stat.S_ISREG(mode) else None
        is_usual = found is not None and stat.S_ISREG(os.lstat(os.path.join(found.git_dir, "HEAD")).st_mode)
    except (OSError, ValueError):
        return None
    if found is None or not is_usual or os.path.lexists(os.path.join(found.common_dir, "commondir")):
        return None
    return found


def _read_git_file(place: str, top: str, depth: int) -> Repository | None:
    """Read a `.git` file. The directory it names is used only if it provably belongs to this work tree: otherwise a
    file could show the history of any repository of the user.
    """
    found = _GITFILE.fullmatch(_text(place))
    if found is None:
        return None
    git_dir = os.path.realpath(os.path.join(top, found[1]))
    if os.path.lexists(os.path.join(git_dir, "commondir")):
        parent, common = os.path.dirname(git_dir), os.path.dirname(os.path.dirname(git_dir))
        named = os.path.join(git_dir, _text(os.path.join(git_dir, "commondir")).removesuffix("\n"))
        back = os.path.join(git_dir, _text(os.path.join(git_dir, "gitdir")).removesuffix("\n"))
        is_own = os.path.basename(parent) == "worktrees" and os.path.realpath(named) == common
        return Repository(top, git_dir, common) if is_own and _is_same_file(back, place) else None
    outer = find_repository(os.path.dirname(top), depth + 1)
    if outer is None:
        return None
    modules = os.path.join(os.path.realpath(outer.git_dir), "modules")
    return Repository(top, git_dir, git_dir) if git_dir != modules and is_within(modules, git_dir) else None


def _is_same_file(path: str, place: str) -> bool:
    return os.path.realpath(os.path.dirname(path)) == os.path.realpath(os.path.dirname(place)) and (
        os.path.basename(path) == os.path.basename(place)
    )


def read_head(repository: Repository) -> GitHead | None:
    """Return branch and commit; None if HEAD, or the ref it names, has an unusual form."""
    try:
        text = _text(os.path.join(repository.git_dir, "HEAD")).removesuffix("\n")
        if _HASH.fullmatch(text):
            return GitHead("", text)
        found = _BRANCH.fullmatch(text.removeprefix("ref: ")) if text.startswith("ref: ") else None
        if found is None or not _is_ref_name(found[1]):
            return None
        commit = _commit_of(repository.common_dir, f"refs/heads/{found[1]}")
    except (OSError, ValueError):
        return None
    return None if commit is None else GitHead(found[1], commit)


def _is_ref_name(name: str) -> bool:
    """Apply the rules of `git check-ref-format` that the pattern does not cover."""
    parts = name.split("/")
    is_plain = all(part and not part.startswith(".") and not part.endswith((".lock", ".")) for part in parts)
    return is_plain and ".." not in name and "@{" not in name


def _commit_of(common_dir: str, ref: str) -> str | None:
    """Return the commit of a branch, empty if the branch does not exist yet, None if it is stored unusually."""
    try:
        text = _text(os.path.join(common_dir, ref)).removesuffix("\n")
        return text if _HASH.fullmatch(text) else None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
    try:
        packed = read_regular(os.path.join(common_dir, "packed-refs"), _MAX_PACKED_REFS)
    except FileNotFoundError:
        return ""
    found = re.search(rb"^([0-9a-f]{40}(?:[0-9a-f]{24})?) " + re.escape(os.fsencode(ref)) + rb"$", packed, re.M)
    return "" if found is None else found[1].decode()


def _text(path: str) -> str:
    return read_regular(path, _MAX_POINTER).decode("utf-8")


def read_regular(path: str, limit: int) -> bytes:
    """Return the content of a regular file. Raises `ValueError` for anything else and for a larger file; never blocks
    on a pipe and never follows a link at the end of the path.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise ValueError(path)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise ValueError(path)
    return data


# Reads files of git directories without running git: small regular files, never through a symbolic link.

MAX_FILE = 1 << 20
_PREFIX = b"gitdir: "


def read_bytes(path: str) -> bytes:
    """Return the content of a regular file. Raises `OSError`; a link, a device or a large file is an error too."""
    with stream_of(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file", path)
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise OSError(0, "too large", path)
    return data


def read_path(path: str) -> str:
    """Return the path that a one-line file such as `commondir` or `gitdir` names."""
    data = read_bytes(path)
    return os.fsdecode(data.removesuffix(b"\n"))


def resolve_gitfile(path: str) -> str | None:
    """Return the directory that a `.git` file names, or None unless it has exactly the form git writes."""
    try:
        data = read_bytes(path)
    except OSError:
        return None
    target = data.removeprefix(_PREFIX).removesuffix(b"\n")
    if not data.startswith(_PREFIX) or not target or target != target.strip() or b"\n" in target or b"\0" in target:
        return None
    return os.path.realpath(os.path.join(os.path.dirname(path), os.fsdecode(target)))
