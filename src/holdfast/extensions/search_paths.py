"""Directories of skills, commands, agents and hooks, with their owner and dialect.

Later directories take precedence over earlier ones: project over user, our own names over those of other programs.
"""

import os
from collections.abc import Mapping
from posixpath import join
from typing import Literal, TypeAlias

import msgspec

from holdfast.config.locations import SettingsLocations

__all__ = [
    "Dialect",
    "Owner",
    "SearchPath",
    "agent_folders",
    "claude_files",
    "command_folders",
    "our_model",
    "skill_folders",
    "their_event",
]


Owner: TypeAlias = Literal["builtin", "user", "project"]
Dialect: TypeAlias = Literal["holdfast", "crush", "claude"]

_PROJECT_SKILLS = (".agents/skills", ".crush/skills", ".claude/skills", ".cursor/skills", ".holdfast/skills")
_PROJECT_COMMANDS: tuple[tuple[str, Dialect], ...] = (
    (".crush/commands", "crush"),
    (".claude/commands", "claude"),
    (".holdfast/commands", "holdfast"),
)
_PROJECT_AGENTS: tuple[tuple[str, Dialect], ...] = ((".claude/agents", "claude"), (".holdfast/agents", "holdfast"))


class SearchPath(msgspec.Struct, frozen=True):
    """A directory or a file that may not exist. `within` is set for project folders: symbolic links
    must not leave it.
    """

    path: str
    owner: Owner
    dialect: Dialect = "holdfast"
    within: str = ""


def skill_folders(
    places: SettingsLocations, environment: Mapping[str, str], more: tuple[str, ...] = ()
) -> tuple[SearchPath, ...]:
    """Return the directories of skills. `more` are those of the settings; relative ones are resolved against the
    workspace.
    """
    home, config = _home(environment), _config(environment)
    own = (
        environment.get("CRUSH_SKILLS_DIR") or join(config, "crush/skills"),
        join(config, "agents/skills"),
        join(home, ".agents/skills"),
        join(_claude(environment), "skills"),
        join(os.path.dirname(places.user_file), "skills"),
        *(join(places.directory, os.path.expanduser(path)) for path in more),
    )
    builtin = SearchPath(join(os.path.dirname(__file__), "skills/builtin"), "builtin")
    project = (join(place, name) for place in _project(places) for name in _PROJECT_SKILLS)
    return _unique(
        builtin,
        *(SearchPath(path, "user") for path in own),
        *(SearchPath(path, "project", within=places.root) for path in project),
    )


def command_folders(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[SearchPath, ...]:
    """Return the directories of commands."""
    home = _home(environment)
    return _unique(
        SearchPath(join(_config(environment), "crush/commands"), "user", "crush"),
        SearchPath(join(home, ".crush/commands"), "user", "crush"),
        SearchPath(join(_claude(environment), "commands"), "user", "claude"),
        SearchPath(join(os.path.dirname(places.user_file), "commands"), "user"),
        *_of_project(places, _PROJECT_COMMANDS),
    )


def agent_folders(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[SearchPath, ...]:
    """Return the directories of agents."""
    return _unique(
        SearchPath(join(_claude(environment), "agents"), "user", "claude"),
        SearchPath(join(os.path.dirname(places.user_file), "agents"), "user"),
        *_of_project(places, _PROJECT_AGENTS),
    )


def claude_files(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[SearchPath, ...]:
    """Return the settings files of Claude Code, which may contain hooks."""
    names: tuple[tuple[str, Dialect], ...] = (
        (".claude/settings.json", "claude"),
        (".claude/settings.local.json", "claude"),
    )
    return _unique(
        SearchPath(join(_claude(environment), "settings.json"), "user", "claude"), *_of_project(places, names)
    )


def _unique(*folders: SearchPath) -> tuple[SearchPath, ...]:
    """Remove duplicates. In the home directory a path can be both the user's and the project's; the user's is kept."""
    kept: dict[str, SearchPath] = {}
    for folder in folders:
        kept.setdefault(os.path.normpath(folder.path), folder)
    return tuple(kept.values())


def _of_project(places: SettingsLocations, names: tuple[tuple[str, Dialect], ...]) -> tuple[SearchPath, ...]:
    return tuple(
        SearchPath(join(place, name), "project", dialect, places.root)
        for place in _project(places)
        for name, dialect in names
    )


def _project(places: SettingsLocations) -> tuple[str, ...]:
    """Return the root of the repository and the workspace directory."""
    return (places.root,) if places.root == places.directory else (places.root, places.directory)


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or "/"


def _config(environment: Mapping[str, str]) -> str:
    chosen = environment.get("XDG_CONFIG_HOME", "")
    return chosen if chosen.startswith("/") else join(_home(environment), ".config")


def _claude(environment: Mapping[str, str]) -> str:
    return environment.get("CLAUDE_CONFIG_DIR") or join(_home(environment), ".claude")


# Mapping of Claude Code's model and event names to ours. Tool names are mapped in the domain. Pure.

_ALIASES = {"": "", "inherit": "", "default": "", "sonnet": "", "opus": "", "haiku": "small"}


def their_event(name: str) -> str:
    """Return Claude Code's name of an event, because hook scripts inspect it."""
    return "Stop" if name == "RunEnd" else name


def our_model(name: str) -> str:
    """Return `large`, `small` or a model name; empty for the default model."""
    return _ALIASES.get(name.strip().lower(), name.strip())
