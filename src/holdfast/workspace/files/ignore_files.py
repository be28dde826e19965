"""Ignore rules: files excluded by ignore files, and directories created by tools."""

import importlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import stream_of
from holdfast.workspace.git.repository import repository_of

__all__ = ["AGENT_IGNORE_FILES", "GENERATED_NAMES", "IGNORE_FILES", "IgnoreRules"]

GENERATED_NAMES = frozenset(
    {
        ".git", ".hg", ".svn", ".jj", ".bzr", "CVS", "node_modules", "__pycache__", ".venv", ".tox", ".nox",
        ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".gradle", ".terraform", ".DS_Store",
    }
)  # fmt: skip
"""Never listed or searched, unless named explicitly as the directory to search."""

AGENT_IGNORE_FILES = (".ignore", ".crushignore", ".holdfastignore")
IGNORE_FILES = (".gitignore", *AGENT_IGNORE_FILES)
_MAX_FILE_SIZE = 1 << 20


@cache
def _library() -> Any:  # noqa: ANN401
    """Import pathspec with the first ignore file, because importing it takes longer than everything else here."""
    return importlib.import_module("pathspec")


class _Rules:
    """The compiled lines of one directory's ignore files; the last matching line decides."""

    def __init__(self, lines: Sequence[str]) -> None:
        patterns = _library().GitIgnoreSpec.from_lines(lines).patterns
        known = [(item.regex.match, bool(item.include)) for item in patterns if item.include is not None]
        self._rules: list[tuple[Callable[[str], object], bool]] = known[::-1]

    def verdict(self, path: str) -> bool | None:
        for match, is_excluded in self._rules:
            if match(path):
                return is_excluded
        return None


class IgnoreRules:
    """Ignore rules below a directory. As in git, deeper files and later lines take precedence."""

    def __init__(self, root: str, names: Sequence[str] = IGNORE_FILES, extra: Sequence[str] = ()) -> None:
        self._root = root
        self._names = names
        self._rules: dict[str, _Rules | None] = {}
        self._folders: dict[str, bool] = {}
        self._extra = _Rules(extra) if extra else None
        self._top = repository_of(root) or root
        # Naming an ignored directory explicitly includes its content.
        self.is_root_ignored = root != self._top and self._is_below_ignored(root)
        if self.is_root_ignored:
            self._top = root

    def _is_below_ignored(self, folder: str) -> bool:
        while folder != self._top:
            if self._is_ignored_by_rules(folder, is_folder=True):
                return True
            folder = os.path.dirname(folder)
        return False

    def is_ignored(self, path: str, *, is_folder: bool) -> bool:
        """Return whether an absolute path below the root is ignored, given that its directory is not."""
        name = os.path.basename(path)
        return name in GENERATED_NAMES or self._is_ignored_by_rules(path, is_folder=is_folder)

    def covers(self, path: str) -> bool:
        """Return whether an absolute path, or a directory between it and the root, is ignored."""
        folder = os.path.dirname(path)
        return self._covers_folder(folder) or self.is_ignored(path, is_folder=False)

    def _covers_folder(self, folder: str) -> bool:
        if folder == self._root or not is_within(self._root, folder):
            return False
        known = self._folders.get(folder)
        if known is None:
            known = self._covers_folder(os.path.dirname(folder)) or self.is_ignored(folder, is_folder=True)
            self._folders[folder] = known
        return known

    def _is_ignored_by_rules(self, path: str, *, is_folder: bool) -> bool:
        end = "/" if is_folder else ""
        if self._extra is not None and self._extra.verdict(path[len(self._root.rstrip("/")) + 1 :] + end):
            return True
        folder = os.path.dirname(path)
        while is_within(self._top, folder):
            rules = self._rules_of(folder)
            verdict = rules.verdict(path[len(folder.rstrip("/")) + 1 :] + end) if rules else None
            if verdict is not None:
                return verdict
            if folder == self._top:
                break
            folder = os.path.dirname(folder)
        return False

    def _rules_of(self, folder: str) -> _Rules | None:
        if folder not in self._rules:
            lines: list[str] = []
            for name in self._names:
                lines += _read_lines(os.path.join(folder, name))
            self._rules[folder] = _Rules(lines) if lines else None
        return self._rules[folder]


def _read_lines(path: str) -> list[str]:
    try:
        with stream_of(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as stream:
            return stream.read(_MAX_FILE_SIZE).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
