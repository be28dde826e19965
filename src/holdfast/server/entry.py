"""How a page gets in: a link from the socket, a code from the page, a proof from one that was there before."""

from typing import TYPE_CHECKING

from holdfast.domain.errors import Conflict
from holdfast.protocol.bodies import PageGreeting, PagePass, WebLink
from holdfast.server.calls import Call

if TYPE_CHECKING:
    from holdfast.server.house import House

__all__ = ["NoPort", "NotFromHere", "close_web", "enter_page", "greet_page", "open_web", "page_pass", "return_page"]


class NotFromHere(Conflict):
    """Links are made over the socket of the server's own machine only: run holdfast web there."""


class NoPort(Conflict):
    """No page's port is open here. Run holdfast web for a link."""


async def open_web(call: Call) -> WebLink:
    if not call.over_socket:
        raise NotFromHere
    return (await call.hub.web.open(call.body.port)).link(tuple(call.body.env))


async def close_web(call: Call) -> None:
    if not call.over_socket:
        raise NotFromHere
    call.hub.web.close()


async def enter_page(call: Call) -> PagePass:
    return _house(call).exchange(call.body.code)


async def greet_page(call: Call) -> PageGreeting:
    return _house(call).hello(call.body)


async def return_page(call: Call) -> PagePass:
    return _house(call).come_back(call.body)


async def page_pass(call: Call) -> PagePass:
    """What a page that was loaded again has forgotten."""
    if call.page is None:
        raise NoPort
    return _house(call).renew(call.page)


def _house(call: Call) -> "House":
    if call.hub.web.house is None:
        raise NoPort
    return call.hub.web.house
