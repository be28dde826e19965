"""What a run works with: everything of the outside that the step loop uses."""

from functools import cache
from importlib import resources

import msgspec

from holdfast.domain.ids import WorkspaceId
from holdfast.engine.ports import Ledger, Models, Tools
from holdfast.engine.settings import EngineSettings

__all__ = ["Kit", "text"]


@cache
def text(name: str) -> str:
    """One of the texts written for models that stand beside this code."""
    return resources.files("holdfast.engine").joinpath("texts", name).read_text("utf-8")


class Kit(msgspec.Struct, frozen=True):
    workspace: WorkspaceId
    path: str
    ledger: Ledger
    models: Models
    tools: Tools
    settings: EngineSettings

    def system_prompt(self) -> str:
        return text("system.md").replace("{directory}", self.path)
