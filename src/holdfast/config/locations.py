"""Where settings come from, lowest first: each file stands above those before it.

Everything is computed from a directory and an environment; only the search for the root of the repository looks
at the disk.
"""

import os
from collections.abc import Iterator, Mapping
from posixpath import join
from typing import Literal, TypeAlias

import msgspec

__all__ = ["Form", "Kind", "SettingsLocations", "SettingsSource", "locate_settings", "project_root"]

Form: TypeAlias = Literal["toml", "json", "mcp"]
"""`mcp` is JSON that speaks of MCP servers alone, as other programs write it."""

Kind: TypeAlias = Literal[
    "system",  # for everybody on this machine
    "crush",  # Crush's global file, and what Crush wrote by itself: read only
    "user",  # written by its user
    "project",  # comes with the directory: inert until it is trusted
    "wire",  # set by clients of the server
]
"""Whose word it is."""

PROJECT_FILES: tuple[tuple[str, Form], ...] = (
    (".mcp.json", "mcp"),
    ("crush.json", "json"),
    (".crush.json", "json"),
    ("holdfast.toml", "toml"),
    (".holdfast.toml", "toml"),
)

_SYSTEM = "/etc/holdfast/config.toml"


class SettingsSource(msgspec.Struct, frozen=True):
    """One file that may hold settings."""

    path: str
    form: Form
    kind: Kind

    @property
    def may_run(self) -> bool:
        """Whether `$(command)` in it is run. A project's may once it is trusted."""
        return self.kind in ("system", "crush", "user")


class SettingsLocations(msgspec.Struct, frozen=True):
    """All files of one workspace, lowest first, and where things are written."""

    directory: str
    root: str
    """The root of the repository, or the directory itself."""
    sources: tuple[SettingsSource, ...]
    data_dir: str
    user_file: str
    credentials_file: str
    trust_file: str

    @property
    def private_directories(self) -> tuple[str, ...]:
        """The directories of the user's own settings and credentials."""
        own = (self.user_file, self.credentials_file, *(item.path for item in self.sources if item.kind == "crush"))
        return tuple(dict.fromkeys(map(os.path.dirname, own)))

    @property
    def project_file(self) -> str:
        """The project's own TOML file: the highest there is, else one in its root."""
        for source in reversed(self.sources):
            if source.kind == "project" and source.form == "toml" and os.path.lexists(source.path):
                return source.path
        return join(self.root, "holdfast.toml")


def project_root(directory: str) -> str:
    """The nearest directory above, or this one, that holds `.git`. Without one a project is its directory."""
    path = directory
    while True:
        if os.path.lexists(join(path, ".git")):
            return path
        parent = os.path.dirname(path)
        if parent == path:
            return directory
        path = parent


def _directories_between(root: str, directory: str) -> Iterator[str]:
    yield root
    if root != directory:
        path = root
        for name in os.path.relpath(directory, root).split("/"):
            path = join(path, name)
            yield path


def locate_settings(
    directory: str, environment: Mapping[str, str], *, data_dir: str, workspace_id: str = "", system: str = _SYSTEM
) -> SettingsLocations:
    """`directory` is a real path. Without a workspace's id the settings made for it over the wire are left out."""
    home = environment.get("HOME") or "/"
    config = join(_base(environment, "XDG_CONFIG_HOME", home, ".config"), "holdfast")
    crush = environment.get("CRUSH_GLOBAL_CONFIG") or join(
        _base(environment, "XDG_CONFIG_HOME", home, ".config"), "crush"
    )
    crush_data = environment.get("CRUSH_GLOBAL_DATA") or join(
        _base(environment, "XDG_DATA_HOME", home, ".local/share"), "crush"
    )
    root = project_root(directory)
    user = join(config, "config.toml")
    sources = [
        SettingsSource(system, "toml", "system"),
        SettingsSource(join(crush, "crush.json"), "json", "crush"),
        SettingsSource(join(crush_data, "crush.json"), "json", "crush"),
        SettingsSource(user, "toml", "user"),
        *(
            SettingsSource(join(path, name), form, "project")
            for path in _directories_between(root, directory)
            for name, form in PROJECT_FILES
        ),
        SettingsSource(join(data_dir, "config.json"), "json", "wire"),
    ]
    if workspace_id:
        sources.append(SettingsSource(join(data_dir, "workspaces", workspace_id, "config.json"), "json", "wire"))
    return SettingsLocations(
        directory=directory,
        root=root,
        sources=tuple(sources),
        data_dir=data_dir,
        user_file=user,
        credentials_file=join(config, "credentials.toml"),
        trust_file=join(data_dir, "trust.json"),
    )


def _base(environment: Mapping[str, str], name: str, home: str, default: str) -> str:
    """By the rules of the XDG directories a path that is not absolute does not count."""
    chosen = environment.get(name, "")
    return chosen if chosen.startswith("/") else join(home, default)
