"""A real Holdfast server whose workspace has a scripted language server, with helpers for both."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from e2e.test_tools_files import edit, view, write
from e2e.tool_client import ToolClient, tool_client
from holdfast.domain.extensions import LspInfo, LspState
from holdfast.domain.messages import ToolResult
from holdfast.extensions.lsp.diagnostics_wait import WaitLimits
from holdfast.extensions.lsp.lsp_manager import LspManager
from holdfast.server.workspace_manager import GracePeriods
from server.helpers import ServerDirectory, server_directory

__all__ = ["NODE", "PATIENT", "SERVER", "LspWorkspace", "edit", "lsp_workspace", "view", "write"]

PATIENT = WaitLimits(60.0, 60.0, 60.0)
"""Generous for busy machines: the tests check the messages of servers, not their timing."""
NODE = Path(__file__).parents[1] / "node/node_modules/.bin"
SERVER = Path(__file__).with_name("scripted_server.py")


class LspWorkspace:
    """A workspace with a scripted language server for `.zz` files, whose behaviour is set by files in `folder`."""

    def __init__(self, one: ToolClient, folder: Path) -> None:
        self.one = one
        self.folder = folder
        self.project = one.project

    def command(self, *words: str) -> list[str]:
        return [str(SERVER), str(self.folder), *words]

    async def configure_server(self, *words: str, **more: object) -> None:
        """Configure the scripted server; `words` are added to its command line."""
        ours = {"command": sys.executable, "args": self.command(*words), "filetypes": ["zz"], **more}
        await self.one.client.config_set(self.one.workspace, "lsp.ours", ours, scope=1)

    def set_behaviour(self, *words: str) -> None:
        (self.folder / "how").write_text(" ".join(words))

    def start(self, *words: str) -> None:
        (self.folder / "start").write_text(" ".join(words))

    def received(self, method: str = "") -> list[dict[str, Any]]:
        """Return the messages that the scripted server has received."""
        file = self.folder / "received"
        lines = file.read_text().splitlines() if file.exists() else []
        output = [json.loads(line) for line in lines]
        return [message for message in output if not method or message.get("method") == method]

    @property
    def manager(self) -> LspManager:
        return self.one.server.manager.handle(self.one.workspace).services.extensions.lsp.manager

    def set_wait_limits(self, times: WaitLimits) -> None:
        """Set the wait limits of a change."""
        self.one.server.manager.handle(self.one.workspace).services.extensions.lsp.change_limits = times

    async def infos(self) -> dict[str, LspInfo]:
        return await self.one.client.list_lsps(self.one.workspace)

    async def wait_for_server_state(self, state: LspState, name: str = "ours") -> LspInfo:
        async with asyncio.timeout(30):
            while (info := (await self.infos()).get(name)) is None or info.state != state:
                pass
        return info

    async def do(self, *calls: tuple[str, object], session: str | None = None) -> list[ToolResult]:
        return await self.one.call_tools_and_wait(*calls, session=session)  # type: ignore[arg-type]

    async def call_tool(self, call: tuple[str, object], session: str) -> str:
        (result,) = await self.do(call, session=session)
        assert not result.is_error, result.content
        return result.content


@asynccontextmanager
async def lsp_workspace(
    *words: str,
    path: Sequence[Path] = (),
    directory: ServerDirectory | None = None,
    graces: GracePeriods | None = None,
    yolo: bool = True,
    is_set_up: bool = True,
) -> AsyncIterator[LspWorkspace]:
    """Open a workspace. `path` has directories that are searched for language servers before the usual ones."""
    env = (f"PATH={':'.join([*map(str, path), '/usr/local/bin', '/usr/bin', '/bin'])}", f"HOME={os.environ['HOME']}")
    async with server_directory() as own, tool_client(directory or own, env=env, graces=graces, yolo=yolo) as one:
        folder = one.server.directory.root / "ours"
        folder.mkdir(exist_ok=True)
        made = LspWorkspace(one, folder)
        made.set_wait_limits(PATIENT)
        if is_set_up:
            await made.configure_server(*words)
        yield made
