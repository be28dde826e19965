"""Bounds of the page's port and its states after repeated or unknown requests."""

import asyncio
from contextlib import nullcontext
from typing import Any, cast

import pytest

from holdfast.server.web import web_auth
from holdfast.server.web.web_app import WebApp
from holdfast.server.web.web_auth import Challenge, Page, WebAuthState, digest

_PAGE = Page("p", "key of p", 0.0, digest("token of p"))
_KNOWN = WebAuthState(pages={"p": _PAGE})
_PORT = 4711


def test_limits_have_their_published_values() -> None:
    limits = (
        web_auth.CODE_SECONDS,
        web_auth.CHALLENGE_SECONDS,
        web_auth.PAGE_SECONDS,
        web_auth.MAX_CODES,
        web_auth.MAX_PAGES,
    )
    assert limits == (60.0, 30.0, 43_200.0, 16, 64)


@pytest.mark.parametrize("count", [web_auth.MAX_CODES - 1, web_auth.MAX_CODES, web_auth.MAX_CODES + 1])
def test_the_newest_codes_are_kept_up_to_the_bound(count: int) -> None:
    auth = WebAuthState()
    for number in range(count):
        auth = web_auth.add_code(auth, digest(f"c{number}"), (), 0.0)
    kept = [digest(f"c{number}") for number in range(max(0, count - 16), count)]
    assert list(auth.codes) == kept


def test_a_request_that_ends_twice_does_not_cancel_a_later_one() -> None:
    auth = web_auth.leave(web_auth.leave(_KNOWN, "p", 1.0), "p", 2.0)
    assert auth.pages["p"].visits == 0
    auth, page = web_auth.admit(auth, digest("token of p"), 3.0)
    assert page is not None
    assert page.visits == 1
    assert "p" in web_auth.add_code(auth, digest("c"), (), 3 * web_auth.PAGE_SECONDS).pages, (
        "a request of it is under way"
    )


@pytest.mark.parametrize("end", [None, ValueError(), asyncio.CancelledError()], ids=["answered", "failed", "cancelled"])
async def test_a_page_is_present_only_during_its_requests(end: BaseException | None) -> None:
    """Whatever ends them: a page that counts as present for ever takes the place of another one."""
    now, seen, uses = [1.0], list[int](), list[float]()

    async def answer(*_: object) -> None:
        seen.append(app.auth.pages["p"].visits)
        now[0] = 5.0
        if end is not None:
            raise end

    app = WebApp(answer, {}, lambda: now[0], lambda: uses.append(now[0]))
    app.auth, app.port = _KNOWN, _PORT
    headers = [(b"host", b"127.0.0.1:4711"), (b"authorization", b"Bearer token of p")]
    scope = {"method": "GET", "target": b"/v1/x", "raw_path": b"/v1/x", "headers": headers, "client": ("127.0.0.1", 1)}
    for visit in (1, 1):
        with nullcontext() if end is None else pytest.raises(type(end)):
            await app(scope, cast(Any, None), cast(Any, None))
        assert (seen.pop(), app.auth.pages["p"].visits, app.auth.pages["p"].seen) == (visit, 0, 5.0)
    assert uses == [1.0, 5.0, 5.0, 5.0]


def test_an_unknown_page_gets_no_challenge() -> None:
    auth, page = web_auth.begin_return(_KNOWN, "q", "theirs", "ours", 1.0)
    assert (auth, page) == (_KNOWN, None)


def test_challenges_of_pages_are_independent() -> None:
    both = WebAuthState(pages={name: Page(name, f"key of {name}", 0.0) for name in ("p", "q")})
    for name in both.pages:
        both, _ = web_auth.begin_return(both, name, "theirs", f"ours of {name}", 1.0)
    right = web_auth.proof("key of p", "page", _PORT, "theirs", "ours of p")
    auth, page = web_auth.complete_return(both, "p", right, _PORT, digest("new"), 2.0)
    assert page is not None
    assert (page.token, page.seen) == (digest("new"), 2.0)
    assert auth.challenges == {"q": Challenge("theirs", "ours of q", 1.0 + web_auth.CHALLENGE_SECONDS)}
    assert web_auth.complete_return(auth, "p", right, _PORT, digest("third"), 3.0)[1] is None, (
        "each challenge is used once"
    )
