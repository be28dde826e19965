"""Trust for project files that execute programs or extend permissions: they take effect once the user trusts them.

Our own settings are handled by `config/trust.py`. This module covers hooks in Claude Code's settings, and the front
matter of commands and agents. A file is trusted as a whole, by its contents, because the permissions of a command
cannot be judged without its instructions.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.config.configuration import Project
from holdfast.config.locations import SettingsLocations
from holdfast.config.trust import TrustStore, project_digest
from holdfast.extensions.agents import AgentFile, parse_agent
from holdfast.extensions.commands import CommandFile, parse_command
from holdfast.extensions.hooks.hooks import load_claude_settings
from holdfast.extensions.markdown_dir import MarkdownDirectory
from holdfast.extensions.search_paths import agent_directories, claude_settings_files, command_directories

__all__ = ["TrustableFile", "combined_digest", "find_trustable_files", "grant_trust", "revoke_trust", "untrusted_files"]


class TrustableFile(msgspec.Struct, frozen=True):
    """A project file that requires trust. `entries` lists the relevant keys with their lines and values."""

    path: str
    digest: str
    entries: tuple[tuple[str, int, str], ...]


def find_trustable_files(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[TrustableFile, ...]:
    """Return all such files, trusted or not. Blocks."""
    commands: MarkdownDirectory[CommandFile] = MarkdownDirectory("files", parse_command)
    agents: MarkdownDirectory[AgentFile] = MarkdownDirectory("files", parse_agent)
    return (
        *_hooks(places, environment),
        *(_from_command(item) for item in commands.scan(command_directories(places, environment)) if item.trust_keys),
        *(_agent_file(item) for item in agents.scan(agent_directories(places, environment)) if item.trust_keys),
    )


def untrusted_files(files: Sequence[TrustableFile], trust: TrustStore) -> tuple[TrustableFile, ...]:
    """Return the files that are not trusted."""
    return tuple(file for file in files if not trust.is_file_trusted(file.path, file.digest))


def combined_digest(project: str, files: Sequence[TrustableFile]) -> str:
    """Return one digest of everything shown in a trust prompt: the settings and each file."""
    if not files:
        return project
    return project_digest([("", project.encode()), *((file.path, file.digest.encode()) for file in files)])


def grant_trust(trust: TrustStore, project: Project, files: Sequence[TrustableFile], *, at: float) -> None:
    """Trust the project settings as they were last read, even if there are none, and these files. Blocks."""
    trust.trust(project.anchor, project.digest, at=at)
    if files:
        trust.trust_files({file.path: file.digest for file in files}, at=at)


def revoke_trust(trust: TrustStore, project: Project, files: Sequence[TrustableFile]) -> bool:
    """Revoke the trust. Returns whether there was any. Blocks."""
    was_trusted = trust.revoke(project.anchor)
    return trust.revoke_files(file.path for file in files) or was_trusted


def _hooks(places: SettingsLocations, environment: Mapping[str, str]) -> Iterator[TrustableFile]:
    for folder in claude_settings_files(places, environment):
        file = load_claude_settings(folder) if folder.owner == "project" else None
        if file is not None and (file.hooks.hooks or file.hooks.disables_all):
            entries = tuple((f"hooks.{hook.event}", hook.line, hook.command) for hook in file.hooks.hooks)
            disables = (("disableAllHooks", 0, "true"),) if file.hooks.disables_all else ()
            yield TrustableFile(folder.path, file.digest, entries + disables)


def _from_command(command: CommandFile) -> TrustableFile:
    values = {"model": command.model, "allowed-tools": ", ".join(command.allow)}
    entries = tuple((key, line, values.get(key, "")) for key, line in command.trust_keys)
    return TrustableFile(command.path, command.digest, entries)


def _agent_file(agent: AgentFile) -> TrustableFile:
    tools = "all" if agent.tools is None else ", ".join(agent.tools)
    values = {"model": agent.model, "tools": tools}
    return TrustableFile(
        agent.path, agent.digest, tuple((key, line, values.get(key, "")) for key, line in agent.trust_keys)
    )
