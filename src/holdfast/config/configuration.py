"""The settings of one workspace, always in accordance with its files.

There is no watcher and no reload command: each use compares the signatures of all files with those that were read, and
reads the files that have changed. A file with an error keeps its last good content in effect, except that its new deny
and ask rules take effect at once. All problems are listed.
"""

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.atomic_files import FILES, Signature
from holdfast.config.line_numbers import KeyPath
from holdfast.config.load_file import LoadedFile, load
from holdfast.config.locations import SettingsLocations, SettingsSource
from holdfast.config.merge import Layer, SettingOrigin, merge
from holdfast.config.problems import FileProblem, format_key
from holdfast.config.trust import TrustStore, Withheld, project_digest, split_untrusted
from holdfast.config.variables import CommandRunner, Expander, ExpansionFailed
from holdfast.domain.documents import Documents
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
_USER_ONLY_SECTIONS = ("sandbox", "storage")
"""Tables that project files cannot set, whether they are trusted or not."""


class Project(msgspec.Struct, frozen=True):
    """The settings files of a project, and their trust."""

    files: tuple[str, ...] = ()
    anchor: str = ""
    """The directory of the deepest file, or the root of the project. Trust is stored under its path."""
    digest: str = ""
    is_trusted: bool = False


class ConfigSnapshot(msgspec.Struct, frozen=True):
    """The settings at one moment, with origins, problems and withheld keys. Immutable."""

    settings: Settings
    tree: dict[str, Any]
    """The settings as plain objects, without defaults."""
    origins: dict[KeyPath, SettingOrigin]
    problems: tuple[FileProblem, ...]
    withheld: tuple[Withheld, ...]
    project: Project

    def __repr__(self) -> str:
        return f"ConfigSnapshot({self.settings!r}, {len(self.problems)} problems, {len(self.withheld)} withheld)"


class Configuration:
    """The settings of one workspace.

    `environment` is that of the client that opened the workspace. `run` executes the commands in `$(command)`.
    """

    def __init__(
        self,
        places: SettingsLocations,
        environment: Mapping[str, str],
        *,
        trust: TrustStore | None = None,
        run: CommandRunner | None = None,
        on_change: Callable[[], None] = lambda: None,
        documents: Documents = FILES,
    ) -> None:
        self.locations = places
        self.documents = documents
        self.trust = trust or TrustStore(places.trust_file, documents)
        self._base_environment = dict(environment)
        self.environment_version = 0
        """Number of changes of the environment."""
        self._run = run
        self._loaded: dict[str, LoadedFile] = {}
        self._last_good: dict[str, LoadedFile] = {}
        self._trust_signature: Signature = None
        self._variables: dict[str, str] | None = None
        self._snapshot = self._read()
        self.on_change = on_change
        """Called during the first access after a change of the merged settings."""

    def __repr__(self) -> str:
        return f"Configuration({self.locations.directory!r})"

    def current(self) -> Settings:
        """Return the current settings. Reads files that have changed."""
        return self.snapshot().settings

    def snapshot(self) -> ConfigSnapshot:
        """Return the current settings with origins and problems. Reads files that have changed."""
        if self._is_stale():
            before, self._snapshot = self._snapshot, self._read()
            self._variables = None
            if self._snapshot != before:
                self.on_change()
        return self._snapshot

    @property
    def settings(self) -> Settings:
        """The settings at the last access."""
        return self._snapshot.settings

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """The problems at the last access."""
        return self._snapshot.problems

    @property
    def origins(self) -> dict[KeyPath, SettingOrigin]:
        """File and line of each value at the last access."""
        return self._snapshot.origins

    @property
    def withheld(self) -> tuple[Withheld, ...]:
        """Project settings without effect at the last access."""
        return self._snapshot.withheld

    def unresolved_errors(self) -> tuple[FileProblem, ...]:
        """Return the errors in the user's own files of which no good content is known.

        The intention of such a file cannot be determined, so a caller must not assume that a setting is absent.
        """
        found: list[FileProblem] = []
        for source in self.locations.sources:
            loaded, good = self._loaded[source.path], self._last_good.get(source.path)
            if source.kind != "project" and not loaded.is_good and (good is None or not good.is_good):
                found += [problem for problem in loaded.problems if problem.severity == "error"]
        return tuple(found)

    def project_layers(self) -> tuple[tuple[Layer, tuple[Withheld, ...]], ...]:
        """Return the content of the project's files and the part of it that requires trust, from exactly the bytes to
        which trust is given.
        """
        layers = [
            self._layer(source, self._snapshot.project)
            for source in self.locations.sources
            if self._is_project_file(source)
        ]
        return tuple(
            (layer, split_untrusted(layer, self.locations.root, self.locations.directory)[1]) for layer in layers
        )

    def settings_from_files(self, under: str) -> dict[str, Any]:
        """Return a section of the merged settings files, without the settings that clients have saved."""
        sources = [source for source in self.locations.sources if source.kind != "wire"]
        tree, _ = merge([self._layer(source, self._snapshot.project) for source in sources])
        found: dict[str, Any] = tree.get(under, {})
        return found

    def _is_project_file(self, source: SettingsSource) -> bool:
        return source.kind == "project" and source.path in self._snapshot.project.files

    # The following methods block while commands of `$(command)` run: a server calls them in a thread.

    def provider(self, name: str) -> tuple[ProviderSettings, tuple[FileProblem, ...]]:
        """Return a provider with expanded values. A field that cannot be expanded is empty and has a problem."""
        return self._expand_section("providers", name, ProviderSettings)

    def mcp(self, name: str) -> tuple[McpSettings, tuple[FileProblem, ...]]:
        """Return an MCP server with expanded values. A field that cannot be expanded is empty and has a problem."""
        return self._expand_section("mcp", name, McpSettings)

    def lsp(self, name: str) -> tuple[LspSettings, tuple[FileProblem, ...]]:
        """Return a language server with expanded values. A field that cannot be expanded is empty and has a problem."""
        return self._expand_section("lsp", name, LspSettings)

    def environment(self) -> dict[str, str]:
        """Return the client's environment, overridden by `[env]`. Cached until a file changes or `forget` is called."""
        if self._variables is None:
            expander = Expander(self._base_environment, self._run)
            variables, _ = self._expand_tree(self._snapshot.tree.get("env", {}), ("env",), expander)
            self._variables = {**self._base_environment, **variables}
        return dict(self._variables)

    def add_environment(self, variables: Mapping[str, str]) -> None:
        """Merge environment variables of a client that joined later."""
        if any(self._base_environment.get(name) != value for name, value in variables.items()):
            self._base_environment |= variables
            self._variables = None
            self.environment_version += 1

    def forget(self) -> None:
        """Discard expanded values, because a key may have been replaced since."""
        self._variables = None

    def expand(self, text: str, path: KeyPath) -> str:
        """Expand a value. Commands run only if the file that has set `path` may run them. Raises `ExpansionFailed`."""
        origin = self._snapshot.origins.get(path)
        return Expander(self.environment(), self._run).expand(text, may_run=origin is not None and origin.may_run)

    def _expand_section(self, section: str, name: str, kind: type[T]) -> tuple[T, tuple[FileProblem, ...]]:
        tree = self._snapshot.tree.get(section, {}).get(name)
        if tree is None:
            raise NotFound(f"{format_key((section, name))} is not set.")
        expander = Expander(self.environment(), self._run)
        whole, problems = dict(tree), []
        if section == "providers" and not whole.get("id"):
            whole["id"] = name
        for field in _EXPANDED_FIELDS[section] & tree.keys():
            whole[field], found = self._expand_tree(tree[field], (section, name, field), expander)
            problems += found
        return msgspec.convert(whole, kind), tuple(problems)

    def _expand_tree(self, value: Any, path: KeyPath, expander: Expander) -> tuple[Any, list[FileProblem]]:  # noqa: ANN401
        if isinstance(value, dict):
            pairs = {name: self._expand_tree(item, (*path, name), expander) for name, item in value.items()}
            problems = [problem for _, found in pairs.values() for problem in found]
            # A header or variable that cannot be expanded is left out, and so is a header with an empty value.
            drops_empty = path[-1] in _HEADERS
            return {
                name: item for name, (item, found) in pairs.items() if not found and (item != "" or not drops_empty)
            }, problems
        if isinstance(value, list):
            items = [self._expand_tree(item, (*path, index), expander) for index, item in enumerate(value)]
            return [item for item, _ in items], [problem for _, found in items for problem in found]
        if not isinstance(value, str) or "$" not in value:
            return value, []
        origin = self._snapshot.origins.get(path, SettingOrigin("", 0, may_run=False))
        try:
            return expander.expand(value, may_run=origin.may_run), []
        except ExpansionFailed as error:
            return "", [FileProblem("error", origin.file, origin.line, format_key(path), str(error))]

    def _is_stale(self) -> bool:
        if self.trust.signature() != self._trust_signature:
            return True
        return any(self.documents.has_changed(path, loaded.seen) for path, loaded in self._loaded.items())

    def _read(self) -> ConfigSnapshot:
        self._trust_signature = self.trust.signature()
        for source in self.locations.sources:
            known = self._loaded.get(source.path)
            if known is None or self.documents.signature(source.path) != known.seen:
                self._store(source, load(source, self.documents))
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
            FileProblem(
                "warning",
                source.path,
                good.lines.get((section,), 0),
                section,
                "only your own settings can set this.",
            )
            for source in self.locations.sources
            for section in _USER_ONLY_SECTIONS
            if source.kind == "project" and section in (good := self._last_good.get(source.path, LoadedFile())).tree
        )
        return ConfigSnapshot(msgspec.convert(tree, Settings), tree, origins, tuple(problems), tuple(withheld), project)

    def _store(self, source: SettingsSource, loaded: LoadedFile) -> None:
        """Store a file that was read. One with errors does not replace the last good content; if there is none, its
        valid part is used.
        """
        self._loaded[source.path] = loaded
        if loaded.is_good or (loaded.data is not None and source.path not in self._last_good):
            self._last_good[source.path] = loaded

    def _layer(self, source: SettingsSource, project: Project) -> Layer:
        good = self._last_good.get(source.path, LoadedFile())
        latest = self._loaded.get(source.path, good)
        if latest is not good and latest.data is not None:
            good = _add_restrictions(good, latest)
        if source.kind == "project" and not good.tree.keys().isdisjoint(_USER_ONLY_SECTIONS):
            tree = {name: value for name, value in good.tree.items() if name not in _USER_ONLY_SECTIONS}
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
        # A project without settings files can be trusted too, so that its programs may run. Its first file changes the
        # digest and revokes that.
        digest, anchor = project_digest(files), posixpath.dirname(files[-1][0]) if files else self.locations.root
        is_trusted = self.trust.is_trusted(anchor, digest)
        return Project(tuple(path for path, _ in files), anchor, digest, is_trusted)


def _add_restrictions(good: LoadedFile, latest: LoadedFile) -> LoadedFile:
    """Add the deny and ask rules of the latest content, whose other settings are not in effect: an error elsewhere in
    the file must not disable its restrictions.
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
