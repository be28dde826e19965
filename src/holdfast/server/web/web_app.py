"""The port of the web page: static files for any local client, everything else for admitted pages.

Requests that another site can make a browser send are refused here: another name for this host, another origin, a
cross-site request that is not a navigation. There are no cookies, so no request is authenticated implicitly.

The pages that are logged in are saved in a file, so that the next server admits them again. In a cluster they are also
in an encrypted document of its store: a page can return at any node, as it returns to a server that was restarted, and
is forgotten by all nodes once it was signed out at one. Tokens are in neither.
"""

import asyncio
import gzip
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from holdfast.atomic_files import FileUnwritable, replace_private_file
from holdfast.domain.errors import BadRequest, HoldfastError
from holdfast.protocol.bodies import PageChallenge, PageChallengeRequest, PageCredentials, PageProof, WebLink
from holdfast.server.http.connection import Asgi, Receive, Scope, Send
from holdfast.server.http.listen import may_be_our_own
from holdfast.server.http.token_auth import host_of, is_json, repeated_header
from holdfast.server.web import web_auth
from holdfast.server.web.web_auth import WebAuthState
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.config.sealed_documents import SealedDocument

__all__ = [
    "BUNDLE",
    "HOST",
    "NO_SIGN_INS",
    "POLICY",
    "CodeRefused",
    "NoPage",
    "SavedPages",
    "StaticFile",
    "WebApp",
    "WebSessions",
    "is_worth_it",
    "read_files",
    "read_note",
]


BUNDLE = Path(__file__).parents[2] / "web"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only resources of this server are executed, shown or requested; text is never parsed as HTML."""

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_KINDS = {
    ".html": b"text/html; charset=utf-8", ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8", ".svg": b"image/svg+xml", ".png": b"image/png", ".ico": b"image/x-icon",
    ".woff2": b"font/woff2", ".webmanifest": b"application/manifest+json", ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
}  # fmt: skip
_MIN_COMPRESSED = 1024
_PUBLIC_PATHS = frozenset({b"/v1/web/exchange", b"/v1/web/hello", b"/v1/web/return"})
"""Requests of a page that has no token yet."""

Headers: TypeAlias = list[tuple[bytes, bytes]]
HOST = "127.0.0.1"
_SAVE_INTERVAL = 600.0
_log = logging.getLogger("holdfast.server")


class StaticFile(msgspec.Struct, frozen=True):
    """A static file, ready to be sent."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    packed: bytes | None


def read_files(place: Path) -> dict[bytes, StaticFile]:
    """Return the static files by request path. Reads and compresses every file: do not call it in the event loop."""
    files = {b"/" + str(path.relative_to(place)).encode(): _file(path) for path in _list_files(place)}
    if b"/index.html" in files:
        files[b"/"] = files.pop(b"/index.html")
    return files


def _list_files(place: Path) -> Iterator[Path]:
    return (path for path in sorted(place.rglob("*")) if path.is_file() and path.suffix in _KINDS)


def _file(path: Path) -> StaticFile:
    body = path.read_bytes()
    headers = [(b"content-type", _KINDS[path.suffix]), *_SECURITY_HEADERS]
    if path.suffix == ".html":
        headers += [(b"content-security-policy", POLICY.encode()), (b"cache-control", b"no-store")]
    elif path.parent.name == "assets":
        # Its name contains its hash, so the contents under this name never change.
        headers.append((b"cache-control", b"public, max-age=31536000, immutable"))
    else:
        headers.append((b"cache-control", b"no-cache"))
    packed = gzip.compress(body, 9, mtime=0) if len(body) >= _MIN_COMPRESSED else None
    return StaticFile(tuple(headers), body, packed)


class WebApp:
    """ASGI application of the web page's port: serves files and authenticates requests. `auth` contains the admitted
    pages.
    """

    def __init__(
        self,
        application: Asgi,
        files: Mapping[bytes, StaticFile],
        clock: Callable[[], float],
        on_use: Callable[[], None] = lambda: None,
    ) -> None:
        self.auth = WebAuthState()
        self.port = 0
        self._application = application
        self._files = files
        self._clock = clock
        self._on_use = on_use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a static file, a login request, or an authenticated request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _send_error(send, *refusal)
            return
        path: bytes = scope["raw_path"]
        is_read = scope["method"] in ("GET", "HEAD")
        file = self._files.get(path) if is_read else None
        if file is not None:
            await _send_file(send, file, headers)
        elif path in _PUBLIC_PATHS and scope["method"] == "POST":
            # Other users of the machine can read a link on the command line of a browser.
            if may_be_our_own(scope["client"], self.port):
                await self._application(scope, receive, send)
            else:
                await _send_error(send, 403, b"This page belongs to another user of this machine.")
        elif path == b"/" and is_read:
            await _send_error(send, 404, b"This copy of Holdfast was made without its page: install a released one.")
        else:
            await self._authorize(headers, scope, receive, send)

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[int, bytes] | None:
        """Return status and message for a request that our page would not send, else None."""
        host = host_of(scope, (b"127.0.0.1:%d" % self.port, b"localhost:%d" % self.port))
        if host is None:
            return 403, b"This host name is not served here."
        if name := repeated_header(scope):
            return 400, b"Send the header %b only once." % name
        if headers.get(b"origin", b"http://" + host).lower() != b"http://" + host:
            return 403, b"Web pages of others may not talk to this server."
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            # A link on another site may lead here; it loads a page without credentials.
            is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
            if not (is_visit and scope["raw_path"] == b"/" and scope["method"] in ("GET", "HEAD")):
                return 403, b"Web pages of others may not talk to this server."
        if scope["method"] not in ("GET", "HEAD") and not is_json(headers):
            return 415, b"Send application/json."
        return None

    async def _authorize(self, headers: Mapping[bytes, bytes], scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        token = given.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
        self.auth, page = web_auth.admit(self.auth, web_auth.digest(token), self._clock())
        if page is None:
            await _send_error(send, 401, b"Run holdfast web for a new link: this page is not known here.")
            return
        scope["page"] = page
        self._on_use()
        try:
            await self._application(scope, receive, send)
        finally:
            self.auth = web_auth.leave(self.auth, page.id, self._clock())
            self._on_use()


async def _send_file(send: Send, file: StaticFile, asked: Mapping[bytes, bytes]) -> None:
    headers: Headers = [*file.headers, (b"vary", b"accept-encoding")]
    if file.packed is not None and b"gzip" in asked.get(b"accept-encoding", b""):
        await _send(send, 200, [*headers, (b"content-encoding", b"gzip")], file.packed)
    else:
        await _send(send, 200, headers, file.body)


async def _send_error(send: Send, status: int, sentence: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), *_SECURITY_HEADERS]
    await _send(send, status, headers, b'{"message":"' + sentence + b'"}\n')


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class CodeRefused(BadRequest):
    """This link was used before, or is older than a minute. Run holdfast web for a new one."""


class NoPage(BadRequest):
    """This page is no longer known. Run holdfast web for a new link."""


class SavedPages(msgspec.Struct, frozen=True):
    """The stored state for the next server."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    pages: tuple[web_auth.Page, ...]


NO_SIGN_INS = b"{}"
_MAX_SIGN_INS = 512
_MAX_SIGN_IN_AGE = 7 * 86_400.0
_decode_sign_ins = msgspec.json.Decoder(dict[str, web_auth.Page]).decode


class WebSessions:
    """Web sessions of one port. The constructor reads the files of the page: do not call it in the event loop.

    `shared` contains the pages of all nodes of a cluster.
    """

    def __init__(
        self,
        application: Asgi,
        path: Path,
        clock: Callable[[], float] = time.time,
        *,
        shared: "SealedDocument | None" = None,
    ) -> None:
        self.app = WebApp(application, read_files(BUNDLE), clock, self._use)
        self._path = path
        self._clock = clock
        self._noted = clock()
        self._shared = shared
        self._tasks = TaskOwner()
        self._shared_ids: frozenset[str] = frozenset()
        """The pages of this node that are, or were, in the document."""

    def restore(self, note: SavedPages) -> None:
        """Restore the pages that the previous server had admitted, except those that were signed out since."""
        self.app.auth = web_auth.restore(note.pages, self._clock())
        self._shared_ids = frozenset(page.id for page in note.pages)
        self.forget_signed_out()

    async def share(self, admitted: PageCredentials) -> PageCredentials:
        """Store an admitted page for the other nodes. Without the store it is known at this node only."""
        page = self.app.auth.pages.get(admitted.page)
        if self._shared is not None and page is not None:
            try:
                await self._store_sign_ins(self._shared, {page.id: web_auth.Page(page.id, page.key, self._clock())})
            except HoldfastError as error:
                _log.warning("a page that signed in is not known at the other servers: %s", error)
            else:
                self._shared_ids |= {page.id}
        return admitted

    async def _store_sign_ins(
        self, shared: "SealedDocument", pages: Mapping[str, web_auth.Page], *, only_known: bool = False
    ) -> None:
        """Add pages to the document. `only_known` leaves out those that were signed out."""
        now = self._clock()

        def edit(data: bytes | None) -> bytes:
            known = _decode_sign_ins(data or NO_SIGN_INS)
            known |= {name: page for name, page in pages.items() if name in known or not only_known}
            kept = sorted(known.values(), key=lambda item: item.seen)[-_MAX_SIGN_INS:]
            return msgspec.json.encode({item.id: item for item in kept if now < item.seen + _MAX_SIGN_IN_AGE})

        await asyncio.to_thread(shared.update, edit)

    async def _update_sign_ins(self, shared: "SealedDocument") -> None:
        """Store which pages are still in use at this node."""
        pages = {page.id: page for page in web_auth.pages_to_save(self.app.auth, self._clock())}
        with suppress(HoldfastError):
            await self._store_sign_ins(shared, pages, only_known=True)

    def forget_signed_out(self) -> bool:
        """Remove the pages that were signed out at another node. Returns True if there were any."""
        known = self._sign_ins()
        if known is None:
            return False
        gone = self.app.auth.pages.keys() & self._shared_ids - known.keys()
        self._shared_ids -= gone
        self.app.auth = web_auth.forget(self.app.auth, gone)
        if gone:
            self._write_note()
        return bool(gone)

    def _adopt(self, page: str) -> None:
        """Admit a page that another node has admitted, so that it can return here."""
        known = self._sign_ins() if page not in self.app.auth.pages else None
        if known is not None and page in known:
            self.app.auth = web_auth.adopt(self.app.auth, known[page], self._clock())
            self._shared_ids |= {page}

    def _sign_ins(self) -> Mapping[str, web_auth.Page] | None:
        """Return the pages of all nodes; None without a cluster, or if they cannot be decrypted."""
        try:
            return None if self._shared is None else _decode_sign_ins(self._shared.read() or NO_SIGN_INS)
        except HoldfastError:
            return None

    def link(self, env: tuple[str, ...]) -> WebLink:
        """Create a link with a code that admits one page."""
        code, app = secrets.token_urlsafe(24), self.app
        app.auth = web_auth.add_code(app.auth, web_auth.digest(code), env, self._clock())
        return WebLink(f"http://{HOST}:{app.port}/", code, int(web_auth.CODE_SECONDS))

    def exchange(self, code: str) -> PageCredentials:
        """Admit a page with a code. Raises `CodeRefused`."""
        app, token = self.app, secrets.token_urlsafe(32)
        fresh = web_auth.Page(secrets.token_hex(16), secrets.token_urlsafe(32), 0.0, web_auth.digest(token))
        app.auth, page = web_auth.exchange(app.auth, web_auth.digest(code), fresh, self._clock())
        if page is None:
            raise CodeRefused
        return self._credentials(page, token)

    def begin_return(self, asked: PageChallengeRequest) -> PageChallenge:
        """Return a challenge and the server's own proof. Raises `NoPage`."""
        app, ours = self.app, secrets.token_hex(16)
        self._adopt(asked.page)
        app.auth, page = web_auth.begin_return(app.auth, asked.page, asked.nonce, ours, self._clock())
        if page is None:
            raise NoPage
        return PageChallenge(ours, web_auth.proof(page.key, "server", app.port, asked.nonce, ours))

    def complete_return(self, asked: PageProof) -> PageCredentials:
        """Admit a returning page with its proof. Raises `NoPage`."""
        app, token, now = self.app, secrets.token_urlsafe(32), self._clock()
        app.auth, page = web_auth.complete_return(
            app.auth, asked.page, asked.proof, app.port, web_auth.digest(token), now
        )
        if page is None:
            raise NoPage
        return self._credentials(page, token)

    def renew(self, page: web_auth.Page) -> PageCredentials:
        """Return a new token and the credentials to return with. The old token ends."""
        app, token = self.app, secrets.token_urlsafe(32)
        app.auth = web_auth.renew(app.auth, page.id, web_auth.digest(token))
        return self._credentials(page, token)

    def _credentials(self, page: web_auth.Page, token: str) -> PageCredentials:
        self._write_note()
        return PageCredentials(token, page.id, page.key)

    def _use(self) -> None:
        """Write the file from time to time, so that it reflects which pages are still in use."""
        if self._clock() > self._noted + _SAVE_INTERVAL:
            self._write_note()
            if self._shared is not None:
                self._tasks.start(self._update_sign_ins(self._shared), name="sign-ins")

    def _write_note(self) -> None:
        """Replace the file atomically. A failure is logged and does not affect the page."""
        self._noted = self._clock()
        body = msgspec.json.encode(SavedPages(self.app.port, web_auth.pages_to_save(self.app.auth, self._noted)))
        try:
            # Not durable: a lost file costs the pages a new link, a sync would block the event loop.
            replace_private_file(str(self._path), body, is_durable=False)
        except FileUnwritable as error:
            _log.warning("open pages cannot be saved; after a restart they need a new link: %s", error)


def is_worth_it(note: SavedPages) -> bool:
    """Return True if a stored page may still return."""
    return bool(web_auth.restore(note.pages, time.time()).pages)


def read_note(path: Path) -> SavedPages:
    """Read the stored state. A file that other users could read or write is refused."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BadRequest("the file is accessible to other users")
    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedPages)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequest("the file cannot be decoded") from None
