"""Findings of `holdfast doctor`, area by area: state, location and remedy."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.domain.doctor import Finding
from holdfast.domain.errors import ProviderError, ToolError
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart, TextDelta
from holdfast.domain.processes import SandboxState
from holdfast.domain.settings import Selection
from holdfast.server.health import checks
from holdfast.server.workspace_handle import WorkspaceHandle
from server.helpers import in_process_server, server_directory

GIB, MIB = 1 << 30, 1 << 20


def handle(**services: object) -> WorkspaceHandle:
    """Build the part of a workspace handle that a check reads."""
    return cast(WorkspaceHandle, SimpleNamespace(services=SimpleNamespace(**services), path="/nowhere"))


def short(found: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - findings
    return [(item.severity, item.what) for item in found]


@pytest.mark.parametrize(
    ("free", "severity", "shown"),
    [
        (GIB, "ok", "1 GB free"),
        (GIB - 1, "warning", "1024 MB are left"),
        (64 * MIB, "warning", "64 MB are left"),
        (64 * MIB - 1, "error", "64 MB are left"),
        (2048, "error", "2 KB are left"),
        (1023, "error", "1023 bytes are left"),
        (3 << 40, "ok", "3.0 TB free"),
    ],
)
async def test_free_disk_space_levels(
    free: int, severity: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chmod(tmp_path, 0o700)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    directory = cast(WorkspaceHandle, SimpleNamespace(data_dir=tmp_path / "workspaces" / "w"))
    (found,) = await checks.data_directory(directory)
    assert found.severity == severity
    assert shown in found.what
    if severity == "ok":
        assert "0 bytes used" in found.what
        (tmp_path / "holdfast.db").write_bytes(b"x" * 2048)
        (tmp_path / "holdfast.db").chmod(0o600)
        (found,) = await checks.data_directory(directory)
        assert "2 KB used" in found.what
    else:
        assert found.file == str(tmp_path)
        assert found.what_to_do
    assert (
        await checks.data_directory(cast(WorkspaceHandle, SimpleNamespace(data_dir=tmp_path / "no" / "such" / "place")))
        == ()
    )


@pytest.mark.parametrize(
    ("programs", "severity", "shown"),
    [(("rg", "git"), "ok", "ripgrep"), (("git",), "note", "git"), ((), "warning", "neither")],
)
async def test_search_programs_are_reported(
    programs: tuple[str, ...], severity: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment of the workspace; without one, in that of the server."""
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (found,) = await checks.search_tools(handle(environment={"PATH": str(tmp_path)}))
    assert (found.severity, shown in found.what) == (severity, True)
    assert ("ripgrep" in found.what_to_do) is (severity != "ok")
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    assert await checks.search_tools(handle(environment={})) == (found,)


async def test_sandbox_state_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready() -> str:
        return "tree"

    guard = SimpleNamespace(ready=ready, has_namespaces=True)

    async def findings(state: SandboxState | None) -> list[tuple[str, str]]:
        async def confine() -> SandboxState:
            if state is None:
                raise ToolError("It cannot be had.")
            return state

        return short(await checks.sandbox(handle(update_sandbox=confine, processes=SimpleNamespace(guard=guard))))

    assert await findings(None) == [("error", "It cannot be had.")]
    closed = SandboxState("workspace", "landlock", network=False, notes=("A note.",), gaps=("a gap",))
    assert await findings(closed) == [
        ("ok", "on, by landlock; the network is closed."),
        ("note", "A note."),
        ("warning", "not closed: a gap"),
    ]
    assert await findings(SandboxState("workspace", "landlock")) == [("ok", "on, by landlock; the network is open.")]
    for why in ("", "no namespaces."):
        monkeypatch.setattr(checks, "unavailable_reason", lambda why=why, **_: why)
        ((severity, what),) = await findings(SandboxState())
        assert (severity, "can be enabled here" in what, f"here: {why}" in what) == ("note", not why, bool(why))


class Model:
    """Model that responds, refuses, or never responds."""

    def __init__(self, name: str, does: str = "says", *, is_scripted: bool = False) -> None:
        self.info = ModelInfo("acme", name, is_scripted=is_scripted)
        self._does = does
        self.is_closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        assert request.max_output_tokens == 16
        try:
            if self._does == "refuses":
                raise ProviderError("The key is wrong.")
            if self._does == "is silent":
                await asyncio.get_running_loop().create_future()
            yield TextDelta("ready")
            raise AssertionError("nobody wants more")
        finally:
            self.is_closed = True


async def test_model_responses_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two is requested once; one model in both roles is requested once."""
    monkeypatch.setattr(checks, "_ANSWER_TIMEOUT", 0.01)

    async def findings(large: Model | None, small: Model | None) -> list[tuple[str, str]]:
        def choose(model: Model | None) -> Any:  # noqa: ANN401
            async def chosen() -> Model:
                if model is None:
                    raise ProviderError("There is none.")
                return model

            return chosen

        models = SimpleNamespace(large=choose(large), small=choose(small))
        found = await checks.models(cast(WorkspaceHandle, SimpleNamespace(services=SimpleNamespace(models=models))))
        assert all(item.what_to_do for item in found if item.severity != "ok")
        assert all(model.is_closed for model in (large, small) if model is not None and not model.info.is_scripted)
        return short(found)

    one = Model("one")
    assert await findings(one, one) == [("ok", "large and small: acme/one answers.")]
    assert await findings(Model("one"), Model("two", "refuses")) == [
        ("ok", "large: acme/one answers."),
        ("error", "small: acme/two refuses: The key is wrong."),
    ]
    assert await findings(None, Model("two", "is silent")) == [
        ("error", "large: There is none."),
        ("error", "small: acme/two did not answer within 0.01 seconds."),
    ]
    scripted = Model("tour", is_scripted=True)
    ((severity, what),) = await findings(scripted, scripted)
    assert (severity, "is the scripted model" in what) == ("warning", True)


async def _doctor(files: dict[str, str], areas: str, *, trusts: bool = False) -> list[Finding]:
    async with server_directory() as directory, in_process_server(directory) as server:
        project = Path(directory.project())
        for name, text in files.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        client, workspace = await server.open_workspace()
        if trusts:
            shown = await client.get_trust(workspace)
            await client.set_trust(workspace, trusted=True, digest=shown.digest)
        services = server.manager.handle(workspace).services
        own, services.selected_models = services.selected_models, cast(Any, Choice())
        found = [
            msgspec.structs.replace(item, file=item.file.removeprefix(f"{project}/"))
            for item in (await client.doctor(workspace, areas)).findings
        ]
        services.selected_models = own
        return found


class Choice:
    """Model selection that knows every model but one."""

    def secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    async def check(self, wanted: Selection) -> None:
        if wanted.model == "nothing":
            raise ProviderError("There is no such model.")


@pytest.mark.parametrize(
    ("files", "trusts", "expected"),
    [
        ({}, False, [("settings", "ok", "0 files, no problems.")]),
        ({}, True, [("settings", "ok", "0 files, no problems."), ("trust", "ok", "The project is trusted.")]),
        (
            {"holdfast.toml": '[permissions]\ndeny = ["bash"]\n'},
            False,
            [
                ("settings", "ok", "1 file, no problems."),
                ("trust", "ok", "The project's settings are in effect: none of them needs trust."),
            ],
        ),
        (
            {"holdfast.toml": '[mcp.x]\ncommand = "true"\ndisabled = true\n'},
            True,
            [
                ("settings", "ok", "1 file, no problems."),
                ("trust", "ok", "The project's settings are trusted."),
            ],
        ),
    ],
)
async def test_valid_settings_and_trust(
    files: dict[str, str], trusts: bool, expected: list[tuple[str, str, str]]
) -> None:
    found = await _doctor(files, "settings,trust", trusts=trusts)
    assert [(item.area, item.severity, item.what) for item in found] == expected


async def test_unreadable_deny_rule_reports_effective_rule() -> None:
    files = {"holdfast.toml": '[permissions]\ndeny = ["bash("]\n\n[options]\nmax_steps = "many"\n'}
    found = await _doctor(files, "settings")
    assert [(item.severity, item.file, item.line) for item in found] == [
        ("error", "holdfast.toml", 2),
        ("error", "holdfast.toml", 5),
    ]
    assert ["refused in unattended" in item.what_to_do for item in found] == [True, False]


EXTENSION_FILES = {
    ".agents/skills/tidy/SKILL.md": "---\nname: tidy\ndescription: tidies\n---\nTidy.\n",
    ".holdfast/skills/tidy/SKILL.md": "---\nname: tidy\ndescription: tidies\n---\nTidy.\n",
    ".holdfast/skills/off/SKILL.md": "---\nname: off\ndescription: is off\n---\nOff.\n",
    ".holdfast/commands/wrong.md": "---\ndescription: x\nmodel: nothing\n---\nDo.\n",
    ".holdfast/commands/right.md": "---\ndescription: x\nmodel: large\n---\nDo.\n",
    ".claude/commands/right.md": "Do otherwise.\n",
    ".holdfast/agents/looker.md": (
        "---\nname: looker\ndescription: looks\nmodel: nothing\ntools: [view, fly, mcp_x]\n---\nLook.\n"
    ),
    ".claude/settings.json": (
        '{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "a"}]}]}}'
    ),
    "holdfast.toml": '[options]\ndisabled_skills = ["off"]\n',
}


NO_MODEL = "model: There is no such model. Until then the default model is used."
UNTRUSTED = "the project's file is not trusted."


@pytest.mark.parametrize("trusts", [False, True])
async def test_extension_files_are_reported(trusts: bool) -> None:
    """Invalid, hidden or disabled files, and files without effect because the project is not trusted."""
    found = await _doctor(EXTENSION_FILES, "skills,hooks,commands,agents", trusts=trusts)
    findings = [(item.area, item.severity, item.what, item.file.rpartition("/")[2], item.line) for item in found]
    skills = [item for item in findings if item[0] == "skills"]
    assert skills[0][1:3] == ("ok", f"{2 if trusts else 3} skills, no problems.")
    assert skills[1] == ("skills", "note", "tidy is overridden by another one of the same name.", "SKILL.md", 0)
    off = ("skills", "note", "off is disabled by disabled_skills.", "", 0)
    assert skills[2:] == [off] * trusts
    looks = f"looker is read-only and uses the default model: {UNTRUSTED}"
    withheld = {
        "hooks": [("hooks", "warning", f"1 hook is not run: {UNTRUSTED}", "settings.json", 1)],
        "commands": [
            ("commands", "warning", f"model has no effect: {UNTRUSTED}", name, 3) for name in ("right.md", "wrong.md")
        ],
        "agents": [("agents", "warning", looks, "looker.md", 5)],
    }
    missing = "tools: there is no fly here: looker works without."
    assert [item for item in findings if item[0] != "skills"] == [
        *([("hooks", "ok", "1 hook, no problems.", "", 0)] if trusts else withheld["hooks"]),
        ("commands", "warning", NO_MODEL, "wrong.md", 3),
        *([] if trusts else withheld["commands"]),
        ("commands", "note", "right is overridden by another one of the same name.", "right.md", 0),
        ("agents", "warning", NO_MODEL, "looker.md", 4),
        ("agents", "warning", missing, "looker.md", 5),
        *([] if trusts else withheld["agents"]),
    ]
    assert not any(item.what_to_do for item in found if UNTRUSTED not in item.what), "only errors keep a file out"
    todo = {item.what_to_do for item in found if UNTRUSTED in item.what}
    assert todo == (set() if trusts else {"Review it, then: holdfast trust."})


DUPLICATE_NOTES = "---\nname: twice\ndescription: is there twice\n---\nDo.\n"
DUPLICATES = {
    "skills": (".agents/skills/twice/SKILL.md", ".holdfast/skills/twice/SKILL.md"),
    "commands": (".claude/commands/twice.md", ".holdfast/commands/twice.md"),
    "agents": (".claude/agents/twice.md", ".holdfast/agents/twice.md"),
}
"""The hidden file first."""


@pytest.mark.parametrize("area", DUPLICATES)
async def test_hidden_file_of_same_name_is_reported(area: str) -> None:
    hidden, shown = DUPLICATES[area]
    below = ("note", "twice is overridden by another one of the same name.", hidden)
    for files, expected in (((hidden, shown), [below]), ((hidden,), []), ((shown,), [])):
        found = await _doctor(dict.fromkeys(files, DUPLICATE_NOTES), area, trusts=True)
        assert [(item.severity, item.what, item.file) for item in found if item.severity != "ok"] == expected
        assert len(found) == 1 + len(expected)


async def test_project_without_extensions_and_project_with_only_invalid_ones() -> None:
    found = await _doctor({}, "hooks,commands,agents")
    assert found == []
    files = {
        ".holdfast/agents/bad.md": "---\nname: bad\n---\n",
        "holdfast.toml": '[[hooks.PreToolUse]]\ncommand = "true"\nmatcher = "("\n',
    }
    found = await _doctor(files, "settings,hooks,agents")
    places = [(item.area, item.severity, item.file.rpartition("/")[2]) for item in found]
    assert places == [("settings", "ok", ""), ("hooks", "error", "holdfast.toml"), ("agents", "error", "bad.md")]
    todo = {item.area: item.what_to_do for item in found if item.severity == "error"}
    assert todo == {
        "hooks": "Correct the file; until then it is not run.",
        "agents": "Correct the file; until then it is ignored.",
    }
