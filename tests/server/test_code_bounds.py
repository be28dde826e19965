"""Bounds of the page's port and its states after repeated or unknown requests."""

import pytest

from holdfast.server import codes
from holdfast.server.codes import Challenge, Door, Page, digest

_PAGE = Page("p", "key of p", 0.0, digest("token of p"))
_KNOWN = Door(pages={"p": _PAGE})
_PORT = 4711


def test_limits_have_their_published_values() -> None:
    limits = (codes.CODE_SECONDS, codes.CHALLENGE_SECONDS, codes.PAGE_SECONDS, codes.MOST_CODES, codes.MOST_PAGES)
    assert limits == (60.0, 30.0, 43_200.0, 16, 64)


@pytest.mark.parametrize("count", [codes.MOST_CODES - 1, codes.MOST_CODES, codes.MOST_CODES + 1])
def test_the_newest_codes_are_kept_up_to_the_bound(count: int) -> None:
    door = Door()
    for number in range(count):
        door = codes.mint(door, digest(f"c{number}"), (), 0.0)
    kept = [digest(f"c{number}") for number in range(max(0, count - 16), count)]
    assert list(door.codes) == kept


def test_a_request_that_ends_twice_does_not_cancel_a_later_one() -> None:
    door = codes.leave(codes.leave(_KNOWN, "p", 1.0), "p", 2.0)
    assert door.pages["p"].visits == 0
    door, page = codes.admit(door, digest("token of p"), 3.0)
    assert page is not None
    assert page.visits == 1
    assert "p" in codes.mint(door, digest("c"), (), 3 * codes.PAGE_SECONDS).pages, "a request of it is under way"


def test_an_unknown_page_gets_no_challenge() -> None:
    door, page = codes.hello(_KNOWN, "q", "theirs", "ours", 1.0)
    assert (door, page) == (_KNOWN, None)


def test_challenges_of_pages_are_independent() -> None:
    both = Door(pages={name: Page(name, f"key of {name}", 0.0) for name in ("p", "q")})
    for name in both.pages:
        both, _ = codes.hello(both, name, "theirs", f"ours of {name}", 1.0)
    right = codes.proof("key of p", "page", _PORT, "theirs", "ours of p")
    door, page = codes.come_back(both, "p", right, _PORT, digest("new"), 2.0)
    assert page is not None
    assert (page.token, page.seen) == (digest("new"), 2.0)
    assert door.challenges == {"q": Challenge("theirs", "ours of q", 1.0 + codes.CHALLENGE_SECONDS)}
    assert codes.come_back(door, "p", right, _PORT, digest("third"), 3.0)[1] is None, "each challenge is used once"
