"""The examples of `docs/extending.md` behave as documented."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from e2e.home import Home, written
from e2e.tool_client import bash, tool_client
from holdfast.domain.messages import text_of
from holdfast.extensions.hooks.hook_process import HookResult, parse_output
from server.helpers import send_prompt

GUIDE = (Path(__file__).parents[2] / "docs/extending.md").read_text()
BLOCKS = [(found[1], found[2]) for found in re.finditer(r"^```(\w+)\n(.*?)^```", GUIDE, re.M | re.S)]
SKILL, COMMAND, AGENT = (text for kind, text in BLOCKS if kind == "markdown")
(HOOK,) = (text for kind, text in BLOCKS if kind == "toml")
EVENT, CRUSH, CLAUDE = (text for kind, text in BLOCKS if kind == "json")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


async def test_files_of_guide(home: Home) -> None:
    base = home.path / ".config/holdfast"
    written(base / "skills/release-notes/SKILL.md", SKILL)
    written(base / "commands/review.md", COMMAND)
    written(base / "agents/critic.md", AGENT)
    home.settings(HOOK)
    tomllib.loads(HOOK)
    async with tool_client() as one:
        health = await one.client.doctor(one.workspace, "skills,hooks,commands,agents")
        assert {item.severity for item in health.findings} == {"ok"}
        assert len(health.findings) == 4
        session = await one.session()
        for line in ("/review src", "/release-notes since v2", "@critic look"):
            await one.run_end(await send_prompt(one.client, one.workspace, session, line))
        review, notes, critic = (text_of(request.messages[-1]) for request in one.model.requests)
        assert "the changes in src that" in review
        assert "Group them by what a user notices" in notes
        assert "critic" in critic.partition("\n")[2]
        refused, done = await one.call_tools_and_wait(bash("echo git push"), bash("echo hello"), session=session)
        assert (refused.content, refused.is_error) == ("I push myself.", True)
        assert "hello" in done.content


def test_hook_examples_of_guide() -> None:
    assert parse_output("PreToolUse", 0, CRUSH, "") == HookResult(
        "deny", reason="Use make instead.", context="The build takes a minute."
    )
    assert parse_output("PreToolUse", 0, CLAUDE, "") == HookResult("allow", patch={"command": "make -j2"})
    assert set(json.loads(EVENT)) == {
        "event", "hook_event_name", "session_id", "run_id", "cwd", "tool_name", "tool_use_id", "tool_input",
    }  # fmt: skip
