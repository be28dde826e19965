"""Selection of the server for a file: settings, catalogue, disk, trust."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.config.configuration import Configuration
from holdfast.config.locations import locate_settings
from holdfast.domain.settings import LspSettings, Options, Settings
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.lsp import server_config
from holdfast.extensions.lsp.server_config import (
    CATALOGUE,
    ProjectFacts,
    ServerConfig,
    command_line,
    find_program,
    is_any_available,
    language_id,
    match_servers,
    project_root,
    read_project,
    server_configs,
    without_project_code,
)


def program(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    return root


def site_of(work: Path, *path: Path, trusted: bool = False) -> ProjectFacts:
    return ProjectFacts(str(work), trusted, {"PATH": ":".join(map(str, path))})


def names(work: Path, file: str, settings: Settings, *path: Path, trusted: bool = False) -> list[str]:
    found = match_servers(str(work / file), server_configs(settings), site_of(work, *path, trusted=trusted))
    return [f"({match.config.name})" if match.refusal else match.config.name for match in found]


def test_catalogue_is_consistent() -> None:
    assert len({known.name for known in CATALOGUE}) == len(CATALOGUE)
    for known in CATALOGUE:
        assert re.fullmatch(r"[a-z][a-z-]*", known.name)
        assert known.command
        assert known.file_types
        assert not any(ending.startswith(".") for ending in known.file_types)
        assert known.markers or not known.needs_marker
        assert not {"npx", "uvx", "pipx", "bunx", "sh", "bash"} & set(known.command), "nothing is downloaded"
    for name in ("pyrefly", "pylsp", "vtsls", "rust-analyzer", "zls", "jdtls", "eslint", "ruby", "terraform", "csharp"):
        assert next(known for known in CATALOGUE if known.name == name).project_code == "code"


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("a.py", "python"), ("A.TS", "typescript"), ("x.tsx", "typescriptreact"), ("go.mod", "go.mod"), ("a.go", "go"),
        ("Dockerfile", "dockerfile"), ("a.h", "c"), ("a.unknown", "unknown"), ("Makefile", "makefile"),
    ],
)  # fmt: skip
def test_languages(file: str, language: str) -> None:
    assert language_id(file) == language


@pytest.mark.parametrize(
    ("given", "fits"),
    [("py", True), (".py", True), ("python", True), ("PY", True), ("main.py", True), ("pyi", False), ("js", False)],
)
def test_file_type_spellings(given: str, fits: bool) -> None:
    assert ServerConfig("x", ("x",), (given,)).supports("/w/main.py") == fits
    assert ServerConfig("x", ("x",)).supports("/w/main.py"), "without any it is for all"


def test_first_installed_server_for_each_role(work: Path, tmp_path: Path) -> None:
    (work / "a.py").touch()
    bin_ = program(tmp_path / "bin", "pyright-langserver", "ty", "ruff")
    assert names(work, "a.py", Settings(), bin_) == ["pyright"]
    program(bin_, "basedpyright-langserver")
    assert names(work, "a.py", Settings(), bin_) == ["basedpyright"]
    assert names(work, "a.py", Settings(lsp={"ty": LspSettings()}), bin_) == ["ty"]
    disabled = Settings(lsp={"basedpyright": LspSettings(disabled=True)})
    assert names(work, "a.py", disabled, bin_) == ["pyright"]
    other = Settings(lsp={"mine": LspSettings(command="/opt/pyright-langserver", args=("--stdio",))})
    assert names(work, "a.py", other, bin_) == ["mine"], "the same program under another name"
    assert names(work, "a.py", Settings(options=Options(auto_lsp=False)), bin_) == []
    named = Settings(lsp={"ty": LspSettings()}, options=Options(auto_lsp=False))
    assert names(work, "a.py", named, bin_) == ["ty"]
    assert names(work, "a.txt", Settings(), bin_) == []


def test_markers(work: Path, tmp_path: Path) -> None:
    deep = work / "apps/one/src"
    deep.mkdir(parents=True)
    bin_ = program(tmp_path / "bin", "ruff", "deno", "typescript-language-server")
    assert names(work, "apps/one/src/a.py", Settings(), bin_) == []
    (work / "pyproject.toml").write_text("[project]\n")
    assert names(work, "apps/one/src/a.py", Settings(), bin_) == []
    (work / "pyproject.toml").write_text("[tool.ruff.lint]\n")
    assert names(work, "apps/one/src/a.py", Settings(), bin_) == ["ruff"]
    assert names(work, "apps/one/src/a.ts", Settings(), bin_) == ["typescript"]
    (work / "apps/one/deno.json").touch()
    assert names(work, "apps/one/src/a.ts", Settings(), bin_) == ["deno"]
    assert project_root(str(deep / "a.ts"), str(work), ["deno.json"]) == str(work / "apps/one")
    assert project_root(str(deep / "a.ts"), str(work), ["*.toml"]) == str(work)
    (tmp_path / "above.json").touch()
    assert project_root(str(deep / "a.ts"), str(work), ["above.json", "../above.json", "/etc/passwd"]) is None


def test_programs_of_project_need_trust(work: Path, tmp_path: Path) -> None:
    own = program(work / "node_modules/.bin", "typescript-language-server")
    elsewhere = program(tmp_path / "bin", "other")
    link = tmp_path / "bin/ty"
    link.symlink_to(program(work / "tools", "ty") / "ty")
    for trusted in (False, True):
        fixture = site_of(work, own, elsewhere, trusted=trusted)
        assert bool(find_program("typescript-language-server", fixture)) == trusted
        assert bool(find_program("ty", fixture)) == trusted, "a link into it is no way around"
        assert find_program("other", fixture) == str(elsewhere / "other")
    assert find_program("missing", fixture) is None
    (tmp_path / "bin/text").write_text("x")
    assert find_program("text", fixture) is None
    assert find_program("other", ProjectFacts(str(work), False, {"PATH": f"::relative:{elsewhere}"})) == str(
        elsewhere / "other"
    )
    assert command_line(ServerConfig("x", ("tools/ty", "server"), is_configured=True), fixture) == (
        f"{work}/tools/ty",
        "server",
    )


def test_server_that_runs_project_code_needs_trust(work: Path, tmp_path: Path) -> None:
    bin_ = program(tmp_path / "bin", "rust-analyzer", "pylsp")
    (work / "Cargo.toml").touch()
    assert names(work, "a.rs", Settings(), bin_) == ["(rust-analyzer)"]
    assert names(work, "a.rs", Settings(), bin_, trusted=True) == ["rust-analyzer"]
    assert names(work, "a.rs", Settings(lsp={"rust-analyzer": LspSettings()}), bin_) == ["rust-analyzer"]
    assert names(work, "a.py", Settings(), bin_) == ["(pylsp)"]
    program(bin_, "ty")
    assert names(work, "a.py", Settings(), bin_) == ["ty"], "another of its role can do without"
    assert not is_any_available(server_configs(Settings()), site_of(work, program(tmp_path / "b2", "rust-analyzer")))
    assert is_any_available(server_configs(Settings()), site_of(work, tmp_path / "b2", trusted=True))


def test_project_programs_are_not_run_indirectly(work: Path, tmp_path: Path) -> None:
    packages = work / ".venv/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    own = program(work / ".venv/bin", "python3")
    bin_ = program(tmp_path / "bin", "python3", "basedpyright-langserver", "typescript-language-server")
    plans = {plan.name: plan for plan in server_configs(Settings())}
    fixture, argv = site_of(work, own, bin_), (str(bin_ / "typescript-language-server"),)
    safe = without_project_code(plans["basedpyright"], argv, fixture, str(work))
    assert safe is not None
    python = safe.options["python"]
    assert python == {"pythonPath": str(bin_ / "python3"), "analysis": {"extraPaths": [str(packages)]}}
    assert without_project_code(plans["typescript"], argv, fixture, str(work)) is None, (
        "it would take the project's library"
    )
    library = tmp_path / "node_modules/typescript/lib/tsserver.js"
    library.parent.mkdir(parents=True)
    library.touch()
    safe = without_project_code(plans["typescript"], argv, fixture, str(work))
    assert safe is not None
    assert safe.init_options == {"disableAutomaticTypingAcquisition": True, "tsserver": {"path": str(library)}}
    trusted = site_of(work, bin_, trusted=True)
    assert without_project_code(plans["typescript"], argv, trusted, str(work)) is plans["typescript"]


def test_catalogue_supplies_omitted_settings() -> None:
    item = LspSettings(args=("-v",), init_options={"a": 1}, options={"typescript": {"x": 1}}, env={"A": "b"}, timeout=5)
    plan = server_configs(Settings(lsp={"vtsls": item}))[0]
    assert plan.command == ("vtsls", "-v")
    assert "ts" in plan.file_types
    assert plan.options == {"typescript": {"disableAutomaticTypeAcquisition": True, "x": 1}}
    assert (plan.init_options, plan.env, plan.timeout, plan.role) == ({"a": 1}, {"A": "b"}, 5, "javascript")
    unknown = server_configs(Settings(lsp={"mine": LspSettings(filetypes=("x",), root_markers=("m",))}))[0]
    assert (unknown.command, unknown.needs_marker, unknown.markers) == ((), True, ("m",))


def test_server_availability_for_file(work: Path, tmp_path: Path) -> None:
    bin_ = program(tmp_path / "bin", "basedpyright-langserver", "ruff")
    assert not is_any_available(server_configs(Settings()), site_of(work, bin_)), "there is nothing it is for"
    (work / "setup.cfg").touch()
    assert is_any_available(server_configs(Settings()), site_of(work, bin_))
    assert not is_any_available(server_configs(Settings()), site_of(work, tmp_path))
    assert not is_any_available(server_configs(Settings()), site_of(tmp_path / "work2", bin_))


def test_availability_examines_each_name_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on the event loop before a prompt: its cost must not be names times servers."""
    examined: list[str] = []
    real = server_config.language_id

    def counted(name: str) -> str:
        examined.append(name)
        return real(name)

    monkeypatch.setattr(server_config, "language_id", counted)
    for number in range(100):
        (tmp_path / f"{number}.py").touch()
    assert not is_any_available(server_configs(Settings()), site_of(tmp_path, tmp_path / "no programs"))
    assert len(examined) == 100


def test_servers_get_no_model_keys(work: Path, tmp_path: Path) -> None:
    places = locate_settings(str(work), {"HOME": str(tmp_path)}, data_dir=str(tmp_path), workspace_id="w")
    client = {"PATH": "/usr/bin", "MODEL_KEY": "a-key-of-a-model", "OTHER": "a-key-of-a-model", "PLAIN": "x"}
    client["NAMED"] = "withheld by its name only"
    ground = SimpleNamespace(
        path=str(work),
        configuration=Configuration(places, client),
        environment=client,
        secrets=lambda: (("MODEL_KEY", "NAMED"), ("a-key-of-a-model",)),
    )
    fixture, plans = read_project(cast(ExtensionContext, ground))
    assert plans
    assert not fixture.is_trusted
    assert fixture.environment["PLAIN"] == "x"
    assert not {"MODEL_KEY", "OTHER", "NAMED"} & fixture.environment.keys()


@pytest.mark.parametrize("sandbox", ["", 'options.sandbox = "workspace"\n'])
def test_no_project_program_runs_outside_sandbox(work: Path, tmp_path: Path, sandbox: str) -> None:
    """A command inside the sandbox could have created it after the project was trusted."""
    (work / "holdfast.toml").write_text(f'{sandbox}[lsp.own]\ncommand = "own"\n')
    places = locate_settings(str(work), {"HOME": str(tmp_path)}, data_dir=str(tmp_path), workspace_id="w")
    configuration = Configuration(places, {})
    project = configuration.snapshot().project
    configuration.trust.trust(project.anchor, project.digest, at=0.0)
    ground = SimpleNamespace(path=str(work), configuration=configuration, environment={}, secrets=lambda: ((), ()))
    fixture, _ = read_project(cast(ExtensionContext, ground))
    assert configuration.snapshot().project.is_trusted
    assert fixture.is_trusted is not bool(sandbox)
