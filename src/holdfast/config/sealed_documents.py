"""Documents of a cluster that contain secrets: encrypted with a key from a file, which all nodes have.

The content is encrypted and authenticated with AES-256-GCM under a random nonce; the name of the document is
authenticated too, so that one cannot be put in the place of another. The key is derived from the text of the file. A
missing or wrong key is one sentence, and affects nothing but these documents.
"""

import hmac
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import msgspec

from holdfast.atomic_files import FileUnreadable, file_signature, read_secret_file
from holdfast.config.credentials import Token
from holdfast.distribution_names import install_command
from holdfast.domain.documents import STORE_PREFIX, Documents, Signature
from holdfast.domain.errors import Conflict

__all__ = ["ExclusiveDocuments", "KeyFile", "SealedDocument", "SharedTokens", "Unsealable"]

_MIN_LENGTH = 32
_VERSION = b"\x01"
_NONCE_SIZE = 12
_DERIVATION = b"holdfast sealed documents 1"
_CHECK = f"{STORE_PREFIX}key-check"
"""A sealed document without content. A node that cannot open it has another key, and seals nothing."""


class Unsealable(Conflict):
    """The document cannot be encrypted or decrypted."""


class ExclusiveDocuments(Documents, Protocol):
    """Documents with an exclusive lock for each."""

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """Exclude all other nodes from the same block, which then sees the newest documents."""


class KeyFile:
    """The file of the key. It is read again when it has changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._cipher: tuple[Signature, Any] | None = None

    def __repr__(self) -> str:
        return f"KeyFile({self.path!r})"

    def cipher(self) -> Any:  # noqa: ANN401 - the package is optional
        """Return the cipher. Raises `Unsealable`."""
        seen = file_signature(self.path)
        if self._cipher is None or self._cipher[0] != seen:
            if find_spec("cryptography") is None:
                raise Unsealable(f"The key file needs the package cryptography: {install_command('postgres')}")
            try:
                text = read_secret_file(self.path, "key file", _MIN_LENGTH)
            except FileUnreadable as error:
                raise Unsealable(str(error)) from None
            key = hmac.digest(_DERIVATION, text.encode(), "sha256")
            # Imported on use: most servers have no key file.
            aead = import_module("cryptography.hazmat.primitives.ciphers.aead")
            self._cipher = seen, aead.AESGCM(key)
        return self._cipher[1]


class SealedDocument:
    """A document of the store that is encrypted."""

    def __init__(self, documents: Documents, name: str, key_file: KeyFile) -> None:
        self._documents = documents
        self._name = f"{STORE_PREFIX}{name}"
        self._key_file = key_file

    def signature(self) -> Signature:
        """Return a value that changes with the content and with the key."""
        return (*(self._documents.signature(self._name) or ()), *(file_signature(self._key_file.path) or ()))

    def read(self) -> bytes | None:
        """Return the content, None if there is none. Raises `Unsealable`."""
        try:
            return self._open(self._name, self._documents.read(self._name)[0])
        except FileNotFoundError:
            return None

    def update(self, edit: Callable[[bytes | None], bytes | None]) -> None:
        """Change the content. Raises `Unsealable` if the key is not the one of the store: nothing is changed then."""
        self._documents.update(_CHECK, lambda data: self._seal(_CHECK, b"") if data is None else self._check(data))

        def edit_sealed(data: bytes | None) -> bytes | None:
            present = None if data is None else self._open(self._name, data)
            new = edit(present)
            return None if new is None or new == present else self._seal(self._name, new)

        self._documents.update(self._name, edit_sealed)

    def problem(self) -> str:
        """Return why the content cannot be used, or an empty string."""
        try:
            self._key_file.cipher()
            for name in (_CHECK, self._name):
                with suppress(FileNotFoundError):
                    self._open(name, self._documents.read(name)[0])
        except Unsealable as error:
            return str(error)
        return ""

    def _check(self, data: bytes) -> None:
        self._open(_CHECK, data)

    def _seal(self, name: str, content: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_SIZE)
        sealed: bytes = self._key_file.cipher().encrypt(nonce, content, name.encode())
        return _VERSION + nonce + sealed

    def _open(self, name: str, data: bytes) -> bytes:
        cipher, start = self._key_file.cipher(), len(_VERSION)
        nonce, sealed = data[start : start + _NONCE_SIZE], data[start + _NONCE_SIZE :]
        try:
            if data[:start] != _VERSION:
                raise ValueError
            content: bytes = cipher.decrypt(nonce, sealed, name.encode())
        # InvalidTag is not a ValueError. Without the cause: no error of the library helps here.
        except Exception:
            raise Unsealable(
                f"The key file {self._key_file.path} does not fit: tokens and sign-ins in the store were encrypted "
                "with another key. Use the same file on all servers."
            ) from None
        return content


class SharedTokens:
    """The OAuth tokens of a cluster, in one encrypted document. Implements `credentials.TokenStore`."""

    def __init__(self, documents: ExclusiveDocuments, key_file: KeyFile) -> None:
        self._documents = documents
        self._document = SealedDocument(documents, "tokens", key_file)

    def signature(self) -> Signature:
        """Return a value that changes with the tokens."""
        return self._document.signature()

    def read(self) -> dict[str, Token]:
        """Return all tokens by the name of their provider. Raises `Unsealable`."""
        return _decode(self._document.read())

    def update(self, edit: Callable[[dict[str, Token]], dict[str, Token]]) -> None:
        """Change the tokens. Raises `Unsealable`, `Conflict` or a `StorageError`."""
        self._document.update(lambda data: msgspec.json.encode(edit(_decode(data))))

    def problem(self) -> str:
        """Return why the tokens cannot be used, or an empty string."""
        return self._document.problem()

    def exclusive(self, provider: str) -> AbstractAsyncContextManager[None]:
        """Exclude all other nodes from renewing a token. The block sees the newest one."""
        return self._documents.exclusive(f"token of {provider}")


def _decode(data: bytes | None) -> dict[str, Token]:
    return {} if data is None else msgspec.json.decode(data, type=dict[str, Token])
