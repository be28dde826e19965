"""Hooks as real commands, through the real server."""

import json
import signal
import sys
from pathlib import Path

import pytest

from e2e.cli_environment import cli_environment
from e2e.home import Home, trust, written
from e2e.tool_client import ToolClient, bash, tool_client
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import ToolCall, text_of
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.conversation_validity import problems_of_session
from holdfast.testing.gates import until
from model_server.script import CallTool, Reply
from server.helpers import send_prompt, server_directory
from trials.hostile_commands import SHAPES, new_token, survivors

QUIET = "cat > /dev/null; "


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


def printing_hook(tree: object) -> str:
    """Return a hook that prints this."""
    return f"{QUIET}printf '%s' '{json.dumps(tree)}'"


async def calls_of(one: ToolClient, session: SessionId) -> list[ToolCall]:
    messages = await one.client.list_messages(one.workspace, session)
    return [call for message in messages for call in message.tool_calls]


async def test_a_hook_refuses_with_an_exit_code(home: Home) -> None:
    home.hooks("PreToolUse", QUIET + "echo 'no touching' >&2; exit 2", matcher="^bash$")
    home.hooks("PreToolUse", printing_hook({"decision": "allow"}))
    async with tool_client() as one:
        refused, is_examined = await one.call_tools_and_wait(bash("touch it"), ("ls", {}))
        assert (refused.content, refused.is_error) == ("no touching", True)
        assert not (one.project / "it").exists()
        report = json.loads(refused.metadata)["hook"]
        assert (report["hook_count"], report["decision"], report["input_rewrite"]) == (2, "deny", False)
        assert [item["decision"] for item in report["hooks"]] == ["deny", "allow"]
        assert json.loads(is_examined.metadata)["hook"]["hook_count"] == 1


async def test_rewritten_input_is_displayed_checked_and_run(home: Home) -> None:
    """Claude Code's file and format. The rewritten line needs approval, not with `allow`; a rule still denies."""
    answer = {"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"command": "echo new > out"}}}
    event = {"hooks": [{"type": "command", "command": printing_hook(answer)}], "matcher": "Bash"}
    settings = home.path / ".claude/settings.json"
    written(settings, json.dumps({"hooks": {"PreToolUse": [event]}}))
    async with tool_client(yolo=False) as one:
        session = await one.session()
        (result,) = await one.call_tools_and_wait(bash("echo old > out"), session=session)
        assert not result.is_error
        assert (one.project / "out").read_text() == "new\n"
        (call,) = await calls_of(one, session)
        assert json.loads(call.input) == {"command": "echo new > out", "description": "a test"}
        assert json.loads(result.metadata)["hook"]["input_rewrite"] is True
        del answer["hookSpecificOutput"]["permissionDecision"]
        event["hooks"] = [{"type": "command", "command": printing_hook(answer)}]
        written(settings, json.dumps({"hooks": {"PreToolUse": [event]}}))
        run = await one.call_tools(session, bash("echo old > out"))
        (ask,) = await one.pending_permissions()
        assert ask.params["command"] == "echo new > out"
        assert await one.grant(ask)
        await one.run_end(run)
        answer["hookSpecificOutput"]["permissionDecision"] = "allow"
        event["hooks"] = [{"type": "command", "command": printing_hook(answer)}]
        written(settings, json.dumps({"hooks": {"PreToolUse": [event]}}))
        home.settings("[permissions]", 'deny = ["bash(echo *)"]')
        (denied,) = await one.call_tools_and_wait(bash("ls"), session=session)
        assert denied.is_error
        assert "Not allowed" in denied.content


async def test_hook_input(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "told"
    home.hooks("PreToolUse", f"cat > {out}; env > {out}.env", matcher="view")
    home.hooks("PostToolUse", f"cat > {out}.after", matcher="view")
    theirs = {"matcher": "Read", "hooks": [{"type": "command", "command": f"cat > {out}.theirs"}]}
    written(home.path / ".claude/settings.json", json.dumps({"hooks": {"PreToolUse": [theirs]}}))
    async with tool_client(env=("SOME_NAME=x",)) as one:
        (one.project / "a.txt").write_text("inside\n")
        session = await one.session()
        await one.call_tools_and_wait(("view", {"file_path": "a.txt"}), session=session)
        (call,) = await calls_of(one, session)
        reported = json.loads(out.read_text())
        assert reported == {
            "event": "PreToolUse",
            "hook_event_name": "PreToolUse",
            "cwd": str(one.project),
            "session_id": session,
            "run_id": reported["run_id"],
            "tool_name": "view",
            "tool_use_id": call.id,
            "tool_input": {"file_path": "a.txt"},
        }
        assert json.loads((tmp_path / "told.theirs").read_text()) == {**reported, "tool_name": "Read"}
        variables = dict(line.partition("=")[::2] for line in (tmp_path / "told.env").read_text().splitlines())
        for prefix in ("HOLDFAST", "CRUSH"):
            assert variables[f"{prefix}_TOOL_INPUT_FILE_PATH"] == "a.txt"
            assert variables[f"{prefix}_SESSION_ID"] == session
            assert variables[f"{prefix}_TOOL_NAME"] == "view"
        assert variables["CLAUDE_PROJECT_DIR"] == variables["CRUSH_PROJECT_DIR"] == str(one.project)
        assert variables["SOME_NAME"] == "x"
        after = json.loads((tmp_path / "told.after").read_text())
        assert "inside" in after["tool_response"]["content"]
        assert after["tool_response"]["is_error"] is False


async def test_r12_project_hooks_need_trust(home: Home) -> None:
    """R12: for the current content of the file, until it changes."""
    async with tool_client() as one:
        session = await one.session()
        event = {"matcher": "", "hooks": [{"type": "command", "command": "echo ran >> hooks.log"}]}
        file = written(one.project / ".claude/settings.json", json.dumps({"hooks": {"PreToolUse": [event]}}))
        log = one.project / "hooks.log"
        await one.call_tools_and_wait(("ls", {}), session=session)
        assert not log.exists()
        shown = await one.client.get_trust(one.workspace)
        assert [(item.key, item.file) for item in shown.withheld] == [("hooks.PreToolUse", str(file))]
        await trust(one.client, one.workspace)
        await one.call_tools_and_wait(("ls", {}), session=session)
        assert log.read_text() == "ran\n"
        file.write_text(file.read_text() + " ")
        await one.call_tools_and_wait(("ls", {}), session=session)
        assert log.read_text() == "ran\n", "what was not shown is not trusted"
        assert not (await one.client.get_trust(one.workspace)).trusted


async def test_hooks_that_fail_hang_or_flood_end_no_turn(home: Home) -> None:
    home.hooks("PreToolUse", "exit 7", "kill -9 $$", "yes", "/no/such/program", matcher="ls")
    home.hooks("PreToolUse", "sleep 1000", matcher="ls", timeout=1)
    home.hooks("PreToolUse", "echo not json; exec < /dev/null", matcher="glob")
    async with tool_client() as one:
        results = await one.call_tools_and_wait(("ls", {}), ("glob", {"pattern": "*" * 100_000}))
        other, result = sorted(results, key=lambda item: item.name)
        assert not result.is_error
        errors = [item.get("error", "") for item in json.loads(result.metadata)["hook"]["hooks"]]
        assert [error.split(":")[0].split(" and")[0] for error in errors] == [
            "ended with code 7.",
            "ended with code 137.",
            "printed more than 1048576 bytes",
            "ended with code 127",
            "took longer than 1 seconds",
        ]
        assert "error" not in json.loads(other.metadata)["hook"]["hooks"][0]


@pytest.mark.parametrize("shape", ["own session", "daemon that holds stdout", "trapped TERM"])
async def test_r4_a_hook_is_killed_with_its_run(home: Home, shape: str) -> None:
    """No process of it is left when the end is visible; the tool never began."""
    token = new_token()
    line = SHAPES[shape].format(python=sys.executable, token=token)
    home.hooks("PreToolUse", f"( {line} ) & exec sleep {token}")
    async with tool_client() as one:
        session = await one.session()
        run = await one.call_tools(session, bash("touch never"))
        await until(lambda: len(survivors(token)) >= 2)
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).outcome == "cancelled"
        assert not survivors(token)
        assert not (one.project / "never").exists()
        messages = await one.client.list_messages(one.workspace, session)
        assert problems_of_session(list(messages)) == []


async def test_r4_a_hook_dies_with_a_server_that_is_killed() -> None:
    token = new_token()
    async with cli_environment([Reply((CallTool("c1", "ls", ("{}",)),))]) as cli_env:
        cli_env.write(f"[[hooks.PreToolUse]]\ncommand = 'setsid sleep {token} & exec sleep {token}'")
        place = await cli_env.open_workspace()
        await place.send("go")
        await until(lambda: len(survivors(token)) >= 2)
        await cli_env.stop(signal.SIGKILL)
        await until(lambda: not survivors(token))


async def test_hooks_run_for_end_of_recovered_run() -> None:
    """The next server publishes its end and runs the hooks for it, once."""
    async with cli_environment(
        [Reply((CallTool("c1", "bash", (json.dumps({"command": "touch up; sleep 1000"}),)),))]
    ) as cli_env:
        log = cli_env.root / "ends"
        cli_env.write(f"[[hooks.RunEnd]]\ncommand = 'echo $HOLDFAST_RUN_ID $HOLDFAST_OUTCOME >> {log}'")
        await cli_env.stdout_of("run", "--yolo", "--detach", "--run-id", "first", "go")
        await until((cli_env.project / "up").exists)
        await cli_env.stop(signal.SIGKILL)
        assert not log.exists()
        await cli_env.serve()
        assert json.loads(await cli_env.stdout_of("runs", "list", "--json"))[0]["outcome"] == "interrupted"
        await until(lambda: log.exists() and log.read_text())
        await cli_env.stop()
        assert log.read_text() == "first interrupted\n"


async def test_the_end_of_a_run_waits_for_no_hook(home: Home, tmp_path: Path) -> None:
    """It is published while its hooks still run; cancelled and failed runs have their outcome."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    home.hooks(
        "RunEnd",
        f"echo $HOLDFAST_OUTCOME >> {log}; {QUIET}until [ -e {gate} ]; do sleep 0.01; done; echo over >> {log}",
    )
    async with tool_client() as one:
        session = await one.session()
        run = await one.call_tools(session, ("ls", {}))
        assert (await one.run_end(run)).outcome == "completed"
        await until(log.exists)
        assert "over" not in log.read_text()
        cancelled = await one.call_tools(session, bash("sleep 1000"))
        await until(lambda: len(one.model.requests) == 3)
        await one.client.cancel_run(one.workspace, cancelled.run_id)
        assert (await one.run_end(cancelled)).cancelled
        await until(lambda: log.read_text().split() == ["completed", "cancelled"])
        gate.touch()
        await until(lambda: log.read_text().split() == ["completed", "cancelled", "over", "over"])
        home.hooks("UserPromptSubmit", QUIET + "echo 'not this' >&2; exit 2")
        failed = await one.call_tools(session, ("ls", {}))
        end = await one.run_end(failed)
        assert (end.outcome, end.error) == ("failed", "not this")
        await until(lambda: log.read_text().split()[4:5] == ["failed"])


async def test_hooks_run_for_each_of_many_ends(home: Home, tmp_path: Path) -> None:
    log = tmp_path / "log"
    home.hooks("RunEnd", f"echo $HOLDFAST_OUTCOME >> {log}")
    async with tool_client() as one:
        session = await one.session()
        await one.call_tools(session, bash("touch up; sleep 1000"))
        await until((one.project / "up").exists)
        for number in range(80):
            await one.client.send_prompt(one.workspace, AgentMessage(session, "later", RunId(f"r{number}")))
        await one.client.cancel_session(one.workspace, session)
        await until(lambda: log.exists() and log.read_text().split() == ["cancelled"] * 81)


async def test_hooks_run_for_end_by_server_stop(home: Home, tmp_path: Path) -> None:
    home.hooks("RunEnd", f"cat > {tmp_path}/told")
    theirs = {"hooks": [{"type": "command", "command": f"cat > {tmp_path}/theirs"}]}
    written(home.path / ".claude/settings.json", json.dumps({"hooks": {"Stop": [theirs]}}))
    async with tool_client() as one:
        await one.call_tools(await one.session(), bash("touch up; sleep 1000"))
        await until((one.project / "up").exists)
    reported = json.loads((tmp_path / "told").read_text())
    assert (reported["event"], reported["hook_event_name"], reported["outcome"]) == ("RunEnd", "RunEnd", "interrupted")
    assert reported["error"]
    assert json.loads((tmp_path / "theirs").read_text()) == {**reported, "hook_event_name": "Stop"}


async def test_running_hooks_end_with_workspace(home: Home) -> None:
    token = new_token()
    home.hooks("RunEnd", f"exec sleep {token}")
    async with server_directory() as directory:
        async with tool_client(directory) as one:
            await one.run_end(await one.call_tools(await one.session(), ("ls", {})))
            await until(lambda: survivors(token))
        assert not survivors(token)


async def test_output_of_prompt_hooks_reaches_model(home: Home, tmp_path: Path) -> None:
    home.hooks("SessionStart", f"cat >> {tmp_path}/starts; echo 'today is a holiday'")
    home.hooks("UserPromptSubmit", printing_hook({"hookSpecificOutput": {"additionalContext": "the build is red"}}))
    async with tool_client() as one:
        session = await one.session()
        for text in ("hello", "again"):
            await one.run_end(await send_prompt(one.client, one.workspace, session, text))
        first, second = ([text_of(item) for item in request.messages] for request in one.model.requests)
        assert first == ["hello\n\ntoday is a holiday\nthe build is red"]
        assert second[-1] == "again\n\nthe build is red"
        messages = await one.client.list_messages(one.workspace, session)
        assert [text_of(message) for message in messages if message.role == "user"] == ["hello", "again"]
        (start,) = (tmp_path / "starts").read_text().split("}")[:-1]
        assert json.loads(start + "}")["source"] == "startup"


async def test_hooks_apply_to_sub_agents(home: Home) -> None:
    home.hooks("PreToolUse", QUIET + "echo 'not even you' >&2; exit 2", matcher="^view$")
    async with tool_client() as one:
        (one.project / "a.txt").write_text("x")
        await one.call_tools_and_wait(("agent", {"prompt": json.dumps([["view", {"file_path": "a.txt"}]])}))
        results = [result for request in one.model.requests for m in request.messages for result in m.tool_results]
        assert "not even you" in [result.content for result in results]


async def test_hook_may_require_approval(home: Home) -> None:
    home.hooks("PreToolUse", printing_hook({"decision": "ask", "reason": "is this wise?"}), matcher="^ls$")
    async with tool_client(yolo=False) as one:
        session = await one.session()
        run = await one.call_tools(session, ("ls", {}))
        (ask,) = await one.pending_permissions()
        assert (ask.tool_name, ask.description) == ("ls", "is this wise?")
        assert await one.grant(ask, "deny", "no")
        await one.run_end(run)
        (result,) = await one.results(session)
        assert result.content == "User denied permission: no"


async def test_hooks_run_at_the_same_time(home: Home, tmp_path: Path) -> None:
    """Each waits for all the others."""
    meet = f"touch {tmp_path}/m-$0; until [ $(ls {tmp_path} | grep -c m-) = 8 ]; do sleep 0.01; done"
    home.hooks("PreToolUse", *(f"bash -c '{meet}' {number}" for number in range(8)))
    async with tool_client() as one:
        (result,) = await one.call_tools_and_wait(("ls", {}))
        report = json.loads(result.metadata)["hook"]
        assert report["hook_count"] == 8
        assert not any("error" in item for item in report["hooks"])
