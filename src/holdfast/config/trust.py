"""Trust in project files: the settings that need it, and the store of trusted contents.

Project files are written by other people: a clone or a pull must not execute programs or send a key to another address.
Until they are trusted they may select among the configured models, name context files inside the project, and restrict
permissions. Trust is given to contents, by hash, so any change revokes it.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from holdfast.atomic_files import FILES, FileUnreadable, Signature
from holdfast.config.line_numbers import KeyPath
from holdfast.config.merge import Layer
from holdfast.config.problems import FileProblem
from holdfast.domain.documents import STORE_PREFIX, Documents
from holdfast.domain.errors import HoldfastError

__all__ = ["TrustStore", "Withheld", "content_digest", "project_digest", "split_untrusted"]

_MODEL_CHOICES = frozenset(
    {
        "model",
        "provider",
        "reasoning_effort",
        "think",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "frequency_penalty",
        "presence_penalty",
    }
)
_RESTRICTIONS = frozenset({("permissions", "ask"), ("permissions", "deny"), ("options", "disabled_tools")})


class Withheld(msgspec.Struct, frozen=True):
    """A setting of a project that has no effect, because the project is not trusted."""

    path: KeyPath
    file: str
    line: int


def split_untrusted(layer: Layer, root: str, directory: str) -> tuple[Layer, tuple[Withheld, ...]]:
    """Split a project file into the part that has an effect without trust, and the withheld keys."""
    kept: dict[str, Any] = {}
    refused: list[KeyPath] = []
    lines = dict(layer.lines)
    for section, inside in layer.tree.items():
        for name, value in inside.items():
            path = (section, name)
            allowed: Any = None
            if path == ("options", "context_paths"):
                allowed = _items_inside(value, path, refused, lines, lambda item: _is_inside(item, root, directory))
            elif section == "models":
                allowed = {choice: item for choice, item in value.items() if choice in _MODEL_CHOICES}
                refused += [(*path, choice) for choice in value if choice not in _MODEL_CHOICES]
            elif path in _RESTRICTIONS or (path == ("options", "sandbox") and value):
                allowed = value
            else:
                refused.append(path)
            if allowed:
                kept.setdefault(section, {})[name] = allowed
    withheld = tuple(Withheld(path, layer.file, layer.origin(path).line) for path in refused)
    return Layer(kept, layer.file, lines, may_run=False), withheld


def _items_inside(
    items: list[str],
    path: KeyPath,
    refused: list[KeyPath],
    lines: dict[KeyPath, int],
    is_inside: Callable[[str], bool],
) -> list[str]:
    """Return the items that are inside the project, and move their line numbers to their new indexes."""
    kept: list[str] = []
    for index, item in enumerate(items):
        if is_inside(item):
            lines[(*path, len(kept))] = lines.get((*path, index), 0)
            kept.append(item)
        else:
            refused.append((*path, index))
    return kept


def _is_inside(path: str, root: str, directory: str) -> bool:
    """Return True if the path is inside the project. Links are followed: a project must not cause other files of its
    user to be sent to a model.
    """
    if path.startswith(("/", "~")) or "$" in path or "\0" in path:
        return False
    real, top = os.path.realpath(os.path.join(directory, path)), os.path.realpath(root)
    return real == top or real.startswith(top.rstrip("/") + "/")


def project_digest(files: Sequence[tuple[str, bytes]]) -> str:
    """Return a hash of all files of a project and their paths, so that a removed file changes it too."""
    whole = hashlib.sha256()
    for path, data in files:
        name = os.fsencode(path)
        whole.update(len(name).to_bytes(8, "big") + name + hashlib.sha256(data).digest())
    return whole.hexdigest()


def content_digest(data: bytes) -> str:
    """Return the hash of one file that is trusted on its own."""
    return hashlib.sha256(data).hexdigest()


_MAX_OTHERS = 15


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    digest: str
    at: float
    others: tuple[str, ...] = ()
    """Contents under the same path that were trusted before, the newest first. Only in the store of a cluster, whose
    nodes may have different contents on their own disks.
    """

    def covers(self, digest: str) -> bool:
        """Return True if the content with this hash is trusted."""
        return digest == self.digest or digest in self.others


class _Records(msgspec.Struct, frozen=True):
    projects: dict[str, _Record] = {}
    files: dict[str, _Record] = {}


class TrustStore:
    """The store of trusted projects, by the directory of their deepest settings file and a hash of all of them.

    Other files of a project (commands, agents, hooks of other programs) are trusted one by one, so that a change of one
    does not revoke the trust in the others.
    """

    def __init__(self, path: str, documents: Documents = FILES) -> None:
        self._path = path
        self._documents = documents
        self._signature: Signature = None
        self._records = _Records()

    @property
    def path(self) -> str:
        """The path of the store."""
        return self._path

    def signature(self) -> Signature:
        """Return the signature of the store's document."""
        return self._documents.signature(self._path)

    def is_trusted(self, anchor: str, digest: str) -> bool:
        """Return True if the settings files of the project are trusted. An unreadable store trusts no project."""
        record = self._current().projects.get(_json_name(anchor))
        return record is not None and record.covers(digest)

    def is_file_trusted(self, path: str, digest: str) -> bool:
        """Return True if a file is trusted with this content."""
        record = self._current().files.get(_json_name(path))
        return record is not None and record.covers(digest)

    def _current(self) -> _Records:
        if self.signature() != self._signature:
            try:
                self._records, self._signature = self._read()
            except HoldfastError:
                self._records, self._signature = _Records(), None
        return self._records

    def problems(self) -> tuple[FileProblem, ...]:
        """Return the problem of an unreadable store."""
        try:
            self._read()
        except HoldfastError as error:
            text = str(error).removeprefix(f"{self._path} ")
            return (FileProblem("error", self._path, 0, "", f"{text} No project is trusted until then."),)
        return ()

    def trust(self, anchor: str, digest: str, *, at: float) -> None:
        """Trust the settings files of a project with this hash. `at` is the current time."""

        def edit(records: _Records) -> _Records:
            return msgspec.structs.replace(records, projects=self._with(records.projects, {anchor: digest}, at))

        self._update(edit)

    def trust_files(self, files: Mapping[str, str], *, at: float) -> None:
        """Trust files with these hashes, by path."""

        def edit(records: _Records) -> _Records:
            return msgspec.structs.replace(records, files=self._with(records.files, files, at))

        self._update(edit)

    def revoke_files(self, paths: Iterable[str]) -> bool:
        """Revoke the trust in files. Return True if there was any."""
        gone = {_json_name(path) for path in paths}

        def edit(records: _Records) -> _Records | None:
            kept = {path: record for path, record in records.files.items() if path not in gone}
            return None if len(kept) == len(records.files) else msgspec.structs.replace(records, files=kept)

        return self._update(edit)

    def revoke(self, anchor: str) -> bool:
        """Revoke the trust in the settings files of a project. Return True if there was any."""
        gone = _json_name(anchor)

        def edit(records: _Records) -> _Records | None:
            kept = {path: record for path, record in records.projects.items() if path != gone}
            return None if len(kept) == len(records.projects) else msgspec.structs.replace(records, projects=kept)

        return self._update(edit)

    def _with(self, known: Mapping[str, _Record], digests: Mapping[str, str], at: float) -> dict[str, _Record]:
        """Return the records with these contents, by path, added."""
        added: dict[str, _Record] = {}
        for path, digest in digests.items():
            others: tuple[str, ...] = ()
            if self._path.startswith(STORE_PREFIX) and (record := known.get(_json_name(path))) is not None:
                earlier = (record.digest, *record.others)
                others = tuple(item for item in earlier if item != digest)[:_MAX_OTHERS]
            added[_json_name(path)] = _Record(digest, at, others)
        return {**known, **added}

    def _update(self, edit: Callable[[_Records], _Records | None]) -> bool:
        """Change the records, unless `edit` returns None. Return True if they were changed."""
        is_changed = False

        def edit_bytes(data: bytes | None) -> bytes | None:
            nonlocal is_changed
            records = edit(self._decode(data))
            is_changed = records is not None
            return None if records is None else msgspec.json.format(msgspec.json.encode(records)) + b"\n"

        self._documents.update(self._path, edit_bytes)
        return is_changed

    def _read(self) -> tuple[_Records, Signature]:
        try:
            data, seen = self._documents.read(self._path)
        except FileNotFoundError:
            return _Records(), None
        return self._decode(data), seen

    def _decode(self, data: bytes | None) -> _Records:
        try:
            return _Records() if data is None else msgspec.json.decode(data, type=_Records)
        except (msgspec.DecodeError, RecursionError) as error:
            _raise_unusable(self._path, error)


def _json_name(directory: str) -> str:
    """Return a path as text: file names are bytes, JSON keys are Unicode."""
    return os.fsencode(directory).decode("utf-8", "backslashreplace")


def _raise_unusable(path: str, error: Exception) -> NoReturn:
    raise FileUnreadable(f"{path} is not a valid trust store: move it away and trust your projects again.") from error
