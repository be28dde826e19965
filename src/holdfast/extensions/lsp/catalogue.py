"""Built-in catalogue of common language servers and their file types. Pure data: whether a server is installed is
determined elsewhere.

Servers are never installed automatically. Of the entries with the same role, the first installed one is used; a server
named in the settings replaces the others of its role.
"""

from typing import Literal

import msgspec

__all__ = ["CATALOGUE", "LANGUAGES", "Care", "Known", "language_of"]

Care = Literal["", "code", "python", "typescript"]
"""Project code that the server would execute, which requires trust. `code`: build scripts, plugins or executable
configuration; such a server starts only in a trusted project or if the user names it in the settings. `python` and
`typescript`: an interpreter or a library in the project's directory, which options can replace.
"""


class Known(msgspec.Struct, frozen=True):
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

CATALOGUE: tuple[Known, ...] = (
    # Python
    Known("basedpyright", ("basedpyright-langserver", "--stdio"), _PY, _PYTHON, "python", care="python"),
    Known("pyright", ("pyright-langserver", "--stdio"), _PY, _PYTHON, "python", care="python"),
    Known("ty", ("ty", "server"), _PY, ("ty.toml", *_PYTHON), "python"),
    Known("pyrefly", ("pyrefly", "lsp"), _PY, ("pyrefly.toml", *_PYTHON), "python", care="code"),
    Known("pylsp", ("pylsp",), ("py",), _PYTHON, "python", care="code"),
    Known("jedi", ("jedi-language-server",), ("py",), _PYTHON, "python", care="code"),
    Known("ruff", ("ruff", "server"), _PY, _RUFF, needs_marker=True),
    # JavaScript and web pages
    Known("deno", ("deno", "lsp"), _JS, _DENO, "javascript", needs_marker=True),
    Known("typescript", ("typescript-language-server", "--stdio"), _JS, _NODE, "javascript", care="typescript",
          init_options=_NO_DOWNLOADS),
    Known("vtsls", ("vtsls", "--stdio"), _JS, _NODE, "javascript", care="code",
          options={"typescript": {"disableAutomaticTypeAcquisition": True}}),
    Known("biome", ("biome", "lsp-proxy"), (*_JS, "json", "css"), ("biome.json", "biome.jsonc"), needs_marker=True),
    Known("eslint", ("vscode-eslint-language-server", "--stdio"), _JS, _ESLINT, needs_marker=True, care="code"),
    Known("svelte", ("svelteserver", "--stdio"), ("svelte",), ("svelte.config.js", "package.json"), care="code"),
    Known("vue", ("vue-language-server", "--stdio"), ("vue",), ("package.json",), care="code"),
    Known("astro", ("astro-ls", "--stdio"), ("astro",), ("astro.config.mjs", "package.json"), care="code"),
    Known("html", ("vscode-html-language-server", "--stdio"), ("html", "htm"), ("package.json",)),
    Known("css", ("vscode-css-language-server", "--stdio"), ("css", "scss", "less"), ("package.json",)),
    Known("json", ("vscode-json-language-server", "--stdio"), ("json", "jsonc"), ("package.json",)),
    # Compiled languages
    Known("gopls", ("gopls",), ("go", "go.mod", "go.work"), ("go.work", "go.mod")),
    Known("rust-analyzer", ("rust-analyzer",), ("rs",), ("Cargo.toml", "rust-project.json"), care="code"),
    Known("clangd", ("clangd",), _C, ("compile_commands.json", "compile_flags.txt", ".clangd", "CMakeLists.txt")),
    Known("zls", ("zls",), ("zig", "zon"), ("build.zig",), care="code"),
    Known("sourcekit", ("sourcekit-lsp",), ("swift",), ("Package.swift",), care="code"),
    Known("jdtls", ("jdtls",), ("java",), _GRADLE, care="code"),
    Known("kotlin", ("kotlin-lsp", "--stdio"), ("kt", "kts"), _GRADLE, "kotlin", care="code"),
    Known("kotlin-language-server", ("kotlin-language-server",), ("kt", "kts"), _GRADLE, "kotlin", care="code"),
    Known("metals", ("metals",), ("scala", "sbt", "sc"), ("build.sbt", "build.sc"), care="code"),
    Known("csharp", ("csharp-ls",), ("cs",), ("global.json", ".editorconfig"), care="code"),
    Known("fsharp", ("fsautocomplete",), ("fs", "fsi", "fsx"), ("global.json",), care="code"),
    Known("haskell", ("haskell-language-server-wrapper", "--lsp"), ("hs", "lhs"), ("cabal.project", "stack.yaml"),
          care="code"),
    Known("ocaml", ("ocamllsp",), ("ml", "mli"), ("dune-project", "opam"), care="code"),
    Known("dart", ("dart", "language-server"), ("dart",), ("pubspec.yaml",), care="code"),
    Known("gleam", ("gleam", "lsp"), ("gleam",), ("gleam.toml",), care="code"),
    Known("erlang", ("erlang_ls",), ("erl", "hrl"), ("rebar.config",), care="code"),
    Known("elixir", ("elixir-ls",), ("ex", "exs"), ("mix.exs",), care="code"),
    Known("julia", ("julia-lsp",), ("jl",), ("Project.toml",), care="code"),
    # Scripting languages
    Known("ruby", ("ruby-lsp",), ("rb", "rake", "gemspec"), ("Gemfile",), "ruby", care="code"),
    Known("solargraph", ("solargraph", "stdio"), ("rb",), ("Gemfile",), "ruby", care="code"),
    Known("php", ("intelephense", "--stdio"), ("php",), ("composer.json",), "php"),
    Known("phpactor", ("phpactor", "language-server"), ("php",), ("composer.json",), "php", care="code"),
    Known("lua", ("lua-language-server",), ("lua",), (".luarc.json", ".luarc.jsonc", "stylua.toml")),
    Known("bash", ("bash-language-server", "start"), ("sh", "bash"), ()),
    Known("clojure", ("clojure-lsp",), ("clj", "cljs", "cljc", "edn"), ("deps.edn", "project.clj"), care="code"),
    # Configuration and text formats
    Known("yaml", ("yaml-language-server", "--stdio"), ("yaml", "yml"), ()),
    Known("taplo", ("taplo", "lsp", "stdio"), ("toml",), ()),
    Known("docker", ("docker-langserver", "--stdio"), ("Dockerfile", "dockerfile"), ()),
    Known("terraform", ("terraform-ls", "serve"), ("tf", "tfvars"), (".terraform",), care="code"),
    Known("nix", ("nil",), ("nix",), ("flake.nix",)),
    Known("texlab", ("texlab",), ("tex", "bib"), (".latexmkrc",)),
    Known("typst", ("tinymist",), ("typ",), ("typst.toml",)),
    Known("marksman", ("marksman", "server"), ("md",), (".marksman.toml",), needs_marker=True),
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
