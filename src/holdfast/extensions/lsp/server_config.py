"""Candidate language servers of a workspace, from its settings and the catalogue. Reads the disk.

A server named in the settings takes precedence over the catalogue entry of the same name, which provides its defaults.
In an untrusted project nothing of the project is executed: no program in its directories, interpreter, library or build
script.
"""

import glob
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.domain.errors import NotFound
from holdfast.domain.settings import LspSettings, Settings
from holdfast.extensions.base import ExtensionContext
from holdfast.workspace.files.file_paths import is_within
from holdfast.workspace.process.shell_call import command_environment

__all__ = [
    "CATALOGUE",
    "LANGUAGES",
    "Care",
    "KnownServer",
    "LaunchSpec",
    "Match",
    "ProjectFacts",
    "ServerConfig",
    "Unlaunchable",
    "argv_of",
    "careful",
    "found_program",
    "language_of",
    "matches_for",
    "may_help",
    "plans_of",
    "prepared",
    "root_of",
    "surveyed",
]


# Built-in catalogue of common language servers and their file types. Pure data: whether a server is installed is
# determined elsewhere.

Care = Literal["", "code", "python", "typescript"]
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
    endings: tuple[str, ...]
    markers: tuple[str, ...] = ()
    role: str = ""
    needs_marker: bool = False
    care: Care = ""
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
    KnownServer("basedpyright", ("basedpyright-langserver", "--stdio"), _PY, _PYTHON, "python", care="python"),
    KnownServer("pyright", ("pyright-langserver", "--stdio"), _PY, _PYTHON, "python", care="python"),
    KnownServer("ty", ("ty", "server"), _PY, ("ty.toml", *_PYTHON), "python"),
    KnownServer("pyrefly", ("pyrefly", "lsp"), _PY, ("pyrefly.toml", *_PYTHON), "python", care="code"),
    KnownServer("pylsp", ("pylsp",), ("py",), _PYTHON, "python", care="code"),
    KnownServer("jedi", ("jedi-language-server",), ("py",), _PYTHON, "python", care="code"),
    KnownServer("ruff", ("ruff", "server"), _PY, _RUFF, needs_marker=True),
    # JavaScript and web pages
    KnownServer("deno", ("deno", "lsp"), _JS, _DENO, "javascript", needs_marker=True),
    KnownServer("typescript", ("typescript-language-server", "--stdio"), _JS, _NODE, "javascript", care="typescript",
          init_options=_NO_DOWNLOADS),
    KnownServer("vtsls", ("vtsls", "--stdio"), _JS, _NODE, "javascript", care="code",
          options={"typescript": {"disableAutomaticTypeAcquisition": True}}),
    KnownServer("biome", ("biome", "lsp-proxy"), (*_JS, "json", "css"), ("biome.json", "biome.jsonc"),
          needs_marker=True),
    KnownServer("eslint", ("vscode-eslint-language-server", "--stdio"), _JS, _ESLINT, needs_marker=True, care="code"),
    KnownServer("svelte", ("svelteserver", "--stdio"), ("svelte",), ("svelte.config.js", "package.json"), care="code"),
    KnownServer("vue", ("vue-language-server", "--stdio"), ("vue",), ("package.json",), care="code"),
    KnownServer("astro", ("astro-ls", "--stdio"), ("astro",), ("astro.config.mjs", "package.json"), care="code"),
    KnownServer("html", ("vscode-html-language-server", "--stdio"), ("html", "htm"), ("package.json",)),
    KnownServer("css", ("vscode-css-language-server", "--stdio"), ("css", "scss", "less"), ("package.json",)),
    KnownServer("json", ("vscode-json-language-server", "--stdio"), ("json", "jsonc"), ("package.json",)),
    # Compiled languages
    KnownServer("gopls", ("gopls",), ("go", "go.mod", "go.work"), ("go.work", "go.mod")),
    KnownServer("rust-analyzer", ("rust-analyzer",), ("rs",), ("Cargo.toml", "rust-project.json"), care="code"),
    KnownServer("clangd", ("clangd",), _C, ("compile_commands.json", "compile_flags.txt", ".clangd", "CMakeLists.txt")),
    KnownServer("zls", ("zls",), ("zig", "zon"), ("build.zig",), care="code"),
    KnownServer("sourcekit", ("sourcekit-lsp",), ("swift",), ("Package.swift",), care="code"),
    KnownServer("jdtls", ("jdtls",), ("java",), _GRADLE, care="code"),
    KnownServer("kotlin", ("kotlin-lsp", "--stdio"), ("kt", "kts"), _GRADLE, "kotlin", care="code"),
    KnownServer("kotlin-language-server", ("kotlin-language-server",), ("kt", "kts"), _GRADLE, "kotlin", care="code"),
    KnownServer("metals", ("metals",), ("scala", "sbt", "sc"), ("build.sbt", "build.sc"), care="code"),
    KnownServer("csharp", ("csharp-ls",), ("cs",), ("global.json", ".editorconfig"), care="code"),
    KnownServer("fsharp", ("fsautocomplete",), ("fs", "fsi", "fsx"), ("global.json",), care="code"),
    KnownServer("haskell", ("haskell-language-server-wrapper", "--lsp"), ("hs", "lhs"), ("cabal.project", "stack.yaml"),
          care="code"),
    KnownServer("ocaml", ("ocamllsp",), ("ml", "mli"), ("dune-project", "opam"), care="code"),
    KnownServer("dart", ("dart", "language-server"), ("dart",), ("pubspec.yaml",), care="code"),
    KnownServer("gleam", ("gleam", "lsp"), ("gleam",), ("gleam.toml",), care="code"),
    KnownServer("erlang", ("erlang_ls",), ("erl", "hrl"), ("rebar.config",), care="code"),
    KnownServer("elixir", ("elixir-ls",), ("ex", "exs"), ("mix.exs",), care="code"),
    KnownServer("julia", ("julia-lsp",), ("jl",), ("Project.toml",), care="code"),
    # Scripting languages
    KnownServer("ruby", ("ruby-lsp",), ("rb", "rake", "gemspec"), ("Gemfile",), "ruby", care="code"),
    KnownServer("solargraph", ("solargraph", "stdio"), ("rb",), ("Gemfile",), "ruby", care="code"),
    KnownServer("php", ("intelephense", "--stdio"), ("php",), ("composer.json",), "php"),
    KnownServer("phpactor", ("phpactor", "language-server"), ("php",), ("composer.json",), "php", care="code"),
    KnownServer("lua", ("lua-language-server",), ("lua",), (".luarc.json", ".luarc.jsonc", "stylua.toml")),
    KnownServer("bash", ("bash-language-server", "start"), ("sh", "bash"), ()),
    KnownServer("clojure", ("clojure-lsp",), ("clj", "cljs", "cljc", "edn"), ("deps.edn", "project.clj"), care="code"),
    # Configuration and text formats
    KnownServer("yaml", ("yaml-language-server", "--stdio"), ("yaml", "yml"), ()),
    KnownServer("taplo", ("taplo", "lsp", "stdio"), ("toml",), ()),
    KnownServer("docker", ("docker-langserver", "--stdio"), ("Dockerfile", "dockerfile"), ()),
    KnownServer("terraform", ("terraform-ls", "serve"), ("tf", "tfvars"), (".terraform",), care="code"),
    KnownServer("nix", ("nil",), ("nix",), ("flake.nix",)),
    KnownServer("texlab", ("texlab",), ("tex", "bib"), (".latexmkrc",)),
    KnownServer("typst", ("tinymist",), ("typ",), ("typst.toml",)),
    KnownServer("marksman", ("marksman", "server"), ("md",), (".marksman.toml",), needs_marker=True),
)  # fmt: skip

LANGUAGES = {
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


def language_of(name: str) -> str:
    """Return the LSP language identifier of a file, by its whole name or its extension."""
    small = name.lower()
    ending = small.rpartition(".")[2]
    return LANGUAGES.get(small) or LANGUAGES.get(ending) or ending


# Candidate language servers of a workspace, from its settings and the catalogue. Reads the disk.

_OWN_PROGRAMS = (".venv/bin", "venv/bin", "node_modules/.bin", "vendor/bin")
_OWN_PYTHONS = (".venv", "venv")
_LARGEST_MARKER = 1 << 20


class ProjectFacts(msgspec.Struct, frozen=True):
    """Project facts: the workspace path, whether the project is trusted, and the environment of the user."""

    path: str
    is_trusted: bool
    environment: Mapping[str, str]


class ServerConfig(msgspec.Struct, frozen=True):
    """Start parameters of a server and its file types. Empty `endings` match all files."""

    name: str
    command: tuple[str, ...]
    endings: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    role: str = ""
    needs_marker: bool = False
    care: Care = ""
    is_named: bool = False
    """Configured by the user, or by a project that the user trusts."""
    is_disabled: bool = False
    timeout: int = 30
    env: dict[str, str] = {}
    """Unexpanded, so that a change of it is a change of the plan."""
    init_options: dict[str, Any] = {}
    options: dict[str, Any] = {}

    def fits(self, path: str) -> bool:
        """Return whether the server supports a file, by its extension, whole name or language."""
        if not self.endings:
            return True
        name = os.path.basename(path)
        words = {name.lower(), name.lower().rpartition(".")[2], language_of(name)}
        return any(ending.lower().removeprefix(".") in words or name == ending for ending in self.endings)


class LaunchSpec(msgspec.Struct, frozen=True):
    """Complete launch parameters."""

    plan: ServerConfig
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class Unlaunchable(msgspec.Struct, frozen=True):
    """The reason why a server cannot be started. `is_absent`: the program is not installed, and may
    be installed later.
    """

    why: str
    is_absent: bool = True


def plans_of(settings: Settings) -> tuple[ServerConfig, ...]:
    """Return the servers named in the settings, followed by the rest of the catalogue if `auto_lsp` is set."""
    known = {item.name: item for item in CATALOGUE}
    named = [_named(name, item, known.get(name) or _same_program(item)) for name, item in settings.lsp.items()]
    if not settings.options.auto_lsp:
        return tuple(named)
    taken = {plan.name for plan in named} | {_program(plan.command) for plan in named if plan.command}
    others = [item for item in CATALOGUE if item.name not in taken and item.command[0] not in taken]
    return (*named, *(_of(item) for item in others))


def _named(name: str, item: LspSettings, known: KnownServer | None) -> ServerConfig:
    command = (item.command, *item.args) if item.command else known.command if known else ()
    if known is not None and not item.command and item.args:
        command = (known.command[0], *item.args)
    return ServerConfig(
        name,
        command,
        item.filetypes or (known.endings if known else ()),
        item.root_markers or (known.markers if known else ()),
        role=known.role if known else "",
        needs_marker=bool(item.root_markers),
        care=known.care if known else "",
        is_named=True,
        is_disabled=item.disabled,
        timeout=item.timeout or 30,
        env=item.env,
        init_options=_merged(known.init_options if known else {}, item.init_options),
        options=_merged(known.options if known else {}, item.options),
    )


def _same_program(item: LspSettings) -> KnownServer | None:
    return next((known for known in CATALOGUE if known.command[0] == os.path.basename(item.command)), None)


def _of(item: KnownServer) -> ServerConfig:
    return ServerConfig(
        item.name,
        item.command,
        item.endings,
        item.markers,
        item.role,
        item.needs_marker,
        item.care,
        init_options=item.init_options,
        options=item.options,
    )


def _program(command: Sequence[str]) -> str:
    return os.path.basename(command[0])


def root_of(path: str, workspace: str, markers: Sequence[str]) -> str | None:
    """Return the nearest directory above a file that has a marker, within the workspace, or None."""
    folder = os.path.dirname(path)
    while is_within(workspace, folder):
        if any(_is_marked(folder, marker) for marker in markers):
            return folder
        if folder == workspace:
            break
        folder = os.path.dirname(folder)
    return None


def _is_marked(folder: str, marker: str) -> bool:
    name, _, text = marker.partition("|")
    if not name or name.startswith("/") or ".." in name.split("/"):
        return False
    place = os.path.join(folder, name)
    if not text:
        return bool(glob.glob(glob.escape(folder) + "/" + name)) if "*" in name else os.path.lexists(place)
    try:
        with open(place, "rb") as file:
            return text.encode() in file.read(_LARGEST_MARKER)
    except OSError:
        return False


def found_program(name: str, site: ProjectFacts) -> str | None:
    """Find a program on the PATH. The project's own directories are searched only if the project is trusted."""
    folders = [entry for entry in site.environment.get("PATH", os.defpath).split(":") if os.path.isabs(entry)]
    if "/" in name:
        path = os.path.join(site.path, os.path.expanduser(name))
        return path if _is_program(path) else None
    if site.is_trusted:
        folders = [*(os.path.join(site.path, folder) for folder in _OWN_PROGRAMS), *folders]
    for folder in folders:
        path = os.path.join(folder, name)
        if _is_program(path) and (site.is_trusted or not is_within(site.path, os.path.realpath(path))):
            return path
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def argv_of(plan: ServerConfig, site: ProjectFacts) -> tuple[str, ...] | None:
    """Return the command line, or None if the program is not installed."""
    if not plan.command:
        return None
    program = found_program(plan.command[0], site)
    return (program, *plan.command[1:]) if program else None


def careful(plan: ServerConfig, argv: Sequence[str], site: ProjectFacts, root: str) -> ServerConfig | None:
    """Return a plan that is safe in an untrusted project, with options that avoid project code, or None if there is
    none.
    """
    if site.is_trusted or not plan.care:
        return plan
    if plan.care == "python":
        return msgspec.structs.replace(plan, options=_merged(_away_from_pythons(site, root), plan.options))
    if plan.care == "typescript" and (library := _library_beside(argv[0], "typescript/lib/tsserver.js")):
        options = _merged({"tsserver": {"path": library}}, plan.init_options)
        return msgspec.structs.replace(plan, init_options=options)
    return plan if plan.is_named else None


def _away_from_pythons(site: ProjectFacts, root: str) -> dict[str, Any]:
    """Options with an interpreter from outside the project. The packages of project environments are only read."""
    python = found_program("python3", site) or found_program("python", site) or sys.executable
    patterns = (f"{glob.escape(os.path.join(root, name))}/lib/python3*/site-packages" for name in _OWN_PYTHONS)
    packages = sorted(found for pattern in patterns for found in glob.glob(pattern))
    return {"python": {"pythonPath": python, "analysis": {"extraPaths": packages}}}


def _library_beside(program: str, name: str) -> str:
    """Find a Node library that was installed together with a program."""
    folder = os.path.dirname(os.path.realpath(program))
    while folder != "/":
        for place in (os.path.join(folder, "node_modules", name), os.path.join(os.path.dirname(folder), name)):
            if os.path.isfile(place):
                return place
        folder = os.path.dirname(folder)
    return ""


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge recursively; `over` takes precedence."""
    both = {**base, **over}
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            both[name] = _merged(base[name], over[name])
    return both


# Selection of servers for a file, and preparation of their start. Blocks: it reads the disk and expands settings.

_MOST_NAMES = 500


def surveyed(ground: ExtensionContext) -> tuple[ProjectFacts, tuple[ServerConfig, ...]]:
    """Return the current project facts, and the plans from the settings and the catalogue."""
    reading = ground.configuration.snapshot()
    names, values = ground.secrets()
    root = os.path.realpath(ground.path)
    environment = command_environment(os.environ, ground.environment, cwd=root, withheld=names, secrets=values)
    # Servers run outside the sandbox. With a sandbox they must not execute files that a sandboxed command could have
    # written.
    is_trusted = reading.project.is_trusted and not reading.settings.options.sandbox
    return ProjectFacts(root, is_trusted, environment), plans_of(reading.settings)


class Match(msgspec.Struct, frozen=True):
    """A server for a file, and the root of its project. `why_not` is the reason why it may not be started."""

    plan: ServerConfig
    root: str
    why_not: str = ""


def matches_for(path: str, plans: Sequence[ServerConfig], site: ProjectFacts) -> tuple[Match, ...]:
    """Return the servers for a file, at most one for each role. Catalogue entries must be installed."""
    found: list[Match] = []
    refused: list[Match] = []
    roles: set[str] = set()
    for plan in plans:
        if plan.is_disabled or (plan.role and plan.role in roles) or not plan.fits(path):
            continue
        root = root_of(path, site.path, plan.markers)
        if root is None and plan.needs_marker:
            continue
        match = Match(plan, root or site.path)
        if not plan.is_named and argv_of(plan, site) is None:
            continue
        if plan.care == "code" and not plan.is_named and not site.is_trusted:
            refused.append(msgspec.structs.replace(match, why_not=_not_trusted(plan)))
            continue
        found.append(match)
        roles.add(plan.role)
    return (*found, *(match for match in refused if not match.plan.role or match.plan.role not in roles))


def may_help(plans: Sequence[ServerConfig], site: ProjectFacts) -> bool:
    """Return whether a server is installed, or named in the settings, for files at the top of the workspace."""
    try:
        names = os.listdir(site.path)[:_MOST_NAMES]
    except OSError:
        return False
    marks = set(names)
    for plan in plans:
        is_for_it = any(plan.fits(name) for name in names) if plan.endings else True
        is_marked = any(marker.partition("|")[0] in marks for marker in plan.markers)
        wanted = is_marked if plan.needs_marker else is_marked or is_for_it
        may = plan.care != "code" or site.is_trusted
        if plan.is_named and not plan.is_disabled:
            return True
        if wanted and may and not plan.is_disabled and argv_of(plan, site) is not None:
            return True
    return False


def prepared(
    plan: ServerConfig, root: str, site: ProjectFacts, configuration: Configuration
) -> LaunchSpec | Unlaunchable:
    """Return the launch parameters of a server, or the reason why it cannot be started."""
    environment = {**site.environment, "PWD": root}
    if plan.is_named:
        try:
            item, problems = configuration.lsp(plan.name)
        except NotFound:
            return Unlaunchable("It is not in the settings any more.", is_absent=False)
        if problems:
            return Unlaunchable(f"{problems[0].key}: {problems[0].text}")
        if item.command:
            plan = msgspec.structs.replace(plan, command=(item.command, *item.args))
        environment |= item.env
    if not plan.command:
        return Unlaunchable("Its settings name no command, and the catalogue does not know it: set command.")
    argv = argv_of(plan, site)
    if argv is None:
        return Unlaunchable(f"{plan.command[0]} is not installed, or not on the PATH: install it, or set command.")
    safe = careful(plan, argv, site, root)
    return (
        LaunchSpec(safe, argv, environment) if safe is not None else Unlaunchable(_not_trusted(plan), is_absent=False)
    )


def _not_trusted(plan: ServerConfig) -> str:
    return (
        "It would run code of this project, so it waits. To let it do so here: holdfast trust. To let it do so"
        f" everywhere: holdfast config set lsp.{plan.name}.disabled false."
    )
