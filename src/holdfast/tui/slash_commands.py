"""Slash commands: the app's own, and those of extensions."""

import re
import shlex
import time
from collections.abc import Sequence

import msgspec
from textual import work

from holdfast.client.errors import ClientError
from holdfast.domain.extensions import CommandNote
from holdfast.tui.base_app import Stage
from holdfast.tui.screens.dialogs import Form
from holdfast.tui.screens.picker import Choice, Picker
from holdfast.tui.widgets.composer import Composer

__all__ = ["COMMANDS", "Command", "Slashes", "typed"]


# The app's own commands, for the palette and for `/` in the editor. Pure.


class Command(msgspec.Struct, frozen=True):
    """A command. `name` is typed after the slash, `action` is the action of the app."""

    name: str
    title: str
    action: str
    key: str = ""


COMMANDS = (
    Command("new", "New session", "new_session", "ctrl+n"),
    Command("sessions", "Sessions: open, rename, delete", "sessions", "ctrl+s"),
    Command("models", "Choose a model, set a key", "models", "ctrl+l"),
    Command("effort", "How much the model thinks", "effort", "f2"),
    Command("changes", "Files this session changed; undo", "changes"),
    Command("runs", "Runs: what was asked, how it ended", "runs"),
    Command("jobs", "Background jobs", "jobs"),
    Command("extensions", "MCP servers, language servers, skills", "extensions"),
    Command("queue", "Prompts that wait", "queue_focus", "ctrl+t"),
    Command("back", "Take back prompts that were cancelled elsewhere", "take_back"),
    Command("find", "Find in the conversation", "find", "ctrl+f"),
    Command("recall", "Find a prompt you sent before", "recall", "ctrl+r"),
    Command("editor", "Write in your own editor", "editor", "ctrl+o"),
    Command("summarize", "Summarise this session", "summarize"),
    Command("init", "Describe this project in a file", "init"),
    Command("yolo", "Auto-approve: let tools act without asking, or not", "yolo", "ctrl+y"),
    Command("theme", "Choose a theme", "themes"),
    Command("fold", "Unfold or fold all tools and thoughts", "fold_all"),
    Command("help", "Keys", "help", "ctrl+g"),
    Command("quit", "Leave; runs go on", "leave", "ctrl+c"),
)


# Slash commands: the app's own, and those of extensions.

_FRESH = 5.0
"""Seconds for which a list of commands is reused."""
_MOST = 10
_ALONE = re.compile(r"/[\w:.-]+")
_OWN = {command.name: command for command in COMMANDS}


class Slashes(Stage):
    """Runs slash commands. Own commands act at once; those of extensions are sent as prompts, which the server
    expands.
    """

    _brought: Sequence[CommandNote] = ()
    _brought_at = -_FRESH

    @work
    async def action_commands(self) -> None:
        """Show all commands."""
        await self.read_commands()
        choices = [Choice(f"/{item.name}", item.title, f"/{item.name}  {item.key}".rstrip()) for item in COMMANDS]
        choices += [Choice(f"/{item.name}", f"/{item.name}", _about(item)) for item in self._others()]
        picked = await self.push_screen_wait(Picker("Commands", choices))
        if picked is not None:
            await self.run_slash(picked.value[1:])

    async def read_commands(self) -> None:
        """Fetch the commands of extensions. If the request fails only own commands are offered."""
        if time.monotonic() - self._brought_at <= _FRESH or not self.link.is_open:
            return
        try:
            self._brought = await self.link.client.list_commands(self.link.workspace)
        except ClientError:
            self._brought = ()
        # Set only after the request: typing on cancels it, and the next one must fetch again.
        self._brought_at = time.monotonic()

    def fitting_commands(self, letters: str) -> list[tuple[str, str]]:
        """Return the commands whose name contains the letters; those that begin with them first."""
        small = letters.lower()
        own = [(item.name, item.title) for item in COMMANDS]
        others = [(item.name, _about(item)) for item in self._others()]
        fitting = [(name, about) for name, about in (*own, *others) if small in name.lower()]
        fitting.sort(key=lambda item: not item[0].lower().startswith(small))
        return [(f"/{name}", about) for name, about in fitting[:_MOST]]

    def _others(self) -> list[CommandNote]:
        return [item for item in self._brought if item.name not in _OWN]

    def is_own(self, text: str) -> bool:
        """Return True if the text is one of the app's own commands, which may be sent before it is offered."""
        return text.startswith("/") and text[1:] in _OWN

    async def is_unknown(self, text: str) -> bool:
        """Return True if the text is only a command, and an unknown one: a typing error, which is not sent to the
        model.
        """
        if not _ALONE.fullmatch(text) or not self.link.is_open:
            return False
        try:
            known = await self.link.client.list_commands(self.link.workspace)
        except ClientError:
            return False
        return text[1:] not in {*_OWN, *(item.name for item in known)}

    async def run_slash(self, name: str) -> None:
        """Run an own command, or prepare or send one of an extension."""
        if name in _OWN:
            await self.run_action(_OWN[name].action)
            return
        note = next((item for item in self._brought if item.name == name), None)
        if note is None or (note.hint and not note.arguments):
            # The user types the arguments.
            self.editor.text = f"/{name} "
            self.editor.move_cursor(self.editor.document.end)
            self.editor.focus()
        elif note.arguments:
            self._fill_in(note)
        else:
            self.post_message(Composer.Sent(f"/{name}", queues=False))

    @work
    async def _fill_in(self, note: CommandNote) -> None:
        values = await self.push_screen_wait(Form(note))
        self.editor.focus()
        if values is not None:
            self.post_message(Composer.Sent(typed(note.name, values), queues=False))


def _about(note: CommandNote) -> str:
    """Return the first sentence of the description, and the source."""
    first = note.description.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return " · ".join(word for word in (first or note.hint, note.source) if word)


def typed(name: str, values: dict[str, str]) -> str:
    """Return a command with its arguments as a prompt."""
    given = [shlex.quote(f"{key}={value}") for key, value in values.items() if value]
    return " ".join((f"/{name}", *given))
