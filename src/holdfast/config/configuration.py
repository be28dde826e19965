"""The settings of one workspace, as its files say at this moment.

Every file is looked at before its word is used; nothing is read again that has not changed. A file that is broken
keeps its last good contents in force, and everything that is wrong is listed.
"""

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.atomic_files import Signature, file_signature, has_changed
from holdfast.config.line_numbers import KeyPath
from holdfast.config.load import LoadedFile, load
from holdfast.config.locations import SettingsLocations, SettingsSource
from holdfast.config.merge import Layer, Origin, merge
from holdfast.config.problems import Problem, format_key
from holdfast.config.trust import TrustStore, Withheld, project_digest, split_untrusted
from holdfast.config.variables import CommandRunner, Expander, ExpansionFailed
from holdfast.domain.errors import NotFound
from holdfast.domain.settings import LspSettings, McpSettings, ProviderSettings, Settings

__all__ = ["ConfigSnapshot", "Configuration", "Project"]

T = TypeVar("T", ProviderSettings, McpSettings, LspSettings)

_EXPANDED_FIELDS = {
    "providers": frozenset({"api_key", "base_url", "extra_headers", "extra_body"}),
    "mcp": frozenset({"command", "args", "env", "url", "headers", "oauth_client_id", "oauth_client_secret"}),
    "lsp": frozenset({"command", "args", "env"}),
}
_HEADERS = frozenset({"extra_headers", "headers"})
_USER_ONLY_SECTION = "sandbox"
"""A table that a project's files cannot set, trusted or not."""


class Project(msgspec.Struct, frozen=True):
    """The files of a project that are in force or withheld, and whether they are trusted."""

    files: tuple[str, ...] = ()
    anchor: str = ""
    """The directory of the deepest file, or the top of the project: trust is kept under its name."""
    digest: str = ""
    is_trusted: bool = False


class ConfigSnapshot(msgspec.Struct, frozen=True):
    """One state of all files together. It does not change; the next one is another."""

    settings: Settings
    tree: dict[str, Any]
    """The same as plain objects, without what nobody set."""
    origins: dict[KeyPath, Origin]
    problems: tuple[Problem, ...]
    withheld: tuple[Withheld, ...]
    project: Project

    def __repr__(self) -> str:
        return f"Reading({self.settings!r}, {len(self.problems)} problems, {len(self.withheld)} withheld)"


class Configuration:
    """Reads, merges, keeps what is good. The environment is that of whoever opened the workspace."""

    def __init__(
        self,
        places: SettingsLocations,
        environment: Mapping[str, str],
        *,
        trust: TrustStore | None = None,
        run: CommandRunner | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.locations = places
        self.trust = trust or TrustStore(places.trust_file)
        self._base_environment = dict(environment)
        self.environment_version = 0
        """How often the environment has changed."""
        self._run = run
        self._loaded: dict[str, LoadedFile] = {}
        self._last_good: dict[str, LoadedFile] = {}
        self._trust_signature: Signature = None
        self._variables: dict[str, str] | None = None
        self._snapshot = self._read()
        self.on_change = on_change
        """Called when a read finds settings that differ from those of the previous read."""

    def __repr__(self) -> str:
        return f"Configuration({self.locations.directory!r})"

    def current(self) -> Settings:
        """What is in force now. Looks at the files, and reads those that have changed."""
        return self.snapshot().settings

    def snapshot(self) -> ConfigSnapshot:
        """The same with everything that is known about it."""
        if self._is_stale():
            before, self._snapshot = self._snapshot, self._read()
            self._variables = None
            if self._snapshot != before:
                self.on_change()
        return self._snapshot

    @property
    def settings(self) -> Settings:
        """As of the last look."""
        return self._snapshot.settings

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._snapshot.problems

    @property
    def origins(self) -> dict[KeyPath, Origin]:
        return self._snapshot.origins

    @property
    def withheld(self) -> tuple[Withheld, ...]:
        return self._snapshot.withheld

    def unresolved_errors(self) -> tuple[Problem, ...]:
        """Errors in the user's own files of which nothing better is known: what they were to say, nobody can tell."""
        found: list[Problem] = []
        for source in self.locations.sources:
            loaded, good = self._loaded[source.path], self._last_good.get(source.path)
            if source.kind != "project" and not loaded.is_good and (good is None or not good.is_good):
                found += [problem for problem in loaded.problems if problem.severity == "error"]
        return tuple(found)

    def project_layers(self) -> tuple[tuple[Layer, tuple[Withheld, ...]], ...]:
        """What the project's files say, and what of it needs trust: from the very bytes that trust is given to."""
        layers = [self._layer(source, self._snapshot.project) for source in self.locations.sources if self._has(source)]
        return tuple(
            (layer, split_untrusted(layer, self.locations.root, self.locations.directory)[1]) for layer in layers
        )

    def settings_from_files(self, under: str) -> dict[str, Any]:
        """What the settings files say about a section, without the choices that clients have saved."""
        sources = [source for source in self.locations.sources if source.kind != "wire"]
        tree, _ = merge([self._layer(source, self._snapshot.project) for source in sources])
        found: dict[str, Any] = tree.get(under, {})
        return found

    def _has(self, source: SettingsSource) -> bool:
        return source.kind == "project" and source.path in self._snapshot.project.files

    # Expansion: blocks while commands run, so a server calls these in a thread.

    def provider(self, name: str) -> tuple[ProviderSettings, tuple[Problem, ...]]:
        """With its values expanded. A field that cannot be is empty, and a problem says why."""
        return self._expand_section("providers", name, ProviderSettings)

    def mcp(self, name: str) -> tuple[McpSettings, tuple[Problem, ...]]:
        return self._expand_section("mcp", name, McpSettings)

    def lsp(self, name: str) -> tuple[LspSettings, tuple[Problem, ...]]:
        return self._expand_section("lsp", name, LspSettings)

    def environment(self) -> dict[str, str]:
        """What was given, with the variables of `[env]` on top. Kept until a file changes or `forget` is called."""
        if self._variables is None:
            expander = Expander(self._base_environment, self._run)
            variables, _ = self._expand_tree(self._snapshot.tree.get("env", {}), ("env",), expander)
            self._variables = {**self._base_environment, **variables}
        return dict(self._variables)

    def add_environment(self, variables: Mapping[str, str]) -> None:
        """Somebody who came later has set these, or has set them to something else."""
        if any(self._base_environment.get(name) != value for name, value in variables.items()):
            self._base_environment |= variables
            self._variables = None
            self.environment_version += 1

    def forget(self) -> None:
        """Expand everything anew the next time: a key may have been replaced since."""
        self._variables = None

    def expand(self, text: str, path: KeyPath) -> str:
        """One text, with the rights of the file that `path` came from. Raises `ExpansionFailed`."""
        origin = self._snapshot.origins.get(path)
        return Expander(self.environment(), self._run).expand(text, may_run=origin is not None and origin.may_run)

    def _expand_section(self, section: str, name: str, kind: type[T]) -> tuple[T, tuple[Problem, ...]]:
        tree = self._snapshot.tree.get(section, {}).get(name)
        if tree is None:
            raise NotFound(f"Nothing is set for {format_key((section, name))}.")
        expander = Expander(self.environment(), self._run)
        whole, problems = dict(tree), []
        if section == "providers" and not whole.get("id"):
            whole["id"] = name
        for field in _EXPANDED_FIELDS[section] & tree.keys():
            whole[field], found = self._expand_tree(tree[field], (section, name, field), expander)
            problems += found
        return msgspec.convert(whole, kind), tuple(problems)

    def _expand_tree(self, value: Any, path: KeyPath, expander: Expander) -> tuple[Any, list[Problem]]:  # noqa: ANN401
        if isinstance(value, dict):
            pairs = {name: self._expand_tree(item, (*path, name), expander) for name, item in value.items()}
            problems = [problem for _, found in pairs.values() for problem in found]
            # A header or variable that could not be made is left out; so is a header that came out empty.
            drops_empty = path[-1] in _HEADERS
            return {
                name: item for name, (item, found) in pairs.items() if not found and (item != "" or not drops_empty)
            }, problems
        if isinstance(value, list):
            items = [self._expand_tree(item, (*path, index), expander) for index, item in enumerate(value)]
            return [item for item, _ in items], [problem for _, found in items for problem in found]
        if not isinstance(value, str) or "$" not in value:
            return value, []
        origin = self._snapshot.origins.get(path, Origin("", 0, may_run=False))
        try:
            return expander.expand(value, may_run=origin.may_run), []
        except ExpansionFailed as error:
            return "", [Problem("error", origin.file, origin.line, format_key(path), str(error))]

    # Reading

    def _is_stale(self) -> bool:
        if self.trust.signature() != self._trust_signature:
            return True
        return any(has_changed(path, loaded.seen) for path, loaded in self._loaded.items())

    def _read(self) -> ConfigSnapshot:
        self._trust_signature = self.trust.signature()
        for source in self.locations.sources:
            known = self._loaded.get(source.path)
            if known is None or file_signature(source.path) != known.seen:
                self._store(source, load(source))
        project = self._project()
        layers: list[Layer] = []
        withheld: list[Withheld] = []
        for source in self.locations.sources:
            layer = self._layer(source, project)
            if source.kind == "project" and not project.is_trusted:
                layer, refused = split_untrusted(layer, self.locations.root, self.locations.directory)
                withheld += refused
            layers.append(layer)
        tree, origins = merge(layers)
        problems = [problem for source in self.locations.sources for problem in self._loaded[source.path].problems]
        problems += self.trust.problems()
        problems += (
            Problem(
                "warning",
                source.path,
                good.lines.get((_USER_ONLY_SECTION,), 0),
                _USER_ONLY_SECTION,
                "only your own settings can set this.",
            )
            for source in self.locations.sources
            if source.kind == "project"
            and _USER_ONLY_SECTION in (good := self._last_good.get(source.path, LoadedFile())).tree
        )
        return ConfigSnapshot(msgspec.convert(tree, Settings), tree, origins, tuple(problems), tuple(withheld), project)

    def _store(self, source: SettingsSource, loaded: LoadedFile) -> None:
        """What is broken changes nothing, unless there is nothing good to keep: then what fits of it is used."""
        self._loaded[source.path] = loaded
        if loaded.is_good or (loaded.data is not None and source.path not in self._last_good):
            self._last_good[source.path] = loaded

    def _layer(self, source: SettingsSource, project: Project) -> Layer:
        good = self._last_good.get(source.path, LoadedFile())
        latest = self._loaded.get(source.path, good)
        if latest is not good and latest.data is not None:
            good = _add_restrictions(good, latest)
        if source.kind == "project" and _USER_ONLY_SECTION in good.tree:
            tree = {name: value for name, value in good.tree.items() if name != _USER_ONLY_SECTION}
            good = msgspec.structs.replace(good, tree=tree)
        may_run = source.may_run or (source.kind == "project" and project.is_trusted)
        return Layer(good.tree, source.path, good.lines, may_run)

    def _project(self) -> Project:
        files = [
            (source.path, good.data)
            for source in self.locations.sources
            if source.kind == "project"
            and (good := self._last_good.get(source.path)) is not None
            and good.data is not None
        ]
        # A project without settings can be trusted too: then its programs may be used. The first file takes that back.
        digest, anchor = project_digest(files), posixpath.dirname(files[-1][0]) if files else self.locations.root
        is_trusted = self.trust.is_trusted(anchor, digest)
        return Project(tuple(path for path, _ in files), anchor, digest, is_trusted)


def _add_restrictions(good: LoadedFile, latest: LoadedFile) -> LoadedFile:
    """Add the deny and ask rules of a file whose other contents are not in force: a mistake elsewhere in it must not
    switch off what it forbids.
    """
    permissions, lines = dict(good.tree.get("permissions", {})), dict(good.lines)
    for name in ("deny", "ask"):
        kept, found = permissions.get(name, []), latest.tree.get("permissions", {}).get(name, [])
        added = [(place, rule) for place, rule in enumerate(found) if rule not in kept]
        for index, (place, _) in enumerate(added, len(kept)):
            lines["permissions", name, index] = latest.lines.get(("permissions", name, place), 0)
        if added:
            permissions[name] = [*kept, *(rule for _, rule in added)]
    return msgspec.structs.replace(good, tree={**good.tree, "permissions": permissions}, lines=lines)
