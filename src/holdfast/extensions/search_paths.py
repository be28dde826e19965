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
    "agent_directories",
    "claude_event_name",
    "claude_settings_files",
    "command_directories",
    "resolve_model_alias",
    "skill_directories",
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


def skill_directories(
    places: SettingsLocations, environment: Mapping[str, str], extra: tuple[str, ...] = ()
) -> tuple[SearchPath, ...]:
    """Return the directories of skills. `extra` are those of the settings; relative ones are resolved against the
    workspace.
    """
    home, config = _home(environment), _user_config_dir(environment)
    user_paths = (
        environment.get("CRUSH_SKILLS_DIR") or join(config, "crush/skills"),
        join(config, "agents/skills"),
        join(home, ".agents/skills"),
        join(_claude_config_dir(environment), "skills"),
        join(os.path.dirname(places.user_file), "skills"),
        *(join(places.directory, os.path.expanduser(path)) for path in extra),
    )
    builtin = SearchPath(join(os.path.dirname(__file__), "skills/builtin"), "builtin")
    project = (join(place, name) for place in _project_roots(places) for name in _PROJECT_SKILLS)
    return _unique(
        builtin,
        *(SearchPath(path, "user") for path in user_paths),
        *(SearchPath(path, "project", within=places.root) for path in project),
    )


def command_directories(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[SearchPath, ...]:
    """Return the directories of commands."""
    home = _home(environment)
    return _unique(
        SearchPath(join(_user_config_dir(environment), "crush/commands"), "user", "crush"),
        SearchPath(join(home, ".crush/commands"), "user", "crush"),
        SearchPath(join(_claude_config_dir(environment), "commands"), "user", "claude"),
        SearchPath(join(os.path.dirname(places.user_file), "commands"), "user"),
        *_project_paths(places, _PROJECT_COMMANDS),
    )


def agent_directories(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[SearchPath, ...]:
    """Return the directories of agents."""
    return _unique(
        SearchPath(join(_claude_config_dir(environment), "agents"), "user", "claude"),
        SearchPath(join(os.path.dirname(places.user_file), "agents"), "user"),
        *_project_paths(places, _PROJECT_AGENTS),
    )


def claude_settings_files(places: SettingsLocations, environment: Mapping[str, str]) -> tuple[SearchPath, ...]:
    """Return the settings files of Claude Code, which may contain hooks."""
    names: tuple[tuple[str, Dialect], ...] = (
        (".claude/settings.json", "claude"),
        (".claude/settings.local.json", "claude"),
    )
    return _unique(
        SearchPath(join(_claude_config_dir(environment), "settings.json"), "user", "claude"),
        *_project_paths(places, names),
    )


def _unique(*folders: SearchPath) -> tuple[SearchPath, ...]:
    """Remove duplicates. In the home directory a path can be both the user's and the project's; the user's is kept."""
    kept: dict[str, SearchPath] = {}
    for folder in folders:
        kept.setdefault(os.path.normpath(folder.path), folder)
    return tuple(kept.values())


def _project_paths(places: SettingsLocations, names: tuple[tuple[str, Dialect], ...]) -> tuple[SearchPath, ...]:
    return tuple(
        SearchPath(join(place, name), "project", dialect, places.root)
        for place in _project_roots(places)
        for name, dialect in names
    )


def _project_roots(places: SettingsLocations) -> tuple[str, ...]:
    """Return the root of the repository and the workspace directory."""
    return (places.root,) if places.root == places.directory else (places.root, places.directory)


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or "/"


def _user_config_dir(environment: Mapping[str, str]) -> str:
    chosen = environment.get("XDG_CONFIG_HOME", "")
    return chosen if chosen.startswith("/") else join(_home(environment), ".config")


def _claude_config_dir(environment: Mapping[str, str]) -> str:
    return environment.get("CLAUDE_CONFIG_DIR") or join(_home(environment), ".claude")


# Names of Claude Code that differ from ours. Tool names are mapped in the domain.

_MODEL_ALIASES = {"": "", "inherit": "", "default": "", "sonnet": "", "opus": "", "haiku": "small"}


def claude_event_name(name: str) -> str:
    """Return Claude Code's name of an event, because hook scripts inspect it."""
    return "Stop" if name == "RunEnd" else name


def resolve_model_alias(name: str) -> str:
    """Return `large`, `small` or a model name; empty for the default model."""
    return _MODEL_ALIASES.get(name.strip().lower(), name.strip())
