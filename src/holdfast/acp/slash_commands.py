"""Slash commands for editors: built-in ones, and those of the workspace."""

from holdfast.acp.approvals import BridgeContext
from holdfast.acp.tool_calls import Json
from holdfast.client.errors import ClientError
from holdfast.domain.extensions import CommandInfo
from holdfast.domain.files import UndoReport, UndoRequest
from holdfast.domain.ids import SessionId

__all__ = ["BUILT_IN", "SlashCommands"]

BUILT_IN = {
    "init": "Analyse this project and write instructions for working on it to AGENTS.md or the configured file",
    "summarize": "Summarise this session to free space in the context",
    "undo": "Undo the file changes of the last run",
}


class SlashCommands:
    """Slash commands of a session."""

    def __init__(self, bridge: BridgeContext, session: SessionId) -> None:
        self._bridge = bridge
        self._session = session

    async def available_update(self) -> Json:
        """Return the update that lists the available commands."""
        commands: list[Json] = [{"name": name, "description": text} for name, text in BUILT_IN.items()]
        try:
            found = await self._bridge.client.list_commands(self._bridge.workspace)
        except ClientError:
            found = ()
        commands += [_to_command(note) for note in found if note.name not in BUILT_IN]
        return {"sessionUpdate": "available_commands_update", "availableCommands": commands}

    async def execute(self, name: str, _: str) -> str:
        """Execute a built-in command. Returns the prompt to send, or an empty string if nothing is to be sent."""
        client, workspace = self._bridge.client, self._bridge.workspace
        match name:
            case "init":
                return (await client.init_prompt(workspace)).prompt
            case "summarize":
                await client.summarize(workspace, self._session)
                self._send_text("The session was summarised.")
            case _:
                report = await client.undo_changes(workspace, UndoRequest(session_id=self._session))
                self._send_text(_undo_text(report))
        return ""

    def _send_text(self, text: str) -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self._bridge.send_updates(self._session, [update])


def _to_command(note: CommandInfo) -> Json:
    hint = note.hint or " ".join(f"<{item.name}>" for item in note.arguments)
    more = {"input": {"hint": hint}} if hint else {}
    return {"name": note.name, "description": note.description or f"/{note.name}", **more}


def _undo_text(report: UndoReport) -> str:
    lines = [f"- {file.path}: {file.outcome}{f' ({file.reason})' if file.reason else ''}" for file in report.files]
    head = "Undone:" if report.is_done else "Nothing was undone:"
    return "\n".join([head, *lines]) if lines else "There is nothing to undo."
