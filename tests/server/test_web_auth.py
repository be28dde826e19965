"""Authentication at the web page's port: each rule by itself, then all of them on random walks."""

import random

import pytest

from holdfast.server.web import web_auth
from holdfast.server.web.web_auth import Page, WebAuthState, digest

_PORT = 4711
_DAY = 24 * 3600.0


def _fresh(name: str, token: str = "") -> Page:
    return Page(name, f"key of {name}", 0.0, digest(token or f"token of {name}"))


def _entered(name: str = "p", now: float = 0.0) -> WebAuthState:
    auth = web_auth.add_code(WebAuthState(), digest("c"), ("A=1",), now)
    auth, page = web_auth.exchange(auth, digest("c"), _fresh(name), now)
    assert page is not None
    return auth


def _proof(name: str, ours: str, theirs: str = "theirs", port: int = _PORT, who: str = "page") -> str:
    return web_auth.proof(f"key of {name}", who, port, theirs, ours)


def test_code_admits_one_page_once() -> None:
    auth = web_auth.add_code(WebAuthState(), digest("c"), ("A=1",), 0.0)
    assert web_auth.exchange(auth, digest("d"), _fresh("p"), 1.0)[1] is None
    auth, page = web_auth.exchange(auth, digest("c"), _fresh("p"), 1.0)
    assert page is not None
    assert (page.env, page.seen) == (("A=1",), 1.0)
    assert web_auth.exchange(auth, digest("c"), _fresh("q"), 1.0)[1] is None


@pytest.mark.parametrize(("age", "good"), [(web_auth.CODE_SECONDS - 0.1, True), (web_auth.CODE_SECONDS, False)])
def test_code_expires(age: float, good: bool) -> None:
    auth = web_auth.add_code(WebAuthState(), digest("c"), (), 100.0)
    assert (web_auth.exchange(auth, digest("c"), _fresh("p"), 100.0 + age)[1] is not None) is good


def test_token_is_valid_for_its_page_only() -> None:
    auth = _entered()
    assert web_auth.admit(auth, digest("token of p"), 1.0)[1] is not None
    for other in ("", "token of q", "c", "key of p", "p"):
        assert web_auth.admit(auth, digest(other), 1.0)[1] is None


def test_renewed_token_ends_previous() -> None:
    auth = web_auth.renew(_entered(), "p", digest("new"))
    assert web_auth.admit(auth, digest("token of p"), 1.0)[1] is None
    assert web_auth.admit(auth, digest("new"), 1.0)[1] is not None
    assert web_auth.renew(auth, "nobody", digest("x")) == auth


def test_page_is_dropped_after_long_absence() -> None:
    auth = _entered()
    assert web_auth.admit(auth, digest("token of p"), web_auth.PAGE_SECONDS)[1] is None
    auth, page = web_auth.admit(auth, digest("token of p"), web_auth.PAGE_SECONDS - 1)
    assert page is not None
    # The stream of that page is open for days.
    auth, again = web_auth.admit(auth, digest("token of p"), 9 * _DAY)
    assert again is not None
    auth = web_auth.leave(web_auth.leave(auth, "p", 9 * _DAY), "p", 10 * _DAY)
    assert web_auth.admit(auth, digest("token of p"), 10 * _DAY + 1)[1] is not None
    assert web_auth.admit(auth, digest("token of p"), 11 * _DAY)[1] is None


def test_next_server_knows_pages_without_token_and_environment() -> None:
    kept = web_auth.pages_to_save(_entered(), 4.0)
    assert kept == (Page("p", "key of p", 0.0),)
    assert web_auth.pages_to_save(web_auth.admit(_entered(), digest("token of p"), 1.0)[0], 4.0)[0].seen == 4.0
    auth = web_auth.restore(kept, 5.0)
    assert web_auth.admit(auth, digest("token of p"), 5.0)[1] is None
    assert web_auth.admit(auth, digest(""), 5.0)[1] is None
    assert web_auth.admit(auth, b"", 5.0)[1] is None
    assert web_auth.restore(kept, web_auth.PAGE_SECONDS).pages == {}


def test_clock_set_back_does_not_extend_page_lifetime() -> None:
    auth = web_auth.restore((Page("p", "k", 9e9),), 100.0)
    assert auth.pages["p"].seen == 100.0


def test_page_reconnects_with_proof() -> None:
    auth = web_auth.restore(web_auth.pages_to_save(_entered(), 4.0), 5.0)
    auth, page = web_auth.begin_return(auth, "p", "theirs", "ours", 5.0)
    assert page is not None
    auth, page = web_auth.complete_return(auth, "p", _proof("p", "ours"), _PORT, digest("new"), 6.0)
    assert page is not None
    assert web_auth.admit(auth, digest("new"), 7.0)[1] is not None


@pytest.mark.parametrize(
    "given",
    [
        _proof("q", "ours"),
        _proof("p", "other"),
        _proof("p", "ours", theirs="other"),
        _proof("p", "ours", port=4712),
        _proof("p", "ours", who="server"),
        "",
        "\ud800",
    ],
    ids=["another key", "another number", "the page's other number", "another port", "the server's", "none", "no text"],
)
def test_wrong_proof_consumes_challenge(given: str) -> None:
    """The server's own message is not a proof either, so it cannot be reflected."""
    auth, _ = web_auth.begin_return(_entered(), "p", "theirs", "ours", 5.0)
    auth, page = web_auth.complete_return(auth, "p", given, _PORT, digest("new"), 6.0)
    assert page is None
    assert web_auth.complete_return(auth, "p", _proof("p", "ours"), _PORT, digest("new"), 6.0)[1] is None


def test_challenge_expires_and_is_valid_once() -> None:
    challenged, _ = web_auth.begin_return(_entered(), "p", "theirs", "ours", 5.0)
    late = 5.0 + web_auth.CHALLENGE_SECONDS
    assert web_auth.complete_return(challenged, "p", _proof("p", "ours"), _PORT, digest("new"), late)[1] is None
    auth, page = web_auth.complete_return(challenged, "p", _proof("p", "ours"), _PORT, digest("new"), late - 1)
    assert page is not None
    assert web_auth.complete_return(auth, "p", _proof("p", "ours"), _PORT, digest("newer"), late - 1)[1] is None
    again, _ = web_auth.begin_return(challenged, "p", "theirs", "newer", 5.0)
    assert web_auth.complete_return(again, "p", _proof("p", "ours"), _PORT, digest("new"), 6.0)[1] is None
    assert web_auth.begin_return(challenged, "q", "theirs", "ours", 5.0)[1] is None


def test_challenge_ends_with_its_page() -> None:
    """Also if a page of the same name enters later: it has another key and no challenge."""
    auth, _ = web_auth.begin_return(_entered(), "p", "theirs", "ours", 5.0)
    for number in range(web_auth.MAX_PAGES):
        auth = web_auth.add_code(auth, digest("c"), (), 6.0 + number / 1000)
        auth, _ = web_auth.exchange(auth, digest("c"), _fresh(f"q{number}"), 6.0 + number / 1000)
    assert "p" not in auth.pages
    assert web_auth.complete_return(auth, "p", _proof("p", "ours"), _PORT, digest("new"), 7.0)[1] is None
    auth = web_auth.add_code(auth, digest("c"), (), 7.0)
    auth, _ = web_auth.exchange(auth, digest("c"), _fresh("p"), 7.0)
    assert web_auth.complete_return(auth, "p", _proof("p", "ours"), _PORT, digest("new"), 7.0)[1] is None
    stray = WebAuthState(challenges={"p": web_auth.Challenge("theirs", "ours", 99.0)})
    assert web_auth.complete_return(stray, "p", _proof("p", "ours"), _PORT, digest("new"), 7.0)[1] is None


def test_r11_codes_pages_and_challenges_are_bounded() -> None:
    """R11: requesting links, entering or saying hello without end does not fill the memory."""
    auth = WebAuthState()
    for number in range(3 * web_auth.MAX_PAGES):
        for name in range(web_auth.MAX_CODES):
            auth = web_auth.add_code(auth, digest(f"{number} {name}"), (), float(number))
        auth, page = web_auth.exchange(auth, digest(f"{number} 3"), _fresh(f"p{number}"), float(number))
        assert page is not None
        auth, _ = web_auth.begin_return(auth, page.id, "a", "b", float(number))
        if number == 0:
            auth, _ = web_auth.admit(auth, page.token, 0.0)
    assert len(auth.codes) <= web_auth.MAX_CODES
    assert len(auth.pages) == web_auth.MAX_PAGES
    assert set(auth.challenges) <= set(auth.pages)
    assert {"p0", f"p{3 * web_auth.MAX_PAGES - 1}"} <= set(auth.pages), "who is there stays, and so does who came last"


class Walk:
    """Random sequence of operations, compared with the expectations recorded on the way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.auth = WebAuthState()
        self.now = 1000.0
        self.minted: dict[str, float] = {}
        self.tokens: dict[str, str] = {}
        self.asked: dict[str, tuple[str, float]] = {}
        self.seen: dict[str, float] = {}
        self.busy: dict[str, int] = {}
        self.count = 0

    def new(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def any_of(self, names: object) -> str:
        known = [*names, "stranger"] if isinstance(names, dict) else ["stranger"]
        return str(self.chance.choice(known))

    def is_known(self, page: str) -> bool:
        return page in self.seen and (self.busy.get(page, 0) > 0 or self.now < self.seen[page] + web_auth.PAGE_SECONDS)

    def step(self) -> None:
        for page in [page for page in self.seen if not self.is_known(page)]:
            del self.seen[page]
        often = (self.exchange, self.admit, self.reconnect)
        self.chance.choice(
            (self.add_code, *often, *often, self.leave, self.request_challenge, self.wait, self.restart)
        )()

    def add_code(self) -> None:
        if len(self.minted) < web_auth.MAX_CODES:
            code = self.new("code")
            self.minted[code] = self.now
            self.auth = web_auth.add_code(self.auth, digest(code), (), self.now)

    def exchange(self) -> None:
        code, name = self.any_of(self.minted), self.new("page")
        allowed = code in self.minted and self.now < self.minted[code] + web_auth.CODE_SECONDS
        self.auth, page = web_auth.exchange(self.auth, digest(code), _fresh(name), self.now)
        assert (page is not None) is allowed
        self.minted.pop(code, None)
        if page is not None:
            self.tokens = {**self.tokens, f"token of {name}": name}
            self.seen[name] = self.now

    def admit(self) -> None:
        token = self.any_of(self.tokens)
        name = self.tokens.get(token, "")
        self.auth, page = web_auth.admit(self.auth, digest(token), self.now)
        assert (page is not None) is self.is_known(name)
        if page is not None:
            self.busy[name] = self.busy.get(name, 0) + 1

    def leave(self) -> None:
        name = self.any_of({name: count for name, count in self.busy.items() if count})
        self.auth = web_auth.leave(self.auth, name, self.now)
        if self.busy.get(name):
            self.busy[name] -= 1
            self.seen[name] = self.now

    def request_challenge(self) -> None:
        name, ours = self.any_of(self.seen), self.new("nonce")
        self.auth, page = web_auth.begin_return(self.auth, name, "theirs", ours, self.now)
        assert (page is not None) is self.is_known(name)
        if page is not None:
            self.asked[name] = (ours, self.now)

    def reconnect(self) -> None:
        name = self.any_of(self.asked)
        ours, at = self.asked.pop(name, ("", 0.0))
        given = _proof(self.chance.choice([name, name, "page1"]), ours)
        token = self.new("token")
        allowed = self.is_known(name) and self.now < at + web_auth.CHALLENGE_SECONDS and given == _proof(name, ours)
        self.auth, page = web_auth.complete_return(self.auth, name, given, _PORT, digest(token), self.now)
        assert (page is not None) is allowed
        if page is not None:
            self.tokens = {old: owner for old, owner in self.tokens.items() if owner != name} | {token: name}
            self.seen[name] = self.now

    def wait(self) -> None:
        self.now += self.chance.choice([1.0, 29.0, 31.0, 59.0, 61.0, 6 * 3600.0, web_auth.PAGE_SECONDS])

    def restart(self) -> None:
        self.auth = web_auth.restore(web_auth.pages_to_save(self.auth, self.now), self.now)
        self.seen.update({page: self.now for page, count in self.busy.items() if count})
        self.minted, self.tokens, self.asked, self.busy = {}, {}, {}, {}


@pytest.mark.parametrize("seed", range(200))
def test_random_walks_admit_only_allowed_pages(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(120):
        walk.step()
