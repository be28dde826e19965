"""Slash commands for editors: built-in ones, and those of the workspace."""

from typing import Protocol

from holdfast.acp.tool_calls import Json
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.domain.extensions import CommandNote
from holdfast.domain.files import UndoAsk, UndoReport
from holdfast.domain.ids import SessionId, WorkspaceId

__all__ = ["BUILT_IN", "SlashCommands"]

BUILT_IN = {
    "init": "Look at this project and write down, in AGENTS.md or the file that is set, how to work on it",
    "summarize": "Summarise this session, to make room in the context",
    "undo": "Take back what the last run changed in files",
}


class _Ground(Protocol):
    @property
    def client(self) -> Client:
        """The client of the server."""

    @property
    def workspace(self) -> WorkspaceId:
        """The open workspace."""

    def tell(self, session: SessionId, updates: list[Json]) -> None:
        """Send updates of a session to the editor."""


class SlashCommands:
    """Slash commands of a session."""

    def __init__(self, ground: _Ground, session: SessionId) -> None:
        self._ground = ground
        self._session = session

    async def available(self) -> Json:
        """Return the update that lists the available commands."""
        commands: list[Json] = [{"name": name, "description": text} for name, text in BUILT_IN.items()]
        try:
            found = await self._ground.client.list_commands(self._ground.workspace)
        except ClientError:
            found = ()
        commands += [_offered(note) for note in found if note.name not in BUILT_IN]
        return {"sessionUpdate": "available_commands_update", "availableCommands": commands}

    async def do(self, name: str, _: str) -> str:
        """Execute a built-in command. Returns the prompt to send, or an empty string if nothing is to be sent."""
        client, workspace = self._ground.client, self._ground.workspace
        match name:
            case "init":
                return (await client.init_prompt(workspace)).prompt
            case "summarize":
                await client.summarize(workspace, self._session)
                self._say("The session was summarised.")
            case _:
                report = await client.undo_changes(workspace, UndoAsk(session_id=self._session))
                self._say(_told(report))
        return ""

    def _say(self, text: str) -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self._ground.tell(self._session, [update])


def _offered(note: CommandNote) -> Json:
    hint = note.hint or " ".join(f"<{item.name}>" for item in note.arguments)
    more = {"input": {"hint": hint}} if hint else {}
    return {"name": note.name, "description": note.description or f"/{note.name}", **more}


def _told(report: UndoReport) -> str:
    lines = [f"- {file.path}: {file.outcome}{f' ({file.reason})' if file.reason else ''}" for file in report.files]
    head = "Taken back:" if report.is_done else "Nothing was taken back:"
    return "\n".join([head, *lines]) if lines else "There is nothing to take back."
