"""Client methods for skills, commands and agents."""

from collections.abc import Mapping

from holdfast.client.calls import Calls
from holdfast.domain.commands import AgentNote, CommandNote
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.brought import CommandAsk, CommandText, SkillAsk, SkillInfo, SkillText

__all__ = ["BroughtCalls"]


class BroughtCalls(Calls):
    """Routes for skills, commands and agents."""

    async def list_skills(self, workspace: WorkspaceId) -> tuple[SkillInfo, ...]:
        """List the skills of a workspace."""
        return await self._ask(tuple[SkillInfo, ...], "list_skills", id=workspace)

    async def read_skill(self, workspace: WorkspaceId, skill: str) -> SkillText:
        """Return the text of a skill, by its id or its name."""
        return await self._ask(SkillText, "read_skill", body=SkillAsk(skill), id=workspace)

    async def list_commands(self, workspace: WorkspaceId) -> tuple[CommandNote, ...]:
        """List the commands that can be sent as `/name …`."""
        return await self._ask(tuple[CommandNote, ...], "list_commands", id=workspace)

    async def expand_command(
        self, workspace: WorkspaceId, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> CommandText:
        """Return the expansion of a command. Prompts are also expanded by the server, so this is optional."""
        body = CommandAsk(prompt, dict(arguments or {}))
        return await self._ask(CommandText, "expand_command", body=body, id=workspace)

    async def list_agents(self, workspace: WorkspaceId) -> tuple[AgentNote, ...]:
        """List the agents that a prompt can mention with an `@`."""
        return await self._ask(tuple[AgentNote, ...], "list_agents", id=workspace)
