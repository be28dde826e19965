"""Trust for project files that execute programs or extend permissions: they take effect once the user trusts them.

Our own settings are handled by `config/trust.py`. This module covers hooks in Claude Code's settings, and the front
matter of commands and agents. A file is trusted as a whole, by its contents, because the permissions of a command
cannot be judged without its instructions.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.config.locations import SettingsLocations
from holdfast.config.trust import TrustStore, project_digest
from holdfast.extensions.agents import AgentFile, read_agent
from holdfast.extensions.commands import Command, read_command
from holdfast.extensions.hooks.hooks import load_claude
from holdfast.extensions.markdown_dir import MarkdownDirectory
from holdfast.extensions.search_paths import agent_folders, claude_files, command_folders

__all__ = ["TrustableFile", "brought_files", "digest_with", "give_trust", "take_trust_back", "untrusted"]


class TrustableFile(msgspec.Struct, frozen=True):
    """A project file that requires trust. `wants` lists the relevant keys with their lines and values."""

    path: str
    digest: str
    wants: tuple[tuple[str, int, str], ...]


def brought_files(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[TrustableFile, ...]:
    """Return all such files, trusted or not. Blocks."""
    commands: MarkdownDirectory[Command] = MarkdownDirectory("files", read_command)
    agents: MarkdownDirectory[AgentFile] = MarkdownDirectory("files", read_agent)
    return (
        *_hooks(places, environment),
        *(_of_command(item) for item in commands.look(command_folders(places, environment)) if item.needs),
        *(_of_agent(item) for item in agents.look(agent_folders(places, environment)) if item.needs),
    )


def untrusted(files: Sequence[TrustableFile], trust: TrustStore) -> tuple[TrustableFile, ...]:
    """Return the files that are not trusted."""
    return tuple(file for file in files if not trust.is_file_trusted(file.path, file.digest))


def digest_with(project: str, files: Sequence[TrustableFile]) -> str:
    """Return one digest of everything shown in a trust prompt: the settings and each file."""
    if not files:
        return project
    return project_digest([("", project.encode()), *((file.path, file.digest.encode()) for file in files)])


def give_trust(configuration: Configuration, files: Sequence[TrustableFile], *, at: float) -> None:
    """Trust the project settings as they were last read, even if there are none, and these files."""
    project = configuration.snapshot().project
    configuration.trust.trust(project.anchor, project.digest, at=at)
    if files:
        configuration.trust.trust_files({file.path: file.digest for file in files}, at=at)


def take_trust_back(configuration: Configuration, files: Sequence[TrustableFile]) -> bool:
    """Revoke the trust. Returns whether there was any."""
    was_trusted = configuration.trust.revoke(configuration.snapshot().project.anchor)
    return configuration.trust.revoke_files(file.path for file in files) or was_trusted


def _hooks(places: SettingsLocations, environment: Mapping[str, str]) -> Iterator[TrustableFile]:
    for folder in claude_files(places, environment):
        file = load_claude(folder) if folder.owner == "project" else None
        if file is not None and (file.hooks.hooks or file.hooks.disables_all):
            wants = tuple((f"hooks.{hook.event}", hook.line, hook.command) for hook in file.hooks.hooks)
            disables = (("disableAllHooks", 0, "true"),) if file.hooks.disables_all else ()
            yield TrustableFile(folder.path, file.digest, wants + disables)


def _of_command(command: Command) -> TrustableFile:
    values = {"model": command.model, "allowed-tools": ", ".join(command.allow)}
    wants = tuple((key, line, values.get(key, "")) for key, line in command.needs)
    return TrustableFile(command.path, command.digest, wants)


def _of_agent(agent: AgentFile) -> TrustableFile:
    tools = "all" if agent.tools is None else ", ".join(agent.tools)
    values = {"model": agent.model, "tools": tools}
    return TrustableFile(agent.path, agent.digest, tuple((key, line, values.get(key, "")) for key, line in agent.needs))
