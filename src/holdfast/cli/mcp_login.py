"""`holdfast mcp login`: shows the address of a login, and waits until it is complete."""

import asyncio
from typing import Any

from holdfast.cli.console.run_output import complain
from holdfast.cli.local_settings import printable
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.client import Client
from holdfast.client.stream import EventStream
from holdfast.domain.ids import WorkspaceId
from holdfast.tasks import TaskOwner

__all__ = ["log_in"]

_BETWEEN_LOOKS = 0.2


async def log_in(link: ServerConnection, name: str, *, opens: bool) -> None:
    """Log in to an MCP server. Raises the server's refusal."""
    workspace = WorkspaceId(link.workspace)
    tasks = TaskOwner()
    async with Client(link.address, client_id=link.client_id) as client:
        cursor = (await client.snapshot(workspace)).cursor
        # The event stream keeps the workspace open for the duration of the login.
        async with client.events(workspace, since=cursor) as events:
            watching = tasks.start(_listen(events), name="stay", done=_ended)
            login = tasks.start(client.mcp_auth(workspace, name), name="log in", done=_ended)
            showing = tasks.start(_show(client, workspace, name, opens=opens), name="show the address", done=_ended)
            try:
                await login
            finally:
                watching.cancel()
                showing.cancel()
                login.cancel()
                await tasks.drain()


def _ended(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


async def _listen(events: EventStream) -> None:
    async for _ in events:
        pass


async def _show(client: Client, workspace: WorkspaceId, name: str, *, opens: bool) -> None:
    while not (url := (await client.mcp_auth_url(workspace, name)).auth_url):  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(_BETWEEN_LOOKS)
    complain(f"Open this address to log in to {printable(name)}:\n\n  {printable(url)}\n")
    if opens and url.startswith(("https://", "http://")):
        import webbrowser

        await asyncio.to_thread(webbrowser.open, url)
