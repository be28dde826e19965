"""Slash commands: the app's own, and those of extensions.

Own commands run an action of the app at once. Commands of extensions are sent as prompts, which the server expands.
"""

import re
import shlex
import time
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.client.errors import ClientError
from holdfast.domain.extensions import CommandInfo
from holdfast.tui.app_context import AppContext
from holdfast.tui.screens.dialogs import Form
from holdfast.tui.screens.picker import Picker, PickerItem

__all__ = ["COMMANDS", "SlashCommand", "SlashCommands", "command_prompt"]

_MAX_AGE = 5.0
"""Seconds for which a list of commands is reused."""
_MAX_COMPLETIONS = 10
_COMMAND_ONLY = re.compile(r"/[\w:.-]+")


class SlashCommand(msgspec.Struct, frozen=True):
    """A command. `name` is typed after the slash, `action` is the action of the app."""

    name: str
    title: str
    action: str
    key: str = ""


COMMANDS = (
    SlashCommand("new", "New session", "new_session", "ctrl+n"),
    SlashCommand("sessions", "Sessions: open, rename, delete", "sessions", "ctrl+s"),
    SlashCommand("models", "Choose a model, set a key", "models", "ctrl+l"),
    SlashCommand("effort", "Reasoning effort of the model", "effort", "f2"),
    SlashCommand("changes", "Files that this session changed; undo", "changes"),
    SlashCommand("runs", "Runs: prompts and outcomes", "runs"),
    SlashCommand("jobs", "Background jobs", "jobs"),
    SlashCommand("extensions", "MCP servers, language servers, skills", "extensions"),
    SlashCommand("queue", "Queued prompts", "queue_focus", "ctrl+t"),
    SlashCommand("back", "Restore prompts cancelled elsewhere", "take_back"),
    SlashCommand("find", "Find in the conversation", "find", "ctrl+f"),
    SlashCommand("recall", "Find an earlier prompt", "recall", "ctrl+r"),
    SlashCommand("editor", "Write in your own editor", "editor", "ctrl+o"),
    SlashCommand("summarize", "Summarise this session", "summarize"),
    SlashCommand("init", "Describe this project in a file", "init"),
    SlashCommand("yolo", "Auto-approve: let tools act without asking, or not", "yolo", "ctrl+y"),
    SlashCommand("theme", "Choose a theme", "themes"),
    SlashCommand("fold", "Fold or unfold tool calls and reasoning", "fold_all"),
    SlashCommand("help", "All keys", "help", "ctrl+g"),
    SlashCommand("quit", "Leave; runs continue", "leave", "ctrl+c"),
)
"""The app's own commands, for the palette and for `/` in the composer."""
_BUILTIN = {command.name: command for command in COMMANDS}


class SlashCommands:
    """Lists, completes and runs slash commands."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._extension_commands: Sequence[CommandInfo] = ()
        self._fetched_at = -_MAX_AGE

    async def choose(self) -> None:
        """Show all commands and run the one that the user chooses."""
        await self.refresh()
        items = [PickerItem(f"/{item.name}", item.title, f"/{item.name}  {item.key}".rstrip()) for item in COMMANDS]
        items += [PickerItem(f"/{item.name}", f"/{item.name}", _summary(item)) for item in self._not_shadowed()]
        picked = await self._context.show_dialog(Picker("Commands", items))
        if picked is not None:
            await self.run(picked.value[1:])

    async def refresh(self) -> None:
        """Fetch the commands of extensions. If the request fails only own commands are offered."""
        connection = self._context.connection
        if time.monotonic() - self._fetched_at <= _MAX_AGE or not connection.is_open:
            return
        try:
            self._extension_commands = await connection.client.list_commands(connection.workspace)
        except ClientError:
            self._extension_commands = ()
        # Set only after the request: further typing cancels it, and the next one must fetch again.
        self._fetched_at = time.monotonic()

    def completions(self, letters: str) -> list[tuple[str, str]]:
        """Return the commands whose name contains the letters; those that begin with them first."""
        small = letters.lower()
        own = [(item.name, item.title) for item in COMMANDS]
        others = [(item.name, _summary(item)) for item in self._not_shadowed()]
        found = [(name, summary) for name, summary in (*own, *others) if small in name.lower()]
        found.sort(key=lambda item: not item[0].lower().startswith(small))
        return [(f"/{name}", summary) for name, summary in found[:_MAX_COMPLETIONS]]

    def _not_shadowed(self) -> list[CommandInfo]:
        """Return the commands of extensions that do not have the name of an own one."""
        return [item for item in self._extension_commands if item.name not in _BUILTIN]

    def is_own(self, text: str) -> bool:
        """Return True if the text is one of the app's own commands, which may be sent before it is offered."""
        return text.startswith("/") and text[1:] in _BUILTIN

    async def is_unknown(self, text: str) -> bool:
        """Return True if the text is only a command, and an unknown one: a typing error, which is not sent to the
        model.
        """
        connection = self._context.connection
        if not _COMMAND_ONLY.fullmatch(text) or not connection.is_open:
            return False
        try:
            known = await connection.client.list_commands(connection.workspace)
        except ClientError:
            return False
        return text[1:] not in {*_BUILTIN, *(item.name for item in known)}

    async def run(self, name: str) -> None:
        """Run an own command, or prepare or send one of an extension."""
        if name in _BUILTIN:
            await self._context.run_action(_BUILTIN[name].action)
            return
        note = next((item for item in self._extension_commands if item.name == name), None)
        if note is None or (note.hint and not note.arguments):
            # The user types the arguments.
            self._context.composer.set_text(f"/{name} ")
            self._context.composer.focus()
        elif note.arguments:
            self._context.start(self._fill_in, note)
        else:
            self._context.submit(f"/{name}")

    async def _fill_in(self, note: CommandInfo) -> None:
        """Request the arguments of a command, and send it."""
        values = await self._context.show_dialog(Form(note))
        self._context.composer.focus()
        if values is not None:
            self._context.submit(command_prompt(note.name, values))


def _summary(note: CommandInfo) -> str:
    """Return the first sentence of the description, and the source."""
    first = note.description.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return " · ".join(word for word in (first or note.hint, note.source) if word)


def command_prompt(name: str, values: Mapping[str, str]) -> str:
    """Return a command with its arguments as a prompt."""
    arguments = [shlex.quote(f"{key}={value}") for key, value in values.items() if value]
    return " ".join((f"/{name}", *arguments))
