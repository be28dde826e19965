"""Methods for skills, commands and agents."""

from collections.abc import Mapping

from holdfast.client.calls import Calls
from holdfast.domain.commands import AgentNote, CommandNote
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.brought import CommandAsk, CommandText, SkillAsk, SkillInfo, SkillText

__all__ = ["BroughtCalls"]


class BroughtCalls(Calls):
    """What people bring along in files."""

    async def list_skills(self, workspace: WorkspaceId) -> tuple[SkillInfo, ...]:
        return await self._ask(tuple[SkillInfo, ...], "list_skills", id=workspace)

    async def read_skill(self, workspace: WorkspaceId, skill: str) -> SkillText:
        """By its id, or by its name."""
        return await self._ask(SkillText, "read_skill", body=SkillAsk(skill), id=workspace)

    async def list_commands(self, workspace: WorkspaceId) -> tuple[CommandNote, ...]:
        """All that can be sent as `/name …`."""
        return await self._ask(tuple[CommandNote, ...], "list_commands", id=workspace)

    async def expand_command(
        self, workspace: WorkspaceId, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> CommandText:
        """What a command stands for. A prompt need not be expanded before it is sent."""
        body = CommandAsk(prompt, dict(arguments or {}))
        return await self._ask(CommandText, "expand_command", body=body, id=workspace)

    async def list_agents(self, workspace: WorkspaceId) -> tuple[AgentNote, ...]:
        """All that a prompt may name with an `@`."""
        return await self._ask(tuple[AgentNote, ...], "list_agents", id=workspace)
