"""The commands of one workspace: those in files, skills that a person may call, and what others offer."""

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
    """Who offers commands that are not in files: prompts of MCP servers, skills."""

    def commands(self) -> Sequence[CommandNote]:
        """What is offered now. Never waits."""

    async def expand(self, name: str, arguments: str, given: Mapping[str, str]) -> str | None:
        """The prompt that a command stands for: `arguments` is what was typed after its name, `given` are named ones.
        None if there is no such command. Raises `HoldfastError` for one that cannot be had.
        """


class FoundCommands(msgspec.Struct, frozen=True):
    """One look. Of two with the same name the project's stands above the user's."""

    usable: tuple[Command, ...] = ()
    problems: tuple[Problem, ...] = ()
    hidden: tuple[Command, ...] = ()
    """Below another of the same name."""


class Commands(Looking[FoundCommands]):
    """Files are looked at when somebody asks for the list, or sends something that looks like a command."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._trust = ground.configuration.trust
        self._providers: list[CommandProvider] = []
        shelf = Shelf("files", read_command)
        folders = command_folders(ground.configuration.places, environment)
        super().__init__(Watch(lambda: _found(shelf.look(folders)), FoundCommands()))

    def offer(self, provider: CommandProvider) -> None:
        """From now on its commands are known too. Files stand above providers, earlier ones above later ones."""
        self._providers.append(provider)

    async def listed(self) -> tuple[CommandNote, ...]:
        """All that can be sent, by name."""
        found = await self.fresh()
        notes = {note.name: note for provider in reversed(self._providers) for note in provider.commands()}
        notes |= {command.name: self._note(command) for command in found.usable}
        return tuple(notes[name] for name in sorted(notes))

    async def brief(self, prompt: str, given: Mapping[str, str] | None = None) -> Brief | None:
        """What a prompt of the form `/name …` stands for; None if it is none, or nobody knows the name."""
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
        """The keys of its front matter that have no effect until somebody trusts the file."""
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
    """By its whole name, with or without whose it is; or by its last piece, where only one is meant."""
    for prefix in ("", *_PREFIXES):
        if name.startswith(prefix):
            wanted = name.removeprefix(prefix)
            owner = prefix.removesuffix(":")
            found = [item for item in commands if item.name == wanted and owner in ("", item.owner)]
            if found:
                return found[-1]
    last = [item for item in commands if item.name.rpartition(":")[2] == name]
    return last[0] if len(last) == 1 else None
