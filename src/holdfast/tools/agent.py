"""Send a helper to look something up."""

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Errand, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool

__all__ = ["Agent", "AgentArguments"]


class AgentArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`prompt`: the task, with everything the helper needs to know."""

    prompt: str


class Agent(BaseTool[AgentArguments]):
    """The helper works in a session of its own, which screens show below this call."""

    name = "agent"
    is_parallel = True
    arguments = AgentArguments

    async def act(self, context: ToolContext, arguments: AgentArguments) -> ToolOutcome:
        if not arguments.prompt.strip():
            raise ToolError("The prompt is empty: say what the helper shall find out.")
        return ToolOutcome(await context.send(Errand(arguments.prompt, "New Agent Session")))
