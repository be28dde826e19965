"""One browser for all tests of a worker; a harness for each test."""

import inspect
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from holdfast.server.web.web_app import BUNDLE
from web.harness import PageHarness, launched, page_harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They share a browser, and a browser belongs to one loop."""
    for item in items:
        is_ours = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function)
        if is_ours and item.path.parent.name == "web":
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    assert (BUNDLE / "index.html").exists(), "build the page first: scripts/web build"
    async with launched() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def harness(browser: Browser) -> AsyncIterator[PageHarness]:
    async with page_harness(browser) as made:
        yield made
