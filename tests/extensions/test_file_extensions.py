"""Skills, commands and agents of one workspace: precedence, trust, names, and what the other parts receive."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from config.settings_files import SettingsFiles
from engine.helpers import fixed_tool
from holdfast.config.credentials import Credentials
from holdfast.config.trust import content_digest
from holdfast.domain.events import LiveEvent, SkillsEvent
from holdfast.domain.extensions import CommandInfo
from holdfast.domain.runs import PromptExpansion
from holdfast.domain.tools import Tool
from holdfast.extensions.agents import Agents
from holdfast.extensions.base import Extension, ExtensionContext
from holdfast.extensions.commands import Commands, SkillCommands
from holdfast.extensions.extensions import Extensions
from holdfast.extensions.mcp.extension import McpCommands
from holdfast.extensions.skills.skills import Skills, UnknownSkill


class Site:
    """A workspace with files of the user and of the project."""

    def __init__(self, top: Path, settings: str = "") -> None:
        self.place = SettingsFiles(top)
        self.place.write_user(settings)
        self.published: list[LiveEvent] = []
        self.configuration = self.place.open()
        self.context = ExtensionContext(
            str(self.place.project),
            self.place.data,
            self.configuration,
            Credentials(str(top / "credentials.toml"), {"HOLDFAST_KEYRING": "0"}),
            cast(Any, None),
            self.place.environment,
            self.published.append,
        )

    def write(self, owner: str, path: str, *lines: str) -> Path:
        top = self.place.project if owner == "project" else self.place.home
        return self.place.write(top / ".claude" / path, "\n".join(lines))

    def agent(self, owner: str, name: str, *lines: str, prompt: str = "Be strict.") -> Path:
        text = ["---", f"name: {name}", "description: Finds faults.", *lines, "---", prompt]
        return self.write(owner, f"agents/{name}.md", *text)

    def skill(self, owner: str, name: str, *lines: str, body: str = "Do it.") -> Path:
        text = ["---", f"name: {name}", f"description: Of the {owner}.", *lines, "---", body]
        return self.write(owner, f"skills/{name}/SKILL.md", *text)

    def trust(self, path: Path) -> None:
        self.configuration.trust.trust_files({str(path): content_digest(path.read_bytes())}, at=1.0)

    def agents(self) -> Agents:
        return Agents(self.context, self.place.environment)

    def commands(self) -> Commands:
        return Commands(self.context, self.place.environment)

    def skills(self) -> Skills:
        return Skills(self.context, self.place.environment)


class AllTools:
    """Stands for the tools of a run."""

    async def current(self) -> Sequence[Tool]:
        return tuple(fixed_tool(name) for name in ("view", "grep", "bash", "write", "question"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# Precedence


@pytest.mark.parametrize("kind", ["agent", "command", "skill"])
@pytest.mark.parametrize(
    ("user", "project", "expected"),
    [("good", "", "user"), ("", "good", "project"), ("good", "good", "project"), ("good", "broken", "user")],
)
async def test_a_file_of_the_project_replaces_the_users_unless_it_is_broken(
    site: Site, kind: str, user: str, project: str, expected: str
) -> None:
    for owner, state in (("user", user), ("project", project)):
        if not state:
            continue
        body = owner if state == "good" else ""
        if kind == "agent":
            site.agent(owner, "thing", prompt=body)
        elif kind == "command":
            site.write(owner, "commands/thing.md", body)
        else:
            site.skill(owner, "thing" if state == "good" else "Wrong_Name", body=body)
    if kind == "agent":
        agents = site.agents()
        found = await agents.rescan()
        assert [agent.prompt for agent in found.usable] == [expected]
        assert [note.source for note in agents.notes()] == [expected]
        hidden, problems = len(found.hidden), len(found.problems)
    elif kind == "command":
        commands = site.commands()
        assert await commands.expand("/thing") == PromptExpansion(expected, "thing")
        (note,) = await commands.list_all()
        assert note.source == expected
        hidden, problems = len(commands.current.hidden), len(commands.current.problems)
    else:
        skills = site.skills()
        await skills.rescan()
        (state_of,) = [state for state in skills.states() if not state.state]
        assert state_of.name == "thing"
        assert state_of.path.startswith(str(site.place.project)) == (expected == "project")
        hidden, problems = len(skills.current.hidden), len(skills.current.broken)
    assert (hidden, problems) == (int(user == project == "good"), int(project == "broken"))


# Agents


@pytest.mark.parametrize(
    ("owner", "is_trusted", "lines", "tools", "model"),
    [
        ("user", False, [], "view grep bash write", "large"),
        ("user", False, ["tools: Bash, Question"], "bash", "large"),
        ("user", False, ["model: acme/other"], "view grep bash write", "acme/other"),
        ("project", False, ["tools: Bash", "model: acme/other"], "view grep", "large"),
        ("project", False, [], "view grep", "large"),
        ("project", True, ["tools: Bash", "model: acme/other"], "bash", "acme/other"),
        ("project", True, [], "view grep bash write", "large"),
    ],
)
async def test_tools_and_model_of_an_agent(
    site: Site, owner: str, is_trusted: bool, lines: list[str], tools: str, model: str
) -> None:
    path = site.agent(owner, "critic", *lines)
    if is_trusted:
        site.trust(path)
    agents = site.agents()
    await agents.rescan()
    kind = agents.subagent_type("agent:critic", AllTools())
    assert kind is not None
    assert [tool.spec.name for tool in await kind.tools.current()] == tools.split()
    assert (kind.model, kind.prompt) == (model, "Be strict.")
    (note,) = agents.notes()
    is_withheld = owner == "project" and not is_trusted
    assert bool(note.withheld) == is_withheld
    assert note.model == ("" if model == "large" else model)
    assert agents.descriptions() == (("critic", "Finds faults."),)
    assert agents.subagent_type("critic", AllTools()) is None
    assert agents.subagent_type("agent:other", AllTools()) is None


# Commands


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "project plain"),
        ("user:plain", None),
        ("project:plain", "project plain"),
        ("git:log", "user git:log"),
        ("user:git:log", "user git:log"),
        ("project:git:log", None),
        ("log", "user git:log"),
        ("twice", None),
        ("a:twice", "project a:twice"),
        ("absent", None),
    ],
)
async def test_names_of_commands(site: Site, name: str, expected: str | None) -> None:
    for owner, path in (
        ("user", "plain"),
        ("project", "plain"),
        ("user", "git/log"),
        ("project", "a/twice"),
        ("project", "b/twice"),
    ):
        site.write(owner, f"commands/{path}.md", f"{owner} {path.replace('/', ':')}")
    brief = await site.commands().expand(f"/{name}")
    assert (brief.text if brief else None) == expected


async def test_a_command_has_the_name_of_its_owner_in_front(site: Site) -> None:
    """A file in a directory called `user` is found by its own full name first."""
    site.write("project", "commands/user/deploy.md", "of the directory")
    site.write("user", "commands/deploy.md", "of the user")
    brief = await site.commands().expand("/user:deploy")
    assert brief is not None
    assert brief.text == "of the directory"


@pytest.mark.parametrize(
    ("owner", "is_trusted", "has_effect"), [("user", False, True), ("project", False, False), ("project", True, True)]
)
async def test_model_and_tools_of_a_command(site: Site, owner: str, is_trusted: bool, has_effect: bool) -> None:
    lines = ("---", "model: acme/other", "allowed-tools: Bash(make)", "---", "do it")
    path = site.write(owner, "commands/wide.md", *lines)
    if is_trusted:
        site.trust(path)
    commands = site.commands()
    brief = await commands.expand("/wide")
    (note,) = await commands.list_all()
    assert brief is not None
    assert (brief.text, brief.command) == ("do it", "wide")
    assert (bool(brief.model), bool(brief.allow)) == (has_effect, has_effect)
    assert (bool(note.model), bool(note.allowed_tools), not note.withheld) == (has_effect, has_effect, has_effect)


class Provider:
    """Provides one command."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.received: list[tuple[str, Mapping[str, str]]] = []

    def commands(self) -> Sequence[CommandInfo]:
        return [CommandInfo(self._name, "mcp", self._text)]

    async def expand(self, name: str, arguments: str, named: Mapping[str, str]) -> str | None:
        self.received.append((arguments, named))
        return self._text if name == self._name else None


async def test_files_come_before_providers_and_earlier_providers_before_later_ones(site: Site) -> None:
    site.write("user", "commands/a.md", "file")
    commands = site.commands()
    for provider in (Provider("a", "first"), Provider("b", "first"), Provider("b", "second"), Provider("c", "third")):
        commands.add_provider(provider)
    listed = {note.name: note.description for note in await commands.list_all()}
    assert list(listed.items()) == [("a", "file"), ("b", "first"), ("c", "third")]
    texts = {name: await commands.expand(f"/{name} x", {"N": "1"}) for name in (*listed, "d")}
    assert {name: brief and brief.text for name, brief in texts.items()} == {
        "a": "file\n\nx", "b": "first", "c": "third", "d": None,
    }  # fmt: skip


async def test_commands_of_skills(site: Site) -> None:
    site.skill("user", "good")
    site.skill("user", "hidden", "user-invocable: false")
    site.skill("user", "older", "user_invocable: false")
    skills = site.skills()
    provider = SkillCommands(skills)
    await skills.rescan()
    assert {note.name for note in provider.commands()} & {"good", "hidden", "older"} == {"good"}
    text = await provider.expand("good", "this", {})
    assert text is not None
    assert text.startswith("Use the skill good. Paths in it are relative to")
    assert text.endswith("Do it.\n\nThe task:\n\nthis")
    assert (await provider.expand("good", "", {}) or "").endswith("Do it.")
    assert await provider.expand("hidden", "", {}) is None


# Skills


async def test_a_skill_is_read_by_name_and_by_path(site: Site) -> None:
    path = site.skill("user", "good")
    skills = site.skills()
    for name in ("good", str(path)):
        skill, data = await skills.read(name)
        assert (skill.path, data) == (str(path), path.read_bytes())
    with pytest.raises(UnknownSkill):
        await skills.read("absent")


async def test_a_skill_that_cannot_be_read_any_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site.skill("project", "good")
    skills = site.skills()
    found = await skills.rescan()

    async def rescan() -> object:
        return found

    monkeypatch.setattr(skills, "rescan", rescan)
    for change in (lambda: path.write_bytes(b"x" * (1 << 24)), path.unlink):
        change()
        with pytest.raises(UnknownSkill):
            await skills.read("good")


async def test_states_are_published_once_for_each_change(site: Site) -> None:
    site.skill("user", "good")
    skills = site.skills()
    for _ in range(3):
        await skills.rescan()
    site.skill("user", "good", "user-invocable: false")
    await skills.rescan()
    assert len(site.published) == 1
    site.skill("user", "more")
    for _ in range(2):
        await skills.rescan()
    (first, second) = site.published
    assert isinstance(first, SkillsEvent)
    assert isinstance(second, SkillsEvent)
    assert [state.name for state in second.change.object.states] == ["good", "more"]
    assert {skill.owner for skill in skills.current.usable} >= {"builtin", "user"}


async def test_the_first_scan_is_awaited_once(site: Site) -> None:
    site.skill("user", "good")
    skills = site.skills()
    await skills.wait_first_scan()
    assert "good" in [state.name for state in skills.states()]
    site.skill("user", "more")
    await skills.wait_first_scan()
    assert "more" not in [state.name for state in skills.states()]


async def test_directories_that_may_be_read_are_real_and_within_the_project(tmp_path: Path) -> None:
    site = Site(tmp_path / "real")
    (tmp_path / "link").symlink_to(site.place.project)
    inside, outside = site.skill("project", "inside"), site.skill("user", "outside")
    linked = site.place.project / ".claude/skills/linked"
    linked.symlink_to(outside.parent)
    site.configuration = site.place.open(tmp_path / "link")
    context = ExtensionContext(**{name: getattr(site.context, name) for name in ExtensionContext.__struct_fields__})
    skills = Skills(cast(Any, _with(context, site.configuration)), {"HOME": str(tmp_path)})
    await skills.rescan()
    readable = [path for path in skills.readable_directories() if "builtin" not in path]
    assert readable == [str(inside.parent)]
    assert skills.by_path(str(inside)) is not None
    assert skills.by_path(str(outside)) is None


def _with(context: ExtensionContext, configuration: object) -> ExtensionContext:
    fields = {name: getattr(context, name) for name in ExtensionContext.__struct_fields__}
    return ExtensionContext(**{**fields, "configuration": configuration})


# All of them together


class Part:
    """Stands for one extension."""

    def __init__(self, name: str, calls: list[str], *, fails: bool = False) -> None:
        self._name, self._calls, self._fails = name, calls, fails

    def start(self) -> None:
        self._calls.append(f"start {self._name}")

    def refresh(self) -> None:
        self._calls.append(f"refresh {self._name}")

    def tools(self) -> Sequence[Tool]:
        return (fixed_tool(self._name),)

    def notes(self) -> Sequence[str]:
        return (f"note of {self._name}",)

    async def rescan(self) -> Any:  # noqa: ANN401
        self._calls.append(f"rescan {self._name}")
        return self

    async def wait_settled(self) -> None:
        self._calls.append(f"settled {self._name}")

    async def close(self) -> None:
        await asyncio.sleep(0)
        if self._fails:
            raise OSError("broken")
        self._calls.append(f"close {self._name}")


NAMES = ("lsp", "mcp", "skills", "hooks", "commands", "agents")


async def test_every_extension_is_started_refreshed_and_closed(tmp_path: Path) -> None:
    site = Site(tmp_path, '[options]\ndisabled_tools = ["Read"]\n')
    extensions = Extensions(site.context)
    real = extensions._all
    assert real == tuple(getattr(extensions, name) for name in NAMES)
    assert [type(provider) for provider in extensions.commands._providers] == [SkillCommands, McpCommands]
    await extensions.close()
    calls: list[str] = []
    parts = {name: Part(name, calls, fails=name == "lsp") for name in (*NAMES, "view")}
    extensions._all = cast("tuple[Extension, ...]", tuple(parts.values()))
    for name in NAMES:
        setattr(extensions, name, parts[name])
    extensions.start()
    extensions.refresh()
    assert calls == [f"{word} {name}" for word in ("start", "refresh") for name in parts]
    assert [tool.spec.name for tool in extensions.tools()] == [*NAMES], "view is disabled by another name"
    assert extensions.notes() == ("note of skills", "note of mcp", "note of lsp")
    calls.clear()
    await extensions.rescan()
    await extensions.wait_settled()
    assert calls == ["rescan skills", "rescan agents", "settled mcp"]
    calls.clear()
    await extensions.close()
    assert calls == [f"close {name}" for name in parts if name != "lsp"]


@pytest.mark.parametrize(
    ("prompt", "text", "command", "mentions"),
    [
        ("hello", None, "", ""),
        ("/plain x", "plain\n\nx", "plain", ""),
        ("ask @critic", "ask @critic", "", "critic"),
        ("ask @nobody", None, "", ""),
        ("/plain @critic", "plain\n\n@critic", "plain", "critic"),
        ("/plain @nobody", "plain\n\n@nobody", "plain", ""),
    ],
)
async def test_a_prompt_with_commands_and_agents(
    site: Site, monkeypatch: pytest.MonkeyPatch, prompt: str, text: str | None, command: str, mentions: str
) -> None:
    monkeypatch.setenv("HOME", str(site.place.home))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    site.write("user", "commands/plain.md", "plain")
    site.agent("user", "critic")
    extensions = Extensions(site.context)
    brief = await extensions.expand_prompt(prompt)
    await extensions.close()
    if text is None:
        assert brief is None
        return
    assert brief is not None
    assert brief.command == command
    note = f"\n\n(The user mentions agents with @: {mentions}." if mentions else ""
    assert brief.text.startswith(text + note)
    assert ("mentions agents" in brief.text) == bool(mentions)
