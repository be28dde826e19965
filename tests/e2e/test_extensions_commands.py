"""Commands and agents through the real server."""

import json
from pathlib import Path

import pytest

from e2e.cli_environment import cli_environment, model_requests, text
from e2e.home import Home, trust, written
from e2e.tool_client import ToolClient, bash, script, tool_client
from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import RunId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Call, ScriptedModel, Step
from holdfast.testing.gates import start, until
from model_server.script import CallTool, Reply, Say
from model_server.server import RecordedRequest
from server.helpers import send_prompt


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


# Commands


async def test_typed_command_is_shown_and_its_expansion_sent(home: Home) -> None:
    written(
        home.path / ".claude/commands/git/review.md", "---", "description: Looks", "---", "Review $1 for $ARGUMENTS"
    )
    written(home.path / ".crush/commands/fix.md", "Fix $TICKET on $BRANCH.")
    async with tool_client() as one:
        listed = {note.name: note for note in await one.client.list_commands(one.workspace)}
        assert (listed["git:review"].source, listed["git:review"].description) == ("user", "Looks")
        assert [item.name for item in listed["fix"].arguments] == ["TICKET", "BRANCH"]
        session = await one.session()
        typed = ("/git:review src now", "/review src", "/fix BRANCH=main TICKET=7", "/user:fix 8 dev", "/nobody x")
        for line in (*typed, "/etc/hosts?"):
            await one.run_end(await send_prompt(one.client, one.workspace, session, line))
        read = [text_of(request.messages[-1]) for request in one.model.requests]
        assert read == [
            "Review src for src now",
            "Review src for src",
            "Fix 7 on main.",
            "Fix 8 on dev.",
            "/nobody x",
            "/etc/hosts?",
        ]
        messages = await one.client.list_messages(one.workspace, session)
        assert [text_of(message) for message in messages if message.role == "user"] == [*typed, "/etc/hosts?"]
        shown = await one.client.expand_command(one.workspace, "/fix", {"TICKET": "1", "BRANCH": "b c"})
        assert (shown.prompt, shown.command) == ("Fix 1 on b c.", "fix")
        with pytest.raises(ServerProblem) as caught:
            await one.client.expand_command(one.workspace, "/nobody")
        assert caught.value.status == 400


async def test_r1_repeated_request_is_same_run_despite_changed_file(home: Home) -> None:
    """R1: the expansion of a prompt is stored with it."""
    file = written(home.path / ".config/holdfast/commands/x.md", "old words")
    async with tool_client() as one:
        message = AgentMessage(await one.session(), "/x", RunId("r1"))
        first = await one.client.send_prompt(one.workspace, message)
        await one.run_end(first)
        file.write_text("new words")
        assert await one.client.send_prompt(one.workspace, message) == first
        assert [text_of(request.messages[-1]) for request in one.model.requests] == ["old words"]


async def test_r12_permissions_of_project_command_need_trust(home: Home) -> None:
    """R12. Its text is only text; permissions in its front matter need trust, and apply to its own run only."""
    calls = json.dumps([bash("touch it")])
    async with tool_client(yolo=False) as one:
        front = ("---", "allowed-tools: Bash(touch:*)", "model: haiku", "---")
        file = written(one.project / ".claude/commands/go.md", *front, calls)
        (note,) = [item for item in await one.client.list_commands(one.workspace) if item.name == "go"]
        assert (note.withheld, note.allowed_tools) == (("model", "allowed-tools"), ())
        session = await one.session()

        async def runs_without_approval(line: str) -> bool:
            """Return True if the line ran without approval."""
            run = await one.client.send_prompt(one.workspace, AgentMessage(session, line))
            ending = start(one.run_end(run))
            await until(lambda: ending.done() or has_open_request(one))
            for ask in await one.client.pending_permissions(one.workspace):
                assert await one.grant(ask, "deny")
            await ending
            return (one.project / "it").exists()

        assert not await runs_without_approval("/go")
        await trust(one.client, one.workspace)
        (note,) = [item for item in await one.client.list_commands(one.workspace) if item.name == "go"]
        assert (note.withheld, note.allowed_tools, note.model) == ((), ("bash(touch *)",), "small")
        assert await runs_without_approval("/go")
        (one.project / "it").unlink()
        assert not await runs_without_approval(calls), "the next run asks again"
        file.write_text(file.read_text().replace("touch it", "touch  it"))
        assert not await runs_without_approval("/go"), "what was not shown is not trusted"


def has_open_request(one: ToolClient) -> bool:
    (handle,) = one.server.manager.handles
    return bool(handle.workspace.approvals.permissions)


async def test_the_command_line_and_the_chosen_model() -> None:
    """`holdfast run "/review src"`, with the model named in the command."""
    async with cli_environment([Reply((Say(("Looks good.",)),))]) as cli_env:
        folder = cli_env.settings.parent / "commands"
        written(folder / "review.md", "---", "model: local/other", "---", "Review $1 with care.")
        assert await cli_env.stdout_of("run", "/review src") == "Looks good."
        (asked,) = model_requests(cli_env.provider)
        assert asked.json["model"] == "other"
        messages = asked.json["messages"]
        assert isinstance(messages, list)
        assert text(messages[-1]) == "Review src with care."
        assert "/review" in await cli_env.stdout_of("commands")
        assert await cli_env.stdout_of("commands", "show", "review", "a") == "Review a with care."
        assert "holdfast-config" in await cli_env.stdout_of("skills")
        assert "# Setting up Holdfast" in await cli_env.stdout_of("skills", "show", "holdfast-config")
        assert json.loads(await cli_env.stdout_of("skills", "--json"))["broken"] == []
        written(folder.parent / "agents/critic.md", "---", "description: Finds faults.", "---", "Be strict.")
        assert "@critic" in await cli_env.stdout_of("agents")
        assert [item["name"] for item in json.loads(await cli_env.stdout_of("agents", "--json"))] == ["critic"]


async def test_unavailable_names_in_front_matter_are_reported() -> None:
    """An unavailable model, an unknown tool: reported by doctor with file and line, and by the run itself."""
    sent = Reply((CallTool("c1", "agent", (json.dumps({"prompt": "look", "agent": "critic"}),)),))

    def script(asked: RecordedRequest) -> Reply:
        output = json.dumps(asked.json.get("messages"))
        if "tools" in asked.json and "Be strict." not in output and "Looked." not in output:
            return sent
        return Reply((Say(("Looked." if "Be strict." in output else "All is well.",)),))

    async with cli_environment(script) as cli_env:
        review = written(cli_env.settings.parent / "commands/review.md", "---", "model: local/gone", "---", "Review.")
        front = ("---", "description: x", "tools: Read, Reed", "model: gone", "---")
        critic = written(cli_env.settings.parent / "agents/critic.md", *front, "Be strict.")
        done = await cli_env.call("run", "/review")
        assert done.out.strip() == "All is well."
        assert "local/big is used instead." in done.err
        messages = model_requests(cli_env.provider)[-1].json["messages"]
        assert isinstance(messages, list)
        result = text(messages[-1])
        assert result.startswith("Looked.")
        assert "There is no model gone." in result
        assert result.endswith("local/big is used instead.)")
        below = written(
            cli_env.settings.parent / "agents/aside.md", "---", "name: critic", "description: y", "---", "z"
        )
        health = json.loads((await cli_env.call("doctor", "--json")).out)
        found = [item for item in health["findings"] if item["area"] in ("commands", "agents")]
        places = [(item["severity"], item["file"], item.get("line", 0), item["what"].split(":")[0]) for item in found]
        assert places == [
            ("warning", str(review), 2, "model"),
            ("warning", str(critic), 4, "model"),
            ("warning", str(critic), 3, "tools"),
            ("note", str(below), 0, "critic is overridden by another one of the same name."),
        ]
        assert "no Reed" in found[2]["what"]


async def test_trust_on_the_command_line_shows_what_would_run() -> None:
    async with cli_environment() as cli_env:
        command = {"type": "command", "command": "rm -rf /"}
        hooks = {"PreToolUse": [{"matcher": "", "hooks": [command]}]}
        written(cli_env.project / ".claude/settings.json", json.dumps({"hooks": hooks}))
        written(cli_env.project / ".holdfast/agents/a.md", "---", "description: x", "tools: Bash", "---", "y")
        shown = await cli_env.call("trust", "--show")
        assert "! hooks.PreToolUse = rm -rf /" in shown.out
        assert "! tools = bash" in shown.out
        assert "is not trusted" in shown.err
        await cli_env.stdout_of("trust", "--yes")
        assert "is trusted" in (await cli_env.call("trust", "--show")).err
        assert "no longer trusted" in (await cli_env.call("trust", "--revoke")).err
        assert "is not trusted" in (await cli_env.call("trust", "--show")).err


# Agents


def agent(name: str, *calls: tuple[str, object]) -> tuple[str, dict[str, object]]:
    return ("agent", {"prompt": json.dumps(calls), "agent": name})


def systems(one: ToolClient) -> list[ModelRequest]:
    """Return the requests of sub-agents."""
    return [request for request in one.model.requests if "Be strict." in request.system]


async def test_agent_has_its_own_prompt_and_tools(home: Home) -> None:
    front = ("---", "name: critic", "description: Finds faults.", "tools: Read, Write, AskUserQuestion", "---")
    written(home.path / ".claude/agents/critic.md", *front, "Be strict.")
    async with tool_client() as one:
        written(one.project / "AGENTS.md", "Speak softly.")
        session = await one.session()
        make = ("write", {"file_path": "made.txt", "content": "x"})
        (result,) = await one.call_tools_and_wait(agent("Critic", make, bash("touch never")), session=session)
        assert (result.content, result.is_error) == ("done", False)
        assert (one.project / "made.txt").exists()
        assert not (one.project / "never").exists()
        (first, *_) = systems(one)
        assert sorted(tool.name for tool in first.tools) == ["view", "write"]
        assert "Speak softly." in first.system
        (spec,) = [tool for tool in one.model.requests[0].tools if tool.name == "agent"]
        assert "- critic: Finds faults." in spec.description
        (unknown,) = await one.call_tools_and_wait(agent("nobody"), session=session)
        assert (unknown.content, unknown.is_error) == ("There is no agent called nobody. There is: critic.", True)


async def test_project_agent_is_read_only_until_trusted(home: Home) -> None:
    async with tool_client() as one:
        written(one.project / ".holdfast/agents/critic.md", "---", "description: x", "---", "Be strict.")
        make = ("write", {"file_path": "made.txt", "content": "x"})
        await one.call_tools_and_wait(agent("critic", make))
        assert not (one.project / "made.txt").exists()
        assert sorted(tool.name for tool in systems(one)[0].tools) == ["glob", "grep", "ls", "view"]
        await trust(one.client, one.workspace)
        await one.call_tools_and_wait(agent("critic", make))
        assert (one.project / "made.txt").exists()
        names = {tool.name for tool in systems(one)[-1].tools}
        assert "bash" in names
        assert "question" not in names


async def test_a_prompt_names_agents_with_an_at(home: Home) -> None:
    written(home.path / ".config/holdfast/agents/critic.md", "---", "description: x", "---", "Be strict.")
    async with tool_client() as one:
        session = await one.session()
        await one.run_end(await send_prompt(one.client, one.workspace, session, "let @critic look at a@b.org"))
        read = text_of(one.model.requests[0].messages[-1])
        assert read.startswith("let @critic look at a@b.org\n\n")
        assert "critic." in read
        messages = await one.client.list_messages(one.workspace, session)
        assert text_of(messages[0]) == "let @critic look at a@b.org"
        assert [note.name for note in await one.client.list_agents(one.workspace)] == ["critic"]


async def test_agents_side_by_side_are_cancelled_with_their_run(home: Home) -> None:
    """Each in its own session; none is left when the end is published."""
    written(home.path / ".config/holdfast/agents/critic.md", "---", "description: x", "---", "Be strict.")
    async with tool_client() as one:
        session = await one.session()
        work = [agent("critic", bash(f"touch up-{number}; sleep 1000")) for number in range(4)]
        run = await one.call_tools(session, *work)
        await until(lambda: len(list(one.project.glob("up-*"))) == 4)
        children = {request.session_id for request in systems(one)}
        assert len(children) == 4
        assert all("$$" in child for child in children)
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled
        runs = await one.client.list_runs(one.workspace)
        assert {item.outcome for item in runs} == {"cancelled"}
        assert {item.parent_run_id for item in runs if item.run_id != run.run_id} == {run.run_id}


async def test_agent_depth_is_limited(home: Home) -> None:
    written(home.path / ".config/holdfast/agents/critic.md", "---", "description: x", "---", "Be strict.")
    home.settings("[options]", "max_agent_depth = 2")
    async with tool_client() as one:
        deepest = agent("critic", ("ls", {}))
        await one.call_tools_and_wait(agent("critic", agent("critic", deepest)))
        depths = {request.session_id for request in systems(one)}
        assert len(depths) == 2
        results = [item for request in systems(one) for message in request.messages for item in message.tool_results]
        assert any("maximum depth of sub-agents" in item.content for item in results)


async def test_number_of_parallel_agents_is_limited(home: Home) -> None:
    written(home.path / ".config/holdfast/agents/critic.md", "---", "description: x", "---", "Be strict.")
    home.settings("[options]", "max_agents = 2")
    release = "until [ -e go ]; do sleep 0.01; done"
    async with tool_client() as one:
        session = await one.session()
        run = await one.call_tools(
            session, *(agent("critic", bash(f"touch up-{number}; {release}")) for number in range(3))
        )
        await until(lambda: len(list(one.project.glob("up-*"))) == 2)
        (one.project / "go").touch()
        await one.run_end(run)
        refused = [item for item in await one.results(session) if item.is_error]
        assert len(refused) == 1
        assert "2 sub-agents are running" in refused[0].content


async def test_finished_agents_free_their_slots(home: Home) -> None:
    """In the same run: twice as many as may work at once, one after the other."""
    written(home.path / ".config/holdfast/agents/critic.md", "---", "description: x", "---", "Be strict.")
    home.settings("[options]", "max_agents = 1")

    def thrice(request: ModelRequest) -> Step:
        sent = sum(bool(message.tool_results) for message in request.messages)
        if "Be strict." in request.system or sent == 3:
            return script(request)
        return Step((Call("agent", json.dumps({"prompt": "x", "agent": "critic"})),))

    async with tool_client(model=ScriptedModel(thrice)) as one:
        session = await one.session()
        await one.run_end(await send_prompt(one.client, one.workspace, session, "go"))
        assert [item.is_error for item in await one.results(session)] == [False, False, False]


async def test_an_agent_has_the_model_it_names(home: Home) -> None:
    """The small one here; the rest of the run keeps its own."""
    front = ("---", "description: x", "model: small", "---")
    written(home.path / ".config/holdfast/agents/critic.md", *front, "Be strict.")
    small = ScriptedModel(script)

    def large(request: ModelRequest) -> Step:
        assert "Be strict." not in request.system
        return script(request)

    async with tool_client(model=ScriptedModel(large), small=small) as one:
        await one.call_tools_and_wait(agent("critic"))
        assert len(small.requests) == 1
