"""Small documents that several programs read and change: saved settings, trust, tokens, sign-ins.

With SQLite each is a file (`atomic_files.FILES`). The servers of a cluster keep them in the store, so that they are the
same everywhere (`storage/postgres/shared_documents.py`). Names of those begin with `STORE_PREFIX`; every other name is
the path of a file.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

__all__ = ["STORE_PREFIX", "Documents", "Edit", "Signature"]

STORE_PREFIX = "postgresql:"

Signature: TypeAlias = tuple[int, ...] | None
"""A value that changes with the content of a document; None if there is no such document."""

Edit: TypeAlias = Callable[[bytes | None], bytes | None]
"""Returns the new content for the present one, which is None for a document that does not exist; None changes nothing.
May be called more than once for one update.
"""


class Documents(Protocol):
    """Reads documents and changes them. Reading never blocks for long; `update` may, so servers call it in a thread."""

    def signature(self, name: str) -> Signature:
        """Return the signature of a document."""

    def has_changed(self, name: str, seen: Signature) -> bool:
        """Return True if a document no longer has the signature `seen`."""

    def read(self, name: str) -> tuple[bytes, Signature]:
        """Return the content of a document and the signature that it had.

        Raises `FileNotFoundError` if there is none, and `FileUnreadable` if it cannot be read.
        """

    def update(self, name: str, edit: Edit) -> None:
        """Change a document, so that no change of another program is lost. Errors of `edit` are raised.

        Raises `Conflict`, `FileUnreadable` or a `StorageError`.
        """
