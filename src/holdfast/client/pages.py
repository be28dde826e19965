"""Methods for pages: how they are let in, and how they come back."""

from holdfast.client.calls import Calls
from holdfast.protocol.bodies import PageCode, PageGreeting, PageHello, PagePass, PageReturn, WebAsk, WebLink

__all__ = ["PageCalls"]


class PageCalls(Calls):
    """`docs/protocol.md` says in which order a page asks."""

    async def open_web(self, port: int = 0, env: tuple[str, ...] = ()) -> WebLink:
        """A link for one page; over the unix socket only."""
        return await self._ask(WebLink, "open_web", body=WebAsk(port, env))

    async def close_web(self) -> None:
        """Let no page in, and forget those that were."""
        await self._send("close_web")

    async def enter_page(self, code: str) -> PagePass:
        return await self._ask(PagePass, "enter_page", body=PageCode(code))

    async def page_pass(self) -> PagePass:
        return await self._ask(PagePass, "page_pass")

    async def greet_page(self, page: str, nonce: str) -> PageGreeting:
        return await self._ask(PageGreeting, "greet_page", body=PageHello(page, nonce))

    async def return_page(self, page: str, proof: str) -> PagePass:
        return await self._ask(PagePass, "return_page", body=PageReturn(page, proof))
