"""Language servers that a workspace can use: catalogue, settings, assignment to files, and launch parameters.

A server is described by a `ServerConfig`, from the settings or from the built-in catalogue. `match_servers` selects
the servers of a file, `launch_spec` returns the command line and the environment of a selected one. Functions below the
catalogue read the disk and block.

A server named in the settings takes precedence over the catalogue entry of the same name, which provides its defaults.
In an untrusted project nothing of the project is executed: no program in its directories, interpreter, library or build
script.
"""

import glob
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.domain.errors import NotFound
from holdfast.domain.settings import LspSettings, Settings
from holdfast.extensions.base import ExtensionContext
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.process.shell_launch import command_environment

__all__ = [
    "CATALOGUE",
    "LANGUAGE_IDS",
    "KnownServer",
    "LaunchSpec",
    "ProjectCode",
    "ProjectFacts",
    "ServerConfig",
    "ServerMatch",
    "Unlaunchable",
    "command_line",
    "find_program",
    "is_any_available",
    "language_id",
    "launch_spec",
    "match_servers",
    "project_root",
    "read_project",
    "server_configs",
    "without_project_code",
]


# The catalogue: common language servers and their file types. It is data only; `find_program` determines whether a
# server is installed.

ProjectCode = Literal["", "code", "python", "typescript"]
"""Project code that the server would execute, which requires trust. `code`: build scripts, plugins or executable
configuration; such a server starts only in a trusted project or if the user names it in the settings. `python` and
`typescript`: an interpreter or a library in the project's directory, which options can replace.
"""


class KnownServer(msgspec.Struct, frozen=True):
    """A catalogue entry. A marker is the name of a file or directory that identifies a project root; `name|text`
    requires the text in the file. With `needs_marker` the server is used only in projects that have a marker.
    """

    name: str
    command: tuple[str, ...]
    file_types: tuple[str, ...]
    markers: tuple[str, ...] = ()
    role: str = ""
    needs_marker: bool = False
    project_code: ProjectCode = ""
    init_options: dict[str, object] = {}
    options: dict[str, object] = {}


_NO_DOWNLOADS: dict[str, object] = {"disableAutomaticTypingAcquisition": True}
"""Prevents the server from downloading type packages; those installed in the project are used."""
_JS = ("js", "jsx", "mjs", "cjs", "ts", "tsx", "mts", "cts")
_PY = ("py", "pyi")
_C = ("c", "h", "cc", "cpp", "cxx", "c++", "hh", "hpp", "hxx", "m", "mm", "cu")
_PYTHON = ("pyrightconfig.json", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile")
_NODE = ("tsconfig.json", "jsconfig.json", "package.json")
_GRADLE = ("settings.gradle", "settings.gradle.kts", "build.gradle", "build.gradle.kts", "pom.xml")
_DENO = ("deno.json", "deno.jsonc")
_ESLINT = tuple(f"eslint.config.{ending}" for ending in ("js", "mjs", "cjs", "ts"))
_RUFF = ("ruff.toml", ".ruff.toml", "pyproject.toml|[tool.ruff")

CATALOGUE: tuple[KnownServer, ...] = (
    # Python
    KnownServer("basedpyright", ("basedpyright-langserver", "--stdio"), _PY, _PYTHON, "python", project_code="python"),
    KnownServer("pyright", ("pyright-langserver", "--stdio"), _PY, _PYTHON, "python", project_code="python"),
    KnownServer("ty", ("ty", "server"), _PY, ("ty.toml", *_PYTHON), "python"),
    KnownServer("pyrefly", ("pyrefly", "lsp"), _PY, ("pyrefly.toml", *_PYTHON), "python", project_code="code"),
    KnownServer("pylsp", ("pylsp",), ("py",), _PYTHON, "python", project_code="code"),
    KnownServer("jedi", ("jedi-language-server",), ("py",), _PYTHON, "python", project_code="code"),
    KnownServer("ruff", ("ruff", "server"), _PY, _RUFF, needs_marker=True),
    # JavaScript and web pages
    KnownServer("deno", ("deno", "lsp"), _JS, _DENO, "javascript", needs_marker=True),
    KnownServer("typescript", ("typescript-language-server", "--stdio"), _JS, _NODE, "javascript",
          project_code="typescript",
          init_options=_NO_DOWNLOADS),
    KnownServer("vtsls", ("vtsls", "--stdio"), _JS, _NODE, "javascript", project_code="code",
          options={"typescript": {"disableAutomaticTypeAcquisition": True}}),
    KnownServer("biome", ("biome", "lsp-proxy"), (*_JS, "json", "css"), ("biome.json", "biome.jsonc"),
          needs_marker=True),
    KnownServer("eslint", ("vscode-eslint-language-server", "--stdio"), _JS, _ESLINT, needs_marker=True,
          project_code="code"),
    KnownServer("svelte", ("svelteserver", "--stdio"), ("svelte",), ("svelte.config.js", "package.json"),
          project_code="code"),
    KnownServer("vue", ("vue-language-server", "--stdio"), ("vue",), ("package.json",), project_code="code"),
    KnownServer("astro", ("astro-ls", "--stdio"), ("astro",), ("astro.config.mjs", "package.json"),
          project_code="code"),
    KnownServer("html", ("vscode-html-language-server", "--stdio"), ("html", "htm"), ("package.json",)),
    KnownServer("css", ("vscode-css-language-server", "--stdio"), ("css", "scss", "less"), ("package.json",)),
    KnownServer("json", ("vscode-json-language-server", "--stdio"), ("json", "jsonc"), ("package.json",)),
    # Compiled languages
    KnownServer("gopls", ("gopls",), ("go", "go.mod", "go.work"), ("go.work", "go.mod")),
    KnownServer("rust-analyzer", ("rust-analyzer",), ("rs",), ("Cargo.toml", "rust-project.json"), project_code="code"),
    KnownServer("clangd", ("clangd",), _C, ("compile_commands.json", "compile_flags.txt", ".clangd", "CMakeLists.txt")),
    KnownServer("zls", ("zls",), ("zig", "zon"), ("build.zig",), project_code="code"),
    KnownServer("sourcekit", ("sourcekit-lsp",), ("swift",), ("Package.swift",), project_code="code"),
    KnownServer("jdtls", ("jdtls",), ("java",), _GRADLE, project_code="code"),
    KnownServer("kotlin", ("kotlin-lsp", "--stdio"), ("kt", "kts"), _GRADLE, "kotlin", project_code="code"),
    KnownServer("kotlin-language-server", ("kotlin-language-server",), ("kt", "kts"), _GRADLE, "kotlin",
          project_code="code"),
    KnownServer("metals", ("metals",), ("scala", "sbt", "sc"), ("build.sbt", "build.sc"), project_code="code"),
    KnownServer("csharp", ("csharp-ls",), ("cs",), ("global.json", ".editorconfig"), project_code="code"),
    KnownServer("fsharp", ("fsautocomplete",), ("fs", "fsi", "fsx"), ("global.json",), project_code="code"),
    KnownServer("haskell", ("haskell-language-server-wrapper", "--lsp"), ("hs", "lhs"), ("cabal.project", "stack.yaml"),
          project_code="code"),
    KnownServer("ocaml", ("ocamllsp",), ("ml", "mli"), ("dune-project", "opam"), project_code="code"),
    KnownServer("dart", ("dart", "language-server"), ("dart",), ("pubspec.yaml",), project_code="code"),
    KnownServer("gleam", ("gleam", "lsp"), ("gleam",), ("gleam.toml",), project_code="code"),
    KnownServer("erlang", ("erlang_ls",), ("erl", "hrl"), ("rebar.config",), project_code="code"),
    KnownServer("elixir", ("elixir-ls",), ("ex", "exs"), ("mix.exs",), project_code="code"),
    KnownServer("julia", ("julia-lsp",), ("jl",), ("Project.toml",), project_code="code"),
    # Scripting languages
    KnownServer("ruby", ("ruby-lsp",), ("rb", "rake", "gemspec"), ("Gemfile",), "ruby", project_code="code"),
    KnownServer("solargraph", ("solargraph", "stdio"), ("rb",), ("Gemfile",), "ruby", project_code="code"),
    KnownServer("php", ("intelephense", "--stdio"), ("php",), ("composer.json",), "php"),
    KnownServer("phpactor", ("phpactor", "language-server"), ("php",), ("composer.json",), "php", project_code="code"),
    KnownServer("lua", ("lua-language-server",), ("lua",), (".luarc.json", ".luarc.jsonc", "stylua.toml")),
    KnownServer("bash", ("bash-language-server", "start"), ("sh", "bash"), ()),
    KnownServer("clojure", ("clojure-lsp",), ("clj", "cljs", "cljc", "edn"), ("deps.edn", "project.clj"),
          project_code="code"),
    # Configuration and text formats
    KnownServer("yaml", ("yaml-language-server", "--stdio"), ("yaml", "yml"), ()),
    KnownServer("taplo", ("taplo", "lsp", "stdio"), ("toml",), ()),
    KnownServer("docker", ("docker-langserver", "--stdio"), ("Dockerfile", "dockerfile"), ()),
    KnownServer("terraform", ("terraform-ls", "serve"), ("tf", "tfvars"), (".terraform",), project_code="code"),
    KnownServer("nix", ("nil",), ("nix",), ("flake.nix",)),
    KnownServer("texlab", ("texlab",), ("tex", "bib"), (".latexmkrc",)),
    KnownServer("typst", ("tinymist",), ("typ",), ("typst.toml",)),
    KnownServer("marksman", ("marksman", "server"), ("md",), (".marksman.toml",), needs_marker=True),
)  # fmt: skip

LANGUAGE_IDS = {
    "py": "python", "pyi": "python", "js": "javascript", "mjs": "javascript", "cjs": "javascript",
    "jsx": "javascriptreact", "ts": "typescript", "mts": "typescript", "cts": "typescript", "tsx": "typescriptreact",
    "rs": "rust", "h": "c", "cc": "cpp", "cxx": "cpp", "c++": "cpp", "hh": "cpp", "hpp": "cpp", "hxx": "cpp",
    "m": "objective-c", "mm": "objective-cpp", "cu": "cuda", "kt": "kotlin", "kts": "kotlin", "cs": "csharp",
    "fs": "fsharp", "fsx": "fsharp", "fsi": "fsharp", "hs": "haskell", "lhs": "haskell", "ml": "ocaml",
    "mli": "ocaml.interface", "ex": "elixir", "exs": "elixir", "erl": "erlang", "hrl": "erlang", "jl": "julia",
    "rb": "ruby", "rake": "ruby", "gemspec": "ruby", "sh": "shellscript", "bash": "shellscript", "clj": "clojure",
    "cljs": "clojurescript", "cljc": "clojure", "yml": "yaml", "htm": "html", "md": "markdown", "tf": "terraform",
    "tfvars": "terraform-vars", "tex": "latex", "bib": "bibtex", "typ": "typst", "go.mod": "go.mod",
    "go.work": "go.work", "dockerfile": "dockerfile", "zon": "zig", "sbt": "scala", "sc": "scala",
}  # fmt: skip
"""LSP language identifiers that differ from the file extension."""


def language_id(name: str) -> str:
    """Return the LSP language identifier of a file, by its whole name or its extension."""
    small = name.lower()
    ending = small.rpartition(".")[2]
    return LANGUAGE_IDS.get(small) or LANGUAGE_IDS.get(ending) or ending


def file_words(name: str) -> tuple[str, ...]:
    """Return the words by which settings can name the type of a file: its name, extension and language."""
    small = name.lower()
    return name, small, small.rpartition(".")[2], language_id(name)


# Configurations of servers, and their programs on disk.

_PROJECT_PROGRAM_DIRS = (".venv/bin", "venv/bin", "node_modules/.bin", "vendor/bin")
_PROJECT_VENVS = (".venv", "venv")
_MAX_MARKER_BYTES = 1 << 20


class ProjectFacts(msgspec.Struct, frozen=True):
    """Project facts: the workspace path, whether the project is trusted, and the environment of the user."""

    path: str
    is_trusted: bool
    environment: Mapping[str, str]


class ServerConfig(msgspec.Struct, frozen=True):
    """Start parameters of a server and its file types. Empty `file_types` match all files."""

    name: str
    command: tuple[str, ...]
    file_types: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    role: str = ""
    needs_marker: bool = False
    project_code: ProjectCode = ""
    is_configured: bool = False
    """Configured by the user, or by a project that the user trusts."""
    is_disabled: bool = False
    timeout: int = 30
    env: dict[str, str] = {}
    """Unexpanded, so that a change of it is a change of the configuration."""
    init_options: dict[str, Any] = {}
    options: dict[str, Any] = {}

    def supports(self, path: str) -> bool:
        """Return whether the server supports a file, by its extension, whole name or language."""
        return self.supports_any(file_words(os.path.basename(path)))

    def supports_any(self, words: Collection[str]) -> bool:
        """Return whether the server supports a file that is described by one of the words of `file_words`."""
        return not self.file_types or any(
            ending in words or ending.lower().removeprefix(".") in words for ending in self.file_types
        )


class LaunchSpec(msgspec.Struct, frozen=True):
    """Complete launch parameters."""

    config: ServerConfig
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class Unlaunchable(msgspec.Struct, frozen=True):
    """The reason why a server cannot be started. `is_missing`: the program is not installed, and may
    be installed later.
    """

    reason: str
    is_missing: bool = True


def server_configs(settings: Settings) -> tuple[ServerConfig, ...]:
    """Return the servers named in the settings, followed by the rest of the catalogue if `auto_lsp` is set."""
    known = {item.name: item for item in CATALOGUE}
    named = [
        _from_settings(name, item, known.get(name) or _entry_for_program(item)) for name, item in settings.lsp.items()
    ]
    if not settings.options.auto_lsp:
        return tuple(named)
    taken = {config.name for config in named} | {_program_name(config.command) for config in named if config.command}
    others = [item for item in CATALOGUE if item.name not in taken and item.command[0] not in taken]
    return (*named, *(_from_catalogue(item) for item in others))


def _from_settings(name: str, item: LspSettings, known: KnownServer | None) -> ServerConfig:
    command = (item.command, *item.args) if item.command else known.command if known else ()
    if known is not None and not item.command and item.args:
        command = (known.command[0], *item.args)
    return ServerConfig(
        name,
        command,
        item.filetypes or (known.file_types if known else ()),
        item.root_markers or (known.markers if known else ()),
        role=known.role if known else "",
        needs_marker=bool(item.root_markers),
        project_code=known.project_code if known else "",
        is_configured=True,
        is_disabled=item.disabled,
        timeout=item.timeout or 30,
        env=item.env,
        init_options=_merge(known.init_options if known else {}, item.init_options),
        options=_merge(known.options if known else {}, item.options),
    )


def _entry_for_program(item: LspSettings) -> KnownServer | None:
    return next((known for known in CATALOGUE if known.command[0] == os.path.basename(item.command)), None)


def _from_catalogue(item: KnownServer) -> ServerConfig:
    return ServerConfig(
        item.name,
        item.command,
        item.file_types,
        item.markers,
        item.role,
        item.needs_marker,
        item.project_code,
        init_options=item.init_options,
        options=item.options,
    )


def _program_name(command: Sequence[str]) -> str:
    return os.path.basename(command[0])


def project_root(path: str, workspace: str, markers: Sequence[str]) -> str | None:
    """Return the nearest directory above a file that has a marker, within the workspace, or None."""
    folder = os.path.dirname(path)
    while is_within(workspace, folder):
        if any(_has_marker(folder, marker) for marker in markers):
            return folder
        if folder == workspace:
            break
        folder = os.path.dirname(folder)
    return None


def _has_marker(folder: str, marker: str) -> bool:
    name, _, text = marker.partition("|")
    if not name or name.startswith("/") or ".." in name.split("/"):
        return False
    place = os.path.join(folder, name)
    if not text:
        return bool(glob.glob(glob.escape(folder) + "/" + name)) if "*" in name else os.path.lexists(place)
    try:
        with open(place, "rb") as file:
            return text.encode() in file.read(_MAX_MARKER_BYTES)
    except OSError:
        return False


def find_program(name: str, project: ProjectFacts) -> str | None:
    """Find a program on the PATH. The project's own directories are searched only if the project is trusted."""
    folders = [entry for entry in project.environment.get("PATH", os.defpath).split(":") if os.path.isabs(entry)]
    if "/" in name:
        path = os.path.join(project.path, os.path.expanduser(name))
        return path if _is_program(path) else None
    if project.is_trusted:
        folders = [*(os.path.join(project.path, folder) for folder in _PROJECT_PROGRAM_DIRS), *folders]
    for folder in folders:
        path = os.path.join(folder, name)
        if _is_program(path) and (project.is_trusted or not is_within(project.path, os.path.realpath(path))):
            return path
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def command_line(config: ServerConfig, project: ProjectFacts) -> tuple[str, ...] | None:
    """Return the command line, or None if the program is not installed."""
    if not config.command:
        return None
    program = find_program(config.command[0], project)
    return (program, *config.command[1:]) if program else None


def without_project_code(
    config: ServerConfig, argv: Sequence[str], project: ProjectFacts, root: str
) -> ServerConfig | None:
    """Return a configuration that is safe in an untrusted project, with options that avoid project code. Returns None
    if there is none.
    """
    if project.is_trusted or not config.project_code:
        return config
    if config.project_code == "python":
        return msgspec.structs.replace(config, options=_merge(_external_python_options(project, root), config.options))
    if config.project_code == "typescript" and (library := _find_node_library(argv[0], "typescript/lib/tsserver.js")):
        options = _merge({"tsserver": {"path": library}}, config.init_options)
        return msgspec.structs.replace(config, init_options=options)
    return config if config.is_configured else None


def _external_python_options(project: ProjectFacts, root: str) -> dict[str, Any]:
    """Options with an interpreter from outside the project. The packages of project environments are only read."""
    python = find_program("python3", project) or find_program("python", project) or sys.executable
    patterns = (f"{glob.escape(os.path.join(root, name))}/lib/python3*/site-packages" for name in _PROJECT_VENVS)
    packages = sorted(found for pattern in patterns for found in glob.glob(pattern))
    return {"python": {"pythonPath": python, "analysis": {"extraPaths": packages}}}


def _find_node_library(program: str, name: str) -> str:
    """Find a Node library that was installed together with a program."""
    folder = os.path.dirname(os.path.realpath(program))
    while folder != "/":
        for place in (os.path.join(folder, "node_modules", name), os.path.join(os.path.dirname(folder), name)):
            if os.path.isfile(place):
                return place
        folder = os.path.dirname(folder)
    return ""


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge recursively; `over` takes precedence."""
    both = {**base, **over}
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            both[name] = _merge(base[name], over[name])
    return both


# Selection of the servers of a file, and their launch parameters.

_MAX_NAMES = 500


def read_project(context: ExtensionContext) -> tuple[ProjectFacts, tuple[ServerConfig, ...]]:
    """Return the current project facts, and the server configurations from the settings and the catalogue."""
    snapshot = context.configuration.snapshot()
    names, values = context.secrets()
    root = os.path.realpath(context.path)
    environment = command_environment(os.environ, context.environment, cwd=root, withheld=names, secrets=values)
    # Servers run outside the sandbox. With a sandbox they must not execute files that a sandboxed command could have
    # written.
    is_trusted = snapshot.project.is_trusted and not snapshot.settings.options.sandbox
    return ProjectFacts(root, is_trusted, environment), server_configs(snapshot.settings)


class ServerMatch(msgspec.Struct, frozen=True):
    """A server for a file, and the root of its project. `refusal` is the reason why it may not be started."""

    config: ServerConfig
    root: str
    refusal: str = ""


def match_servers(path: str, configs: Sequence[ServerConfig], project: ProjectFacts) -> tuple[ServerMatch, ...]:
    """Return the servers for a file, at most one for each role. Catalogue entries must be installed."""
    found: list[ServerMatch] = []
    refused: list[ServerMatch] = []
    roles: set[str] = set()
    for config in configs:
        if config.is_disabled or (config.role and config.role in roles) or not config.supports(path):
            continue
        root = project_root(path, project.path, config.markers)
        if root is None and config.needs_marker:
            continue
        match = ServerMatch(config, root or project.path)
        if not config.is_configured and command_line(config, project) is None:
            continue
        if config.project_code == "code" and not config.is_configured and not project.is_trusted:
            refused.append(msgspec.structs.replace(match, refusal=_untrusted_reason(config)))
            continue
        found.append(match)
        roles.add(config.role)
    return (*found, *(match for match in refused if not match.config.role or match.config.role not in roles))


def is_any_available(configs: Sequence[ServerConfig], project: ProjectFacts) -> bool:
    """Return whether a server is installed, or named in the settings, for files at the top of the workspace."""
    try:
        names = os.listdir(project.path)[:_MAX_NAMES]
    except OSError:
        return False
    # Computed once for all servers: this runs on the event loop, before a prompt.
    name_set = set(names)
    words = {word for name in names for word in file_words(name)}
    for config in configs:
        is_for_it = config.supports_any(words)
        is_marked = any(marker.partition("|")[0] in name_set for marker in config.markers)
        wanted = is_marked if config.needs_marker else is_marked or is_for_it
        is_allowed = config.project_code != "code" or project.is_trusted
        if config.is_configured and not config.is_disabled:
            return True
        if wanted and is_allowed and not config.is_disabled and command_line(config, project) is not None:
            return True
    return False


def launch_spec(
    config: ServerConfig, root: str, project: ProjectFacts, configuration: Configuration
) -> LaunchSpec | Unlaunchable:
    """Return the launch parameters of a server, or the reason why it cannot be started."""
    environment = {**project.environment, "PWD": root}
    if config.is_configured:
        try:
            item, problems = configuration.lsp(config.name)
        except NotFound:
            return Unlaunchable("It is no longer in the settings.", is_missing=False)
        if problems:
            return Unlaunchable(f"{problems[0].key}: {problems[0].text}")
        if item.command:
            config = msgspec.structs.replace(config, command=(item.command, *item.args))
        environment |= item.env
    if not config.command:
        return Unlaunchable("Its settings name no command, and the catalogue does not know it: set command.")
    argv = command_line(config, project)
    if argv is None:
        return Unlaunchable(f"{config.command[0]} is not installed, or not on the PATH: install it, or set command.")
    safe = without_project_code(config, argv, project, root)
    return (
        LaunchSpec(safe, argv, environment)
        if safe is not None
        else Unlaunchable(_untrusted_reason(config), is_missing=False)
    )


def _untrusted_reason(config: ServerConfig) -> str:
    return (
        "It would run code of this project, so it is not started. To allow that here: holdfast trust. To allow it"
        f" everywhere: holdfast config set lsp.{config.name}.disabled false."
    )
