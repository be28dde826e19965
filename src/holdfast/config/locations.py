"""Locations of the settings files of a workspace, in order of precedence, lowest first.

They are computed from a directory and an environment. Only the search for the root of the repository accesses the disk.
"""

import os
from collections.abc import Iterator, Mapping
from posixpath import join
from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.documents import STORE_PREFIX

__all__ = ["KEYS_FILE", "Form", "Kind", "SettingsLocations", "SettingsSource", "locate_settings", "project_root"]

Form: TypeAlias = Literal["toml", "json", "mcp"]
"""`mcp` is the JSON format of `.mcp.json`, which contains MCP servers only."""

Kind: TypeAlias = Literal[
    "system",  # for all users of the machine
    "crush",  # Crush's global settings and its saved choices: read only
    "user",  # the user's own file
    "project",  # part of the project: mostly without effect until it is trusted
    "wire",  # saved by clients of the server: files, or documents of the store
]
"""The owner of a file."""

PROJECT_FILES: tuple[tuple[str, Form], ...] = (
    (".mcp.json", "mcp"),
    ("crush.json", "json"),
    (".crush.json", "json"),
    ("holdfast.toml", "toml"),
    (".holdfast.toml", "toml"),
)

KEYS_FILE = "provider-keys.json"
"""In the data directory of a node: the keys that clients have saved."""

_SYSTEM = "/etc/holdfast/config.toml"


class SettingsSource(msgspec.Struct, frozen=True):
    """One possible settings file. That of a client of a cluster is a document of the store."""

    path: str
    form: Form
    kind: Kind

    @property
    def may_run(self) -> bool:
        """True if `$(command)` in it is executed. Project files gain this by trust."""
        return self.kind in ("system", "crush", "user")


class SettingsLocations(msgspec.Struct, frozen=True):
    """All settings files of one workspace, lowest precedence first, and the files that are written."""

    directory: str
    root: str
    """The root of the repository, or the directory itself."""
    sources: tuple[SettingsSource, ...]
    data_dir: str
    user_file: str
    credentials_file: str
    trust_file: str
    saved_settings: tuple[str, str]
    """The documents that clients change: for every workspace, and for this one (empty without a workspace id)."""
    keys_file: str = ""
    """In a cluster, the file with the keys that clients have saved: keys belong to a node."""

    @property
    def private_directories(self) -> tuple[str, ...]:
        """The directories with the user's own settings and credentials."""
        own = (self.user_file, self.credentials_file, *(item.path for item in self.sources if item.kind == "crush"))
        return tuple(dict.fromkeys(map(os.path.dirname, own)))

    @property
    def project_file(self) -> str:
        """The TOML file of the project to write to: the existing one of highest precedence, else one in its root."""
        for source in reversed(self.sources):
            if source.kind == "project" and source.form == "toml" and os.path.lexists(source.path):
                return source.path
        return join(self.root, "holdfast.toml")


def project_root(directory: str) -> str:
    """Return the nearest directory, from this one upwards, that contains `.git`, or the directory itself."""
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
    directory: str,
    environment: Mapping[str, str],
    *,
    data_dir: str,
    workspace_id: str = "",
    system: str = _SYSTEM,
    is_shared: bool = False,
) -> SettingsLocations:
    """Return the settings files for a directory, which must be a real path.

    Without a workspace id, the settings that clients have saved for the workspace are left out. `is_shared`: what
    clients save is in the store of a cluster.
    """
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
    ]
    saved_in = STORE_PREFIX if is_shared else f"{data_dir}/"
    saved = (f"{saved_in}config.json", f"{saved_in}workspaces/{workspace_id}/config.json" if workspace_id else "")
    keys_file = join(data_dir, KEYS_FILE) if is_shared else ""
    sources += [SettingsSource(path, "json", "wire") for path in (keys_file, *saved) if path]
    return SettingsLocations(
        directory=directory,
        root=root,
        sources=tuple(sources),
        data_dir=data_dir,
        user_file=user,
        credentials_file=join(config, "credentials.toml"),
        trust_file=f"{saved_in}trust.json",
        saved_settings=saved,
        keys_file=keys_file,
    )


def _base(environment: Mapping[str, str], name: str, home: str, default: str) -> str:
    """Return an XDG base directory. By the XDG specification a relative path is ignored."""
    chosen = environment.get(name, "")
    return chosen if chosen.startswith("/") else join(home, default)
