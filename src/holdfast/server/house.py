"""Sessions of web pages on an open port, and the file that preserves them for the next server.

The file (mode 0600, beside the database) contains the port and the keys of the pages. Tokens are never stored.
"""

import logging
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.domain.errors import BadRequest
from holdfast.protocol.bodies import PageGreeting, PageHello, PagePass, PageReturn, WebLink
from holdfast.server import codes
from holdfast.server.http import Asgi
from holdfast.server.page import BUNDLE, PageFront, read_files

__all__ = ["HOST", "CodeRefused", "House", "NoPage", "Note", "is_worth_it", "read_note"]

HOST = "127.0.0.1"
_BETWEEN_NOTES = 600.0
_log = logging.getLogger("holdfast.server")


class CodeRefused(BadRequest):
    """This link was used before, or is older than a minute. Run holdfast web for a new one."""


class NoPage(BadRequest):
    """This page is not known here any more. Run holdfast web for a new link."""


class Note(msgspec.Struct, frozen=True):
    """The stored state for the next server."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    pages: tuple[codes.Page, ...]


class House:
    """Web sessions of one port. The constructor reads the files of the page: do not call it in the event loop."""

    def __init__(self, application: Asgi, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.front = PageFront(application, read_files(BUNDLE), clock, self._use)
        self._path = path
        self._clock = clock
        self._noted = clock()

    def recall(self, note: Note) -> None:
        """Restore the pages that the previous server had admitted."""
        self.front.door = codes.recall(note.pages, self._clock())

    def link(self, env: tuple[str, ...]) -> WebLink:
        """Create a link with a code that admits one page."""
        code, front = secrets.token_urlsafe(24), self.front
        front.door = codes.mint(front.door, codes.digest(code), env, self._clock())
        return WebLink(f"http://{HOST}:{front.port}/", code, int(codes.CODE_SECONDS))

    def exchange(self, code: str) -> PagePass:
        """Admit a page with a code. Raises `CodeRefused`."""
        front, token = self.front, secrets.token_urlsafe(32)
        fresh = codes.Page(secrets.token_hex(16), secrets.token_urlsafe(32), 0.0, codes.digest(token))
        front.door, page = codes.exchange(front.door, codes.digest(code), fresh, self._clock())
        if page is None:
            raise CodeRefused
        return self._pass(page, token)

    def hello(self, asked: PageHello) -> PageGreeting:
        """Return a challenge and the server's own proof. Raises `NoPage`."""
        front, ours = self.front, secrets.token_hex(16)
        front.door, page = codes.hello(front.door, asked.page, asked.nonce, ours, self._clock())
        if page is None:
            raise NoPage
        return PageGreeting(ours, codes.proof(page.key, "server", front.port, asked.nonce, ours))

    def come_back(self, asked: PageReturn) -> PagePass:
        """Admit a returning page with its proof. Raises `NoPage`."""
        front, token, now = self.front, secrets.token_urlsafe(32), self._clock()
        front.door, page = codes.come_back(front.door, asked.page, asked.proof, front.port, codes.digest(token), now)
        if page is None:
            raise NoPage
        return self._pass(page, token)

    def renew(self, page: codes.Page) -> PagePass:
        """Return a new token and the credentials to return with. The old token ends."""
        front, token = self.front, secrets.token_urlsafe(32)
        front.door = codes.renew(front.door, page.id, codes.digest(token))
        return self._pass(page, token)

    def _pass(self, page: codes.Page, token: str) -> PagePass:
        self._write_note()
        return PagePass(token, page.id, page.key)

    def _use(self) -> None:
        """Write the file from time to time, so that it reflects which pages are still in use."""
        if self._clock() > self._noted + _BETWEEN_NOTES:
            self._write_note()

    def _write_note(self) -> None:
        """Replace the file atomically. A failure is logged and does not affect the page."""
        self._noted = self._clock()
        body = msgspec.json.encode(Note(self.front.port, codes.remembered(self.front.door, self._noted)))
        draft = self._path.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(body)
            draft.replace(self._path)
        except OSError as error:
            _log.warning("open pages cannot be noted; after a restart they need a new link: %s", error.strerror)


def is_worth_it(note: Note) -> bool:
    """Return True if a stored page may still return."""
    return bool(codes.recall(note.pages, time.time()).pages)


def read_note(path: Path) -> Note:
    """Read the stored state. A file that other users could read or write is refused."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BadRequest("their note is open to others")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Note)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequest("their note cannot be read") from None
