"""Skills through the real server: discovered, listed for models, read without approval, displayed as skills."""

import base64
import json
from pathlib import Path

import pytest

from e2e.home import Home, written
from e2e.tool_client import tool_client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import HelloEvent, SkillsEvent
from holdfast.domain.extensions import SkillState
from holdfast.domain.messages import text_of
from server.helpers import ServerDirectory, exchange, raw_request, read_until, send_prompt, server_directory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


def skill(folder: Path, name: str, description: str, *more: str, body: str = "Do it well.") -> Path:
    front = ("---", f"name: {name}", f"description: {description}", *more, "---")
    return written(folder / name / "SKILL.md", *front, body)


async def test_skills_are_found_in_all_directories(home: Home) -> None:
    """Project before user; invalid ones are reported with their line; disabled ones are omitted."""
    home.settings("[options]", 'disabled_skills = ["off"]', 'skills_paths = ["~/mine"]')
    skill(home.path / ".claude/skills", "pdf", "the user's")
    skill(home.path / ".claude/skills", "off", "not wanted")
    skill(home.path / "mine", "extra", "by a path")
    async with server_directory() as directory:
        project = Path(directory.project())
        skill(project / ".agents/skills", "pdf", "the project's")
        skill(project / ".cursor/skills", "bad", "", body="x")
        async with tool_client(directory) as one:
            listed = await one.client.list_skills(one.workspace)
            reported = {item.name: (item.source, item.description) for item in listed}
            assert reported.pop("holdfast-config")[0] == "system"
            assert reported == {"pdf": ("project", "the project's"), "extra": ("user", "by a path")}
            assert {item.label for item in listed} >= {"project:pdf", "user:extra"}
            body = await one.client.get_workspace(one.workspace)
            (bad,) = [state for state in body.skills if state["state"]]
            assert (bad["name"], bad["error"][:20]) == ("bad", "line 3: description:")
            text = await one.client.read_skill(one.workspace, listed[0].id)
            assert text.content.startswith(b"---\nname: ")
            with pytest.raises(ServerProblem) as caught:
                await one.client.read_skill(one.workspace, "/etc/passwd")
            assert caught.value.status == 400


async def test_wire_format_for_stock_clients(home: Home) -> None:
    """Keys and types on the wire."""
    file = skill(home.path / ".claude/skills", "pdf", "Works with PDF.")
    async with tool_client() as one:
        path = f"/v1/workspaces/{one.workspace}/skills"
        listed = (await exchange(one.server.address, raw_request(path, "GET"))).json
        assert [item for item in listed if item["name"] == "pdf"] == [
            {
                "id": str(file),
                "name": "pdf",
                "description": "Works with PDF.",
                "label": "user:pdf",
                "source": "user",
                "user_invocable": True,
            }
        ]
        body = json.dumps({"skill_id": str(file)}).encode()
        read = (await exchange(one.server.address, raw_request(f"{path}/read", "POST", body))).json
        assert base64.b64decode(read["content"]) == file.read_bytes()
        facts = {"name": "pdf", "description": "Works with PDF.", "source": "user", "builtin": False}
        assert read["result"] == facts
        workspace = (await exchange(one.server.address, raw_request(f"/v1/workspaces/{one.workspace}", "GET"))).json
        assert workspace["skills"] == [{"name": "pdf", "path": str(file), "state": 0}]


async def test_models_list_and_read_skills_without_approval(home: Home) -> None:
    """Also outside the workspace, in full, and only the files of a skill."""
    long = "\n".join(f"line {number}" for number in range(500))
    file = skill(home.path / ".agents/skills", "pdf", "Works with PDF.", body=long)
    beside = written(file.parent / "scripts/run.py", "print()")
    hidden = skill(home.path / ".agents/skills", "hidden", "x", "disable-model-invocation: true")
    async with tool_client(yolo=False) as one:
        session = await one.session()
        views = [("view", {"file_path": str(path)}) for path in (file, beside)]
        first, second = sorted(
            await one.call_tools_and_wait(*views, session=session), key=lambda item: len(item.content), reverse=True
        )
        assert "line 499" in first.content
        shown = json.loads(first.metadata)
        assert (shown["resource_type"], shown["resource_name"]) == ("skill", "pdf")
        assert shown["resource_description"] == "Works with PDF."
        assert "print()" in second.content
        assert "resource_type" not in json.loads(second.metadata)
        system = one.model.requests[0].system
        assert f"<location>{file}</location>" in system
        assert str(hidden) not in system
        run = await one.call_tools(session, ("view", {"file_path": str(home.path / "other")}))
        (ask,) = await one.pending_permissions()
        assert await one.grant(ask, "deny")
        await one.run_end(run)


async def test_change_is_published_and_applies_to_next_prompt(home: Home) -> None:
    async with tool_client() as one:
        session = await one.session()
        await one.run_end(await send_prompt(one.client, one.workspace, session, "one"))
        cursor = (await one.client.snapshot(one.workspace)).cursor
        async with one.client.events(one.workspace, since=cursor) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            file = skill(one.project / ".holdfast/skills", "fresh", "New.")
            await one.run_end(await send_prompt(one.client, one.workspace, session, "two"))
            seen = await read_until(events, lambda item: isinstance(item.event, SkillsEvent))
            event = seen[-1].event
            assert isinstance(event, SkillsEvent)
            assert event.change.object.states == (SkillState("fresh", str(file), 0),)
        assert "fresh" not in one.model.requests[0].system
        assert "fresh" in one.model.requests[1].system
        file.unlink()
        assert "fresh" not in {item.name for item in await one.client.list_skills(one.workspace)}


async def test_a_skill_is_a_command(home: Home) -> None:
    skill(home.path / ".claude/skills", "pdf", "Works with PDF.", body="Use pdftk.")
    skill(home.path / ".claude/skills", "quiet", "x", "user-invocable: false")
    async with tool_client() as one:
        listed = {note.name: note for note in await one.client.list_commands(one.workspace)}
        assert (listed["pdf"].source, listed["pdf"].description) == ("skill", "Works with PDF.")
        assert "quiet" not in listed
        session = await one.session()
        await one.run_end(await send_prompt(one.client, one.workspace, session, "/pdf merge a and b"))
        read = text_of(one.model.requests[0].messages[-1])
        assert "Use pdftk." in read
        assert read.endswith("merge a and b")
        messages = await one.client.list_messages(one.workspace, session)
        assert text_of(messages[0]) == "/pdf merge a and b"


async def test_invalid_files_are_reported_by_doctor(home: Home) -> None:
    """Skills, hooks, commands, agents: each with file, line and reason."""
    written(home.path / ".claude/settings.json", "{", '"hooks": {"Nope": []}', "}")
    home.hooks("PreToolUse", "x", matcher="(")
    async with server_directory() as directory:
        project = Path(directory.project())
        written(project / ".claude/skills/x/SKILL.md", "---", "name: y", "description: z", "---")
        written(project / ".claude/commands/c.md", "---", "model: a", "model: b", "---", "x")
        written(project / ".claude/commands/d.md", "---", "model: a", "---", "x")
        written(project / ".claude/agents/a.md", "---", "name: a", "---", "x")
        written(project / "holdfast.toml", "[[hooks.PreToolUse]]", 'command = "x"', 'matcher = "["')
        await _doctor(directory, project)


async def _doctor(directory: ServerDirectory, project: Path) -> None:
    async with tool_client(directory) as one:
        health = await one.client.doctor(one.workspace, "skills,hooks,commands,agents")
        found = {(item.area, item.severity, item.file.rpartition("/")[2], item.line) for item in health.findings}
        assert found == {
            ("skills", "error", "SKILL.md", 2),
            ("skills", "warning", "SKILL.md", 5),
            ("hooks", "error", "settings.json", 2),
            ("hooks", "error", "config.toml", 3),
            ("hooks", "error", "holdfast.toml", 3),
            ("commands", "error", "c.md", 3),
            ("commands", "warning", "d.md", 2),
            ("agents", "error", "a.md", 1),
        }
        assert all(item.what.endswith(".") for item in health.findings)
