"""What a run works with: everything of the outside that the step loop uses."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from holdfast.domain.asks import QuestionAnswer
from holdfast.domain.errors import ToolError
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.surroundings import Surroundings
from holdfast.domain.tools import Inquiry, Permit, ToolContext
from holdfast.engine.crews import Crews
from holdfast.engine.ports import Ledger, Lookout, Models, Permissions, Tools
from holdfast.engine.settings import EngineSettings

__all__ = ["Farewell", "Kit", "NothingAsked", "text"]


@cache
def text(name: str) -> str:
    """One of the texts written for models that stand beside this code."""
    return Path(__file__).with_name("texts").joinpath(name).read_text("utf-8")


Farewell: TypeAlias = Callable[[RunId], Awaitable[None]]


class NothingAsked:
    """Lets every tool act: for workspaces in which somebody else is on guard, such as a test."""

    async def permit(self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False) -> None:
        return

    async def inquire(self, context: ToolContext, inquiry: Inquiry) -> tuple[QuestionAnswer, ...] | None:
        raise ToolError("Nobody can be asked here.")


class Kit(msgspec.Struct, frozen=True):
    workspace: WorkspaceId
    path: str
    ledger: Ledger
    models: Models
    tools: Tools
    settings: EngineSettings
    permissions: Permissions = NothingAsked()
    environment: Mapping[str, str] = {}
    lookout: Lookout | None = None
    crews: Crews = msgspec.field(default_factory=Crews)
    farewell: Farewell | None = None
    """Told of every run that did not complete, before its end is stored: what it left behind goes with it."""

    async def leave(self, run: RunId) -> None:
        """Whatever comes of it, the run ends."""
        if self.farewell is not None:
            try:
                async with asyncio.timeout(self.settings.closing):
                    await self.farewell(run)
            except Exception as error:
                context = {"message": f"what run {run} left behind could not be cleared away", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def surroundings(self, session: SessionId) -> Surroundings:
        return await self.lookout.look(session) if self.lookout else Surroundings(self.path)
