"""OAuth redirect endpoint: requests that are the response, and requests that only resemble it."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.extensions.mcp.mcp_types import LoginFailed
from holdfast.extensions.mcp.oauth_login import Callback, redirect_listener

METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "get")
TARGETS: dict[str, dict[str, str] | None] = {
    "/callback?code=c&state=s": {"code": "c", "state": "s"},
    "/callback?code=c": {"code": "c"},
    "/callback?error=access_denied&state=s": {"error": "access_denied", "state": "s"},
    "/callback?code=first&code=second": {"code": "first"},
    "/callback?state=s": None,
    "/callback?code=": None,
    "/callback": None,
    "/callback/?code=c": None,
    "/?code=c": None,
    "/favicon.ico": None,
}
"""The parameters of each, or None if it is not a response."""

RIGHT = "/callback?code=right&state=mine"


async def _request(callback: Callback, method: str, target: str) -> tuple[int, str]:
    port = urlsplit(callback.uri).port
    assert port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(" ")[1]), answer


async def _outcome(callback: Callback) -> dict[str, Any] | str:
    try:
        return await callback.values()
    except LoginFailed as error:
        return str(error)


@pytest.mark.parametrize("method", METHODS)
async def test_only_get_of_redirect_url_with_parameters_is_response(method: str) -> None:
    for target, values in TARGETS.items():
        async with redirect_listener(0) as callback:
            status, page = await _request(callback, method, target)
            is_answer = method == "GET" and values is not None
            assert status == (405 if method != "GET" else 200 if is_answer else 404), target
            has_error = is_answer and "error=" in target
            words = "did not succeed" if has_error else "You are logged in" if is_answer else "nothing here"
            assert words in page, target
            # A later response counts if this one did not, and only then.
            assert (await _request(callback, "GET", RIGHT))[0] == 200
            outcome = await _outcome(callback)
            expected: dict[str, str] | None = values if is_answer else {"code": "right", "state": "mine"}
            assert outcome == ("The login was refused: access_denied" if has_error else expected), target


async def test_the_end_of_a_login_closes_connections_without_a_request() -> None:
    """Browsers open connections in advance. None of them delays the end or outlives it."""
    async with redirect_listener(0) as callback:
        port = urlsplit(callback.uri).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /callback?co")
        # The server has accepted the first connection once it has answered on the second.
        await _request(callback, "GET", "/favicon.ico")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
