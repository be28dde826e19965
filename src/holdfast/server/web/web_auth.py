"""Authentication of web pages. Pure: time and random values are arguments.

The rules, which are also the tests:

1.  A code admits one page, once, within `CODE_SECONDS`. A used code cannot be distinguished from one that never
    existed.
2.  A token belongs to one page and is stored as a digest only. It ends with the server, and with its page.
3.  A page with a request in progress is present. One that was absent for `PAGE_SECONDS` is forgotten.
4.  A server stores the keys of its pages for the next server, never a token. A stored page can return: it receives a
    challenge, once, for `CHALLENGE_SECONDS`, and a new token for the correct proof. The server has first proved that
    it has the key, too: another process that uses its port in the meantime learns nothing of use.
5.  A proof is valid for one port: a challenge that was fetched from another port is of no use here.
6.  A node of a cluster adopts the pages that other nodes have admitted, without their tokens, and forgets a page that
    was signed out elsewhere.
7.  There are never more than `MAX_CODES`, `MAX_PAGES` and, for each page, one challenge. The oldest is removed first.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

# fmt: off
__all__ = [
    "CHALLENGE_SECONDS",
    "CODE_SECONDS",
    "MAX_CODES",
    "MAX_PAGES",
    "PAGE_SECONDS",
    "Challenge",
    "LoginCode",
    "Page",
    "WebAuthState",
    "add_code",
    "admit",
    "adopt",
    "begin_return",
    "complete_return",
    "digest",
    "exchange",
    "forget",
    "leave",
    "pages_to_save",
    "proof",
    "renew",
    "restore",
]
# fmt: on

CODE_SECONDS = 60.0
CHALLENGE_SECONDS = 30.0
PAGE_SECONDS = 12 * 3600.0
MAX_CODES = 16
MAX_PAGES = 64

K = TypeVar("K")
T = TypeVar("T")


class LoginCode(msgspec.Struct, frozen=True):
    """A login code. `env` is the environment of the client that requested it: the page's prompts run in it."""

    until: float
    env: tuple[str, ...] = ()


class Challenge(msgspec.Struct, frozen=True):
    """The challenge that a returning page has to answer."""

    theirs: str
    ours: str
    until: float


class Page(msgspec.Struct, frozen=True):
    """An admitted page. `seen` is when its last request ended, `visits` the number of requests in progress."""

    id: str
    key: str
    seen: float
    token: bytes = b""
    visits: int = 0
    env: tuple[str, ...] = ()


class WebAuthState(msgspec.Struct, frozen=True):
    """Codes by their digest, pages and challenges by the page's id, the oldest first."""

    codes: Mapping[bytes, LoginCode] = {}
    pages: Mapping[str, Page] = {}
    challenges: Mapping[str, Challenge] = {}


def digest(secret: str) -> bytes:
    """Return the digest under which a secret is stored. Lookup by digest avoids a comparison whose timing reveals a
    prefix.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def proof(key: str, prover: str, port: int, theirs: str, ours: str) -> str:
    """Return the proof that `prover`, "server" or "page", has the key, for this port and these two nonces only."""
    message = f"{prover}\n{port}\n{theirs}\n{ours}"
    return hmac.new(key.encode(), message.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def add_code(state: WebAuthState, code: bytes, env: tuple[str, ...], now: float) -> WebAuthState:
    """Add a new code, given as its digest."""
    state = _without_expired(state, now)
    return replace(state, codes=_last({**state.codes, code: LoginCode(now + CODE_SECONDS, env)}, MAX_CODES))


def exchange(state: WebAuthState, code: bytes, fresh: Page, now: float) -> tuple[WebAuthState, Page | None]:
    """Admit the page `fresh` if the code is valid."""
    state = _without_expired(state, now)
    found = state.codes.get(code)
    if found is None:
        return state, None
    page = replace(fresh, env=found.env, seen=now)
    state = replace(state, codes={name: item for name, item in state.codes.items() if name != code})
    return _with_page(state, page), page


def admit(state: WebAuthState, token: bytes, now: float) -> tuple[WebAuthState, Page | None]:
    """Begin a request with this token. `leave` ends it."""
    state = _without_expired(state, now)
    found = next((page for page in state.pages.values() if page.token and page.token == token), None)
    if found is None:
        return state, None
    page = replace(found, visits=found.visits + 1)
    return replace(state, pages={**state.pages, page.id: page}), page


def renew(state: WebAuthState, page: str, token: bytes) -> WebAuthState:
    """Replace the token of a page that is admitted."""
    found = state.pages.get(page)
    return state if found is None else replace(state, pages={**state.pages, page: replace(found, token=token)})


def leave(state: WebAuthState, page: str, now: float) -> WebAuthState:
    """End a request. Its page may have been forgotten in the meantime."""
    found = state.pages.get(page)
    if found is None:
        return state
    return replace(state, pages={**state.pages, page: replace(found, visits=max(0, found.visits - 1), seen=now)})


def begin_return(
    state: WebAuthState, page: str, theirs: str, ours: str, now: float
) -> tuple[WebAuthState, Page | None]:
    """Begin the return of a page: store the challenge `ours`, which replaces an earlier one."""
    state = _without_expired(state, now)
    found = state.pages.get(page)
    if found is None:
        return state, None
    challenge = Challenge(theirs, ours, now + CHALLENGE_SECONDS)
    return replace(state, challenges={**state.challenges, page: challenge}), found


def complete_return(
    state: WebAuthState, page: str, sent_proof: str, port: int, token: bytes, now: float
) -> tuple[WebAuthState, Page | None]:
    """Verify the proof for the challenge of `begin_return` and replace the token.

    Any proof, correct or not, uses up the challenge.
    """
    state = _without_expired(state, now)
    challenge, found = state.challenges.get(page), state.pages.get(page)
    if challenge is None or found is None:
        return state, None
    state = replace(state, challenges={name: item for name, item in state.challenges.items() if name != page})
    right = proof(found.key, "page", port, challenge.theirs, challenge.ours)
    if not hmac.compare_digest(right.encode(), sent_proof.encode("utf-8", "surrogatepass")):
        return state, None
    back = replace(found, token=token, seen=now)
    return replace(state, pages={**state.pages, page: back}), back


def pages_to_save(state: WebAuthState, now: float) -> tuple[Page, ...]:
    """Return the pages to store for the next server. The environment of the user is not stored."""
    return tuple(Page(page.id, page.key, now if page.visits else page.seen) for page in state.pages.values())


def restore(pages: Iterable[Page], now: float) -> WebAuthState:
    """Return the initial state of a new server. A page that was seen in the future counts as seen now."""
    known = sorted((Page(page.id, page.key, min(page.seen, now)) for page in pages), key=lambda page: page.seen)
    return _without_expired(WebAuthState(pages=_last({page.id: page for page in known}, MAX_PAGES)), now)


def adopt(state: WebAuthState, page: Page, now: float) -> WebAuthState:
    """Add a page that another node of a cluster has admitted, without a token: it has to return here first."""
    adopted = Page(page.id, page.key, min(page.seen, now))
    return _without_expired(_with_page(_without_expired(state, now), adopted), now)


def forget(state: WebAuthState, pages: Iterable[str]) -> WebAuthState:
    """Remove pages: they need a new link."""
    gone = frozenset(pages)
    kept = {name: page for name, page in state.pages.items() if name not in gone}
    return _without_unknown_pages(replace(state, pages=kept))


def _with_page(state: WebAuthState, page: Page) -> WebAuthState:
    pages = {**state.pages, page.id: page}
    if len(pages) > MAX_PAGES:
        del pages[min(state.pages.values(), key=lambda other: (other.visits > 0, other.seen)).id]
    return _without_unknown_pages(replace(state, pages=pages))


def _without_expired(state: WebAuthState, now: float) -> WebAuthState:
    """Remove expired codes, pages and challenges."""
    return _without_unknown_pages(
        WebAuthState(
            {name: code for name, code in state.codes.items() if now < code.until},
            {name: page for name, page in state.pages.items() if page.visits or now < page.seen + PAGE_SECONDS},
            {name: challenge for name, challenge in state.challenges.items() if now < challenge.until},
        )
    )


def _without_unknown_pages(state: WebAuthState) -> WebAuthState:
    return replace(state, challenges={name: item for name, item in state.challenges.items() if name in state.pages})


def _last(items: dict[K, T], most: int) -> dict[K, T]:
    return dict(list(items.items())[-most:])
