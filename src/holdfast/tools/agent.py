"""The `agent` tool: runs a sub-agent, either the read-only default or one that the user has defined."""

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.model_requests import ToolSpec
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool

__all__ = ["Agent", "AgentArguments"]

_MAX_LIST_LENGTH = 8_000


class AgentArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`prompt` is the task, with all the context that the sub-agent needs."""

    prompt: str
    agent: Annotated[str, Meta(description="The agent to run. Without one, a read-only sub-agent.")] = ""


class Agent(BaseTool[AgentArguments]):
    """Runs a sub-agent in a session of its own, which screens show below this call.

    `offered` are the agents there are now: their names, and when to send them.
    """

    name = "agent"
    is_parallel = True
    arguments = AgentArguments

    def __init__(self, offered: Callable[[], Sequence[tuple[str, str]]] = tuple) -> None:
        super().__init__()
        self._offered = offered
        self._listed_agents: Sequence[tuple[str, str]] = ()
        self._listed_spec = self._spec

    @property
    def spec(self) -> ToolSpec:
        """Specification with the names and descriptions of the available agents."""
        offered = self._offered()
        if offered != self._listed_agents:
            description = self._spec.description + _agent_list(offered)
            self._listed_agents, self._listed_spec = (
                offered,
                msgspec.structs.replace(self._spec, description=description),
            )
        return self._listed_spec

    async def act(self, context: ToolContext, arguments: AgentArguments) -> ToolOutcome:
        """Run the sub-agent and return its final text."""
        if not arguments.prompt.strip():
            raise ToolError("The prompt is empty: describe the task of the sub-agent.")
        requested = arguments.agent.strip().removeprefix("@")
        if not requested:
            return ToolOutcome(await context.run_subagent(SubagentTask(arguments.prompt, "New Agent Session")))
        names = [name for name, _ in self._offered()]
        name = next((name for name in names if name.lower() == requested.lower()), None)
        if name is None:
            known = f"There is: {', '.join(names)}." if names else "There are none."
            raise ToolError(f"There is no agent called {requested}. {known}")
        return ToolOutcome(await context.run_subagent(SubagentTask(arguments.prompt, name, f"agent:{name}")))


def _agent_list(agents: Sequence[tuple[str, str]]) -> str:
    """Return the list of agents for the tool description; without descriptions once it gets too long."""
    if not agents:
        return ""
    lines = ["", "", "The tool `agent` runs one of these, which have their own instructions, tools and models:"]
    room = _MAX_LIST_LENGTH
    for name, description in agents:
        line = f"- {name}: {' '.join(description.split())}"
        lines.append(line if len(line) <= room else f"- {name}")
        room = max(0, room - len(lines[-1]))
    return "\n".join(lines)
