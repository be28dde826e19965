"""Handlers for the login of web pages: links, codes, and the return of pages after a restart."""

from typing import TYPE_CHECKING

from holdfast.domain.errors import Conflict
from holdfast.protocol.bodies import PageChallenge, PageCredentials, WebLink
from holdfast.server.http.request import Request

if TYPE_CHECKING:
    from holdfast.server.web.web_app import WebSessions

__all__ = ["NoPort", "NotFromHere", "close_web", "enter_page", "greet_page", "open_web", "page_pass", "return_page"]


class NotFromHere(Conflict):
    """Links are created only over the server's unix socket: run holdfast web on its machine."""


class NoPort(Conflict):
    """The port of the web page is not open. Run holdfast web for a link."""


async def open_web(request: Request) -> WebLink:
    """Open the port of the web page and return a link. Only over the unix socket."""
    if not request.over_socket:
        raise NotFromHere
    return (await request.web.open(request.body.port)).link(tuple(request.body.env))


async def close_web(request: Request) -> None:
    """Close the port of the web page. Only over the unix socket."""
    if not request.over_socket:
        raise NotFromHere
    request.web.close()
    await request.web.sign_out()


async def enter_page(request: Request) -> PageCredentials:
    """Exchange a code for a token."""
    sessions = _sessions(request)
    return await sessions.share(sessions.exchange(request.body.code))


async def greet_page(request: Request) -> PageChallenge:
    """Return a challenge to a page that was admitted by an earlier server."""
    return _sessions(request).begin_return(request.body)


async def return_page(request: Request) -> PageCredentials:
    """Return a new token for the proof of a returning page."""
    sessions = _sessions(request)
    return await sessions.share(sessions.complete_return(request.body))


async def page_pass(request: Request) -> PageCredentials:
    """Return a new token to a page that was reloaded and has lost its state."""
    if request.page is None:
        raise NoPort
    return _sessions(request).renew(request.page)


def _sessions(request: Request) -> "WebSessions":
    if request.web.sessions is None:
        raise NoPort
    return request.web.sessions
