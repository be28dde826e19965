"""The slash commands of one workspace: files, user-invocable skills, and commands of other providers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.config.problems import Problem
from holdfast.domain.commands import CommandArgument, CommandNote, CommandSource
from holdfast.domain.runs import Brief
from holdfast.extensions.base import Ground
from holdfast.extensions.commands.expanding import expanded, invocation
from holdfast.extensions.commands.reading import Command, named_arguments, read_command
from holdfast.extensions.folders import command_folders
from holdfast.extensions.shelves import Shelf
from holdfast.extensions.watch import Looking, Watch

__all__ = ["CommandProvider", "Commands", "FoundCommands"]

_PREFIXES = ("user:", "project:")


class CommandProvider(Protocol):
    """Provides commands that are not files: MCP prompts and skills."""

    def commands(self) -> Sequence[CommandNote]:
        """Return the current commands. Never blocks."""

    async def expand(self, name: str, arguments: str, given: Mapping[str, str]) -> str | None:
        """Return the prompt of a command. `arguments` is the text after its name, `given` are named arguments. Returns
        None for an unknown command. Raises `HoldfastError` if the command fails.
        """


class FoundCommands(msgspec.Struct, frozen=True):
    """Result of a scan. Project commands take precedence over user commands of the same name."""

    usable: tuple[Command, ...] = ()
    problems: tuple[Problem, ...] = ()
    hidden: tuple[Command, ...] = ()
    """Commands with the same name as one of higher precedence."""


class Commands(Looking[FoundCommands]):
    """Scans when the list is requested, or when a prompt resembles a command."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._trust = ground.configuration.trust
        self._providers: list[CommandProvider] = []
        shelf = Shelf("files", read_command)
        folders = command_folders(ground.configuration.places, environment)
        super().__init__(Watch(lambda: _found(shelf.look(folders)), FoundCommands()))

    def offer(self, provider: CommandProvider) -> None:
        """Add a provider. Files take precedence over providers, and earlier providers over later ones."""
        self._providers.append(provider)

    async def listed(self) -> tuple[CommandNote, ...]:
        """Return all commands, sorted by name."""
        found = await self.fresh()
        notes = {note.name: note for provider in reversed(self._providers) for note in provider.commands()}
        notes |= {command.name: self._note(command) for command in found.usable}
        return tuple(notes[name] for name in sorted(notes))

    async def brief(self, prompt: str, given: Mapping[str, str] | None = None) -> Brief | None:
        """Expand a prompt of the form `/name …`. Returns None for other prompts and unknown names."""
        called = invocation(prompt)
        if called is None:
            return None
        name, arguments = called
        command = _named(name, (await self.fresh()).usable)
        if command is not None:
            text = expanded(command.body, arguments, given)
            if self.withheld(command):
                return Brief(text, command.name)
            return Brief(text, command.name, command.model, command.allow)
        for provider in self._providers:
            if (said := await provider.expand(name, arguments, given or {})) is not None:
                return Brief(said, name)
        return None

    def withheld(self, command: Command) -> tuple[str, ...]:
        """Return the front matter keys that have no effect until the file is trusted."""
        if not command.needs or self._trust.is_file_trusted(command.path, command.digest):
            return ()
        return tuple(key for key, _ in command.needs)

    def _note(self, command: Command) -> CommandNote:
        source: CommandSource = "project" if command.owner == "project" else "user"
        withheld = self.withheld(command)
        return CommandNote(
            command.name,
            source,
            command.description,
            command.hint,
            tuple(CommandArgument(name) for name in named_arguments(command.body)),
            command.path,
            "" if withheld else command.model,
            () if withheld else command.allow,
            withheld,
        )


def _found(commands: Sequence[Command]) -> FoundCommands:
    usable = {command.name: command for command in commands if not command.error}
    hidden = tuple(command for command in commands if not command.error and usable[command.name] is not command)
    problems = tuple(problem for item in commands for problem in item.problems)
    return FoundCommands(tuple(usable.values()), problems, hidden)


def _named(name: str, commands: Sequence[Command]) -> Command | None:
    """Find a command by its full name, with or without an owner prefix, or by its last component if that is unique."""
    for prefix in ("", *_PREFIXES):
        if name.startswith(prefix):
            wanted = name.removeprefix(prefix)
            owner = prefix.removesuffix(":")
            found = [item for item in commands if item.name == wanted and owner in ("", item.owner)]
            if found:
                return found[-1]
    last = [item for item in commands if item.name.rpartition(":")[2] == name]
    return last[0] if len(last) == 1 else None
