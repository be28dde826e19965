"""Permission rules through the real server and the real commands: allow, ask and deny, persistence, display."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.isolated_home import IsolatedHome, isolated_home
from e2e.tool_client import bash, tool_client
from holdfast.client.client import new_client_id
from holdfast.client.errors import ServerProblem
from holdfast.client.sync_client import SyncClient
from holdfast.protocol.bodies import AgentMessage
from server.helpers import server_directory


def tool(name: str, **arguments: object) -> str:
    return f"tool={name} {json.dumps(arguments)}"


async def test_rules_allow_ask_and_deny() -> None:
    """The strictest rule wins, and every part of a line counts."""
    async with tool_client(yolo=False) as one:
        rules = {
            "allow": ["bash(touch *)", "write(src/**)"],
            "ask": ["bash(touch asked)"],
            "deny": ["bash(touch denied)"],
        }
        for name, lines in rules.items():
            await one.client.config_set(one.workspace, f"permissions.{name}", lines, scope=1)
        (allowed,) = await one.call_tools_and_wait(bash("touch allowed"))
        assert not allowed.is_error
        (denied,) = await one.call_tools_and_wait(bash("touch allowed2 && touch denied"))
        assert denied.is_error
        assert "Not allowed" in denied.content
        inside = ("write", {"file_path": "src/a.txt", "content": "x"})
        (written,) = await one.call_tools_and_wait(inside)
        assert not written.is_error
        session = await one.session()
        run = await one.call_tools(session, bash("touch allowed; touch asked"))
        (ask,) = await one.pending_permissions()
        assert ask.params["command"] == "touch allowed; touch asked"
        assert await one.grant(ask, "deny", "not now")
        await one.run_end(run)
        assert sorted(item.name for item in one.project.iterdir()) == ["allowed", "src"]


async def test_unreadable_rule_is_refused_over_the_wire_and_requires_approval_in_file() -> None:
    async with tool_client(yolo=True) as one:
        with pytest.raises(ServerProblem, match="has no effect as it is written"):
            await one.client.config_set(one.workspace, "permissions.deny", ["bash("], scope=1)
        (one.project / "holdfast.toml").write_text("permissions.deny = ['bash(']\n")
        session = await one.session()
        run = await one.call_tools(session, bash("touch a"), interactive=True)
        (ask,) = await one.pending_permissions()
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled
        assert "holdfast.toml:1" in ask.why


async def test_allow_always_is_saved_shown_and_honoured_after_a_restart() -> None:
    async with server_directory() as directory:
        async with tool_client(directory, yolo=False) as one:
            session = await one.session()
            run = await one.call_tools(session, bash("touch a"))
            (ask,) = await one.pending_permissions()
            assert await one.grant(ask, "allow_always")
            await one.run_end(run)
            config = await one.client.get_config(one.workspace)
            assert config["permissions"]["allow"] == list(ask.rules)
            saved = json.loads((directory.data / "workspaces" / one.workspace / "config.json").read_text())
            assert saved["permissions"]["allow"] == list(ask.rules)
        async with tool_client(directory, yolo=False) as again:
            (result,) = await again.call_tools_and_wait(bash("touch a"))
            assert not result.is_error
            run = await again.call_tools(await again.session(), bash("touch b"))
            await again.pending_permissions()
            await again.client.cancel_run(again.workspace, run.run_id)
            await again.run_end(run)


@pytest.fixture(scope="module")
def home() -> Iterator[IsolatedHome]:
    with isolated_home() as made:
        made.serve()
        yield made


def project(home: IsolatedHome, name: str) -> Path:
    path = home.home / name
    path.mkdir()
    return path


def test_run_without_terminal_is_refused_with_explanation(home: IsolatedHome) -> None:
    here = project(home, "refused")
    done = home.call("run", tool("write", file_path="a.txt", content="x"), cwd=here)
    assert not (here / "a.txt").exists()
    assert "refused, because there is no terminal" in done.stderr
    assert "--yolo" in done.stderr
    assert done.returncode == 0


def test_user_rule_is_shown_and_applies(home: IsolatedHome) -> None:
    here = project(home, "ruled")
    home.call("config", "set", "permissions.allow", '["write(*.txt)"]', cwd=here)
    shown = home.call("config", "show", cwd=here)
    assert "write(*.txt)" in shown.stdout
    home.call(
        "run", tool("write", file_path="a.txt", content="x"), tool("write", file_path="a.md", content="x"), cwd=here
    )
    assert (here / "a.txt").exists()
    assert not (here / "a.md").exists()


def test_yolo_applies_to_one_run(home: IsolatedHome) -> None:
    """A run with --yolo does not affect later runs."""
    here = project(home, "bold")
    assert home.call("run", "--yolo", tool("write", file_path="a.yes", content="x"), cwd=here).returncode == 0
    assert (here / "a.yes").exists()
    done = home.call("run", tool("write", file_path="b.yes", content="x"), cwd=here)
    assert not (here / "b.yes").exists()
    assert "refused" in done.stderr
    runs = json.loads(home.call("runs", "--json", cwd=here).stdout)
    assert sorted(bool(run.get("yolo")) for run in runs) == [False, True]


def test_run_reports_inherited_yolo(home: IsolatedHome) -> None:
    """Another client has enabled yolo for the whole workspace: a run reports that it inherits it."""
    here = project(home, "shared")
    with SyncClient(home.where.address) as thin:
        body = json.dumps({"id": "", "path": str(here), "client_id": new_client_id(), "yolo": True}).encode()
        assert thin.request("POST", "/v1/workspaces", (), body)[0] == 200
    done = home.call("run", tool("write", file_path="a.yes", content="x"), cwd=here)
    assert (here / "a.yes").exists()
    assert "without approval" in done.stderr


async def test_yolo_of_run_includes_sub_agents_and_respects_deny_rules() -> None:
    async with tool_client(yolo=False) as one:
        await one.client.config_set(one.workspace, "permissions.deny", ["bash(touch denied)"], scope=1)
        session = await one.session()
        helper = json.dumps([["ls", {"path": "/"}]])
        calls = [bash("touch a"), bash("touch denied"), ("agent", {"prompt": helper})]
        run = await one.client.send_prompt(one.workspace, AgentMessage(session, json.dumps(calls), yolo=True))
        await one.run_end(run)
        assert [result.is_error for result in await one.results(session)] == [False, True, False]
        assert not (await one.client.get_skip(one.workspace)).skip
        assert (await one.client.get_run(one.workspace, run.run_id)).yolo
        assert [item.name for item in one.project.iterdir()] == ["a"]
        other = await one.call_tools(session, bash("touch b"))
        await one.pending_permissions()
        await one.client.cancel_run(one.workspace, other.run_id)
        await one.run_end(other)


def test_run_reports_settings_errors_without_acting(home: IsolatedHome) -> None:
    here = project(home, "wrong")
    (here / "holdfast.toml").write_text("[permissions]\ndeny = ['bahs(touch *)']\n")
    done = home.call("run", "--yolo", tool("bash", command="touch made"), cwd=here)
    assert not (here / "made").exists()
    assert f"{here}/holdfast.toml:2: permissions.deny[0]: The rule 'bahs(touch *)'" in done.stderr
    checked = home.call("doctor", cwd=here)
    assert "did you mean bash?" in checked.stdout + checked.stderr
    assert "refused in unattended runs" in checked.stdout + checked.stderr
