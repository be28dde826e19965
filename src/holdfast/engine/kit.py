"""What a run works with: everything of the outside that the step loop uses."""

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.surroundings import Surroundings
from holdfast.domain.tools import Permit, ToolContext
from holdfast.engine.crews import Crews
from holdfast.engine.ports import Ledger, Lookout, Models, Permissions, Tools
from holdfast.engine.settings import EngineSettings

__all__ = ["Kit", "NothingAsked", "text"]


@cache
def text(name: str) -> str:
    """One of the texts written for models that stand beside this code."""
    return resources.files("holdfast.engine").joinpath("texts", name).read_text("utf-8")


class NothingAsked:
    """Lets every tool act: for workspaces in which somebody else is on guard, such as a test."""

    async def permit(self, context: ToolContext, permit: Permit) -> None:
        return


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

    async def surroundings(self, session: SessionId) -> Surroundings:
        return await self.lookout.look(session) if self.lookout else Surroundings(self.path)
