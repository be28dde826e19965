"""Invalid deny rules: each either applies or is reported and fails safe.

Real server, real shell; every command runs under yolo.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.client.client import Client
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import ScriptedModel
from server.approval_client import _script
from server.helpers import Server, in_process_server, read_until, run_ended, server_directory

EFFECTIVE = (
    "bash(touch *)",
    "Bash(touch:*)",
    "Bash(touch *)",
    "BASH(touch *)",
    "bash(touch:*)",
    "bash(touch)",
    "Bash(touch)",
    "bash (touch *)",
    " bash(touch *) ",
    "bash( touch * )",
    "bash(/usr/bin/touch *)",
    "bash(./touch *)",
    "bash('touch' *)",
    "bash(tou*)",
    "bash:execute(touch *)",
    "bash:*(touch *)",
    "Bash",
    "bash(*)",
    "b*sh",
    "*",
    "*:execute",
)
"""Accepted spellings."""

UNREADABLE = (
    '"bahs(touch *)"',
    '"shell(touch *)"',
    '"Bahs"',
    '"bash(touch *"',
    '"bash touch *)"',
    '"bash touch"',
    '"bash: touch *"',
    '"bash:touch"',
    '"bash[touch *]"',
    '"touch *"',
    '"touch"',
    '"bash()"',
    '"bash( )"',
    '""',
    '" "',
    "\"bash('touch *')\"",
    '"bash(touch .*)"',
    '"bash(^touch)"',
    '"bash(!touch *)"',
    '"!bash(touch *)"',
    '"bash(touch *, rm *)"',
    '"bash(touch,rm)"',
    '"bash(touch *),bash(rm *)"',
    '"bash(touch|rm)"',
    '"bash({touch,rm} *)"',
    '"bash(X=1 touch *)"',
    '"bash(touch > x)"',
    '"bash($TOUCH *)"',
    '"bash(touch\\u00a0*)"',
    '"bash(to\\u200buch *)"',
    '"b\\u0430sh(touch *)"',
    '"*(touch *)"',
    "\"'bash(touch *)'\"",
    '"bash(touch *) in /tmp"',
    '"todos(touch)"',
    '"view(https://example.org/)"',
    '"fetch(example.org)"',
    '"mcp_server"',
    '"bash(for *)"',
    '"bash(export *)"',
    "3",
    '["bash(touch *)"]',
    '{ tool = "bash" }',
)
"""Items of the list that cannot be parsed, as TOML."""

FILES = (
    'permissions.deny = "bash(touch *)"',
    "[permissions.deny]\nbash = 'touch *'",
    "permissions = ['bash(touch *)']",
    "[permissions]\ndney = ['bash(touch *)']",
    "[permissions]\nDeny = ['bash(touch *)']",
    "[permissions]\ndenied_tools = ['bash']",
    "[permission]\ndeny = ['bash(touch *)']",
    "[Permissions]\ndeny = ['bash(touch *)']",
    "deny = ['bash(touch *)']",
    "[options]\ndeny = ['bash(touch *)']",
    "[holdfast.permissions]\ndeny = ['bash(touch *)']",
    "[permissions]\ndeny = ['bash(touch *)'",
    "[permissions]\ndeny = [bash(touch *)]",
    "[permissions\ndeny = ['bash(touch *)']",
)
"""Whole files: wrong types, unknown keys, invalid TOML."""

JSON_FILES = (
    '{"permissions": {"deny": ["bahs(touch *)"]}}',
    '{"permissions": {"deny": ["bash(touch *)",]}}',
    '{"permissions": {"deny": "bash(touch *)"}}',
    '{"permissions": {"deny": ["bash(touch *)"], "deny": []}}',
    '{"permissions": {"deny": ["bash(touch *)"]}, "permissions": {}}',
)


class Attempt:
    """One workspace whose project file is rewritten before each command."""

    def __init__(self, server: Server, client: Client, workspace: WorkspaceId, session: SessionId) -> None:
        self.server = server
        self.client = client
        self.workspace = workspace
        self.session = session
        self.project = Path(server.directory.project())
        self._runs = 0

    def write(self, text: str, name: str = "holdfast.toml") -> None:
        for old in ("holdfast.toml", "crush.json"):
            (self.project / old).unlink(missing_ok=True)
        (self.project / name).write_text(text)

    async def send(self, tool: str, arguments: dict[str, object], *, interactive: bool = False) -> str:
        self._runs += 1
        text = json.dumps([[tool, arguments]])
        message = AgentMessage(self.session, text, RunId(f"{self._runs:032x}"), interactive=interactive, yolo=True)
        return (await self.client.send_prompt(self.workspace, message)).run_id

    async def result(self, run: str) -> str:
        async with self.client.events(self.workspace, since=0) as events:
            await read_until(events, run_ended(run))
        messages = await self.client.list_messages(self.workspace, self.session)
        return [result.content for message in messages for result in message.tool_results][-1]

    async def touch(self) -> tuple[bool, str]:
        """Return whether the command ran, and its result."""
        made = self.project / "made"
        made.unlink(missing_ok=True)
        result = await self.result(await self.send("bash", {"command": "touch made"}))
        return made.exists(), result

    async def problems(self) -> tuple[str, ...]:
        return (await self.client.get_workspace(self.workspace)).problems


@asynccontextmanager
async def attempts() -> AsyncIterator[Attempt]:
    async with server_directory() as own, in_process_server(own, ScriptedModel(_script)) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        yield Attempt(server, client, workspace, session)


async def test_spellings_of_a_deny_rule_that_are_understood_are_in_force() -> None:
    async with attempts() as attempt:
        attempt.write("")
        assert (await attempt.touch())[0]
        for rule in EFFECTIVE:
            attempt.write(f"permissions.deny = {json.dumps([rule])}")
            ran, result = await attempt.touch()
            assert not ran, rule
            assert "forbids it" in result, rule
            assert await attempt.problems() == (), rule


async def test_a_deny_rule_that_cannot_be_read_is_reported_and_fails_safe() -> None:
    rows = [
        *((f"\npermissions.deny = ['bash(xyz *)',\n{item}]", "holdfast.toml") for item in UNREADABLE),
        *((text, "holdfast.toml") for text in FILES),
        *((text, "crush.json") for text in JSON_FILES),
    ]
    async with attempts() as attempt:
        for text, name in rows:
            attempt.write(text, name)
            ran, result = await attempt.touch()
            assert not ran, text
            assert "this run cannot request" in result, text
            assert f"{name}:" in result, text
            problems = await attempt.problems()
            assert problems, text
            assert any(problem in result for problem in problems), text
            assert str(attempt.project / name) in problems[0], text
        # The server keeps working, and reading needs no approval.
        assert "made" not in await attempt.result(await attempt.send("ls", {"path": "."}))
        attempt.write("")
        assert (await attempt.touch())[0]
        assert await attempt.problems() == ()


async def test_interactive_use_requires_approval_even_under_yolo() -> None:
    async with attempts() as attempt:
        attempt.write("permissions.deny = ['bahs(touch *)']\npermissions.allow = ['bash']")
        for action, is_made in (("allow_session", True), ("allow", True), ("deny", False)):
            (attempt.project / "made").unlink(missing_ok=True)
            run = await attempt.send("bash", {"command": "touch made"}, interactive=True)
            async with asyncio.timeout(20):
                while not (asks := await attempt.client.pending_permissions(attempt.workspace)):
                    pass
            assert "'bahs(touch *)'" in asks[0].why
            assert "holdfast.toml:1" in asks[0].why
            assert (asks[0].rules, asks[0].insists) == ((), True)
            await attempt.client.grant(
                attempt.workspace, {"permission": {"id": asks[0].id, "params": None}, "action": action}
            )
            await attempt.result(run)
            assert (attempt.project / "made").exists() is is_made
        await attempt.result(await attempt.send("todos", {"todos": []}, interactive=True))
        assert await attempt.client.pending_permissions(attempt.workspace) == ()


@pytest.mark.parametrize("tool", ["todos", "job_kill", "agent"])
async def test_rules_hold_for_tools_that_request_no_permission_themselves(tool: str) -> None:
    async with attempts() as attempt:
        attempt.write(f"permissions.deny = ['{tool}']")
        assert f"The rule {tool} forbids it" in await attempt.result(await attempt.send(tool, {}))


async def test_deny_rule_for_reading_does_not_affect_conversation() -> None:
    async with attempts() as attempt:
        attempt.write("permissions.deny = ['Read(**)']")
        assert "forbids it" in await attempt.result(await attempt.send("view", {"file_path": "holdfast.toml"}))
        assert "forbids it" not in await attempt.result(await attempt.send("todos", {"todos": []}))
