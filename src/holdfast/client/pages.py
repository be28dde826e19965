"""Client methods for web access: login and return of browser pages."""

from holdfast.client.calls import Calls
from holdfast.protocol.bodies import PageCode, PageGreeting, PageHello, PagePass, PageReturn, WebAsk, WebLink

__all__ = ["PageCalls"]


class PageCalls(Calls):
    """Routes for browser pages. `docs/protocol.md` describes their order."""

    async def open_web(self, port: int = 0, env: tuple[str, ...] = ()) -> WebLink:
        """Return a login link for one page. Available over the unix socket only."""
        return await self._ask(WebLink, "open_web", body=WebAsk(port, env))

    async def close_web(self) -> None:
        """Close web access and revoke all pages."""
        await self._send("close_web")

    async def enter_page(self, code: str) -> PagePass:
        """Exchange a login code for a page pass."""
        return await self._ask(PagePass, "enter_page", body=PageCode(code))

    async def page_pass(self) -> PagePass:
        """Return a new pass for a page that has one."""
        return await self._ask(PagePass, "page_pass")

    async def greet_page(self, page: str, nonce: str) -> PageGreeting:
        """Identify a returning page. The result proves that the server knows it."""
        return await self._ask(PageGreeting, "greet_page", body=PageHello(page, nonce))

    async def return_page(self, page: str, proof: str) -> PagePass:
        """Complete the return of a page with its own proof, and return a new pass."""
        return await self._ask(PagePass, "return_page", body=PageReturn(page, proof))
