"""Handlers for the login of web pages: links, codes, and the return of pages after a restart."""

from typing import TYPE_CHECKING

from holdfast.domain.errors import Conflict
from holdfast.protocol.bodies import PageGreeting, PagePass, WebLink
from holdfast.server.http.request import Request

if TYPE_CHECKING:
    from holdfast.server.web.web_app import WebSessions

__all__ = ["NoPort", "NotFromHere", "close_web", "enter_page", "greet_page", "open_web", "page_pass", "return_page"]


class NotFromHere(Conflict):
    """Links are made over the socket of the server's own machine only: run holdfast web there."""


class NoPort(Conflict):
    """No page's port is open here. Run holdfast web for a link."""


async def open_web(call: Request) -> WebLink:
    """Open the port of the web page and return a link. Only over the unix socket."""
    if not call.over_socket:
        raise NotFromHere
    return (await call.hub.web.open(call.body.port)).link(tuple(call.body.env))


async def close_web(call: Request) -> None:
    """Close the port of the web page. Only over the unix socket."""
    if not call.over_socket:
        raise NotFromHere
    call.hub.web.close()


async def enter_page(call: Request) -> PagePass:
    """Exchange a code for a token."""
    return _house(call).exchange(call.body.code)


async def greet_page(call: Request) -> PageGreeting:
    """Return a challenge to a page that was admitted by an earlier server."""
    return _house(call).hello(call.body)


async def return_page(call: Request) -> PagePass:
    """Return a new token for the proof of a returning page."""
    return _house(call).come_back(call.body)


async def page_pass(call: Request) -> PagePass:
    """Return a new token to a page that was reloaded and has lost its state."""
    if call.page is None:
        raise NoPort
    return _house(call).renew(call.page)


def _house(call: Request) -> "WebSessions":
    if call.hub.web.house is None:
        raise NoPort
    return call.hub.web.house
