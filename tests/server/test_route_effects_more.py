"""Every route once with its effect and once refused: approvals, settings, files, jobs, extensions."""

import asyncio
import base64
import hmac
import json
import sys
from pathlib import Path
from typing import Any

from holdfast.domain.ids import SessionId
from holdfast.server.telemetry.metrics import ServerMetrics
from server.api import Api, covers
from server.approval_client import question
from server.helpers import RawStream, exchange, raw_request

__all__ = ["ELSEWHERE", "ServerMetrics"]

ELSEWHERE = {
    "drain_node": "tests/e2e/test_cluster_operation.py",
    "evict_node": "tests/e2e/test_cluster_operation.py",
    "lsp_diagnostics": "tests/extensions/lsp/test_lsp_manager.py",
    "mcp_auth": "tests/extensions/mcp/test_oauth_login.py",
    "mcp_auth_url": "tests/extensions/mcp/test_oauth_login.py",
    "mcp_pending_auth": "tests/extensions/mcp/test_oauth_login.py",
}
"""Routes that need a cluster, a language server or a login."""
SMALL = Path(__file__).with_name("small_mcp.py")
TIMEOUT = 20.0


def test_routes_tested_elsewhere_have_tests() -> None:
    root = Path(__file__).parents[2]
    for name, file in ELSEWHERE.items():
        assert f".{name}(" in (root / file).read_text("utf-8"), name


@covers("open_web", "close_web", "enter_page", "page_pass", "greet_page", "return_page")
async def test_pages(api: Api) -> None:
    """Without a port the reason is returned; requests of a page are refused without a reason."""
    for name, body in (
        ("enter_page", {"code": "x"}),
        ("greet_page", {"page": "x", "nonce": "n" * 16}),
        ("return_page", {"page": "x", "proof": "x"}),
        ("page_pass", None),
    ):
        assert "The port of the web page is not open" in await api.expect_error(409, name, body)
    await api.expect_error(400, "open_web", {"port": 65_536})
    link = await api.expect_ok("open_web", {"port": 0, "env": ["A=1"]})
    assert (await api.expect_error(409, "open_web", {"port": 1})).startswith("The page is open at port")
    port = int(link["url"].rpartition(":")[2].strip("/"))
    let_in = await api.expect_ok("enter_page", {"code": link["code"]})
    await api.expect_error(400, "enter_page", {"code": link["code"]})
    greeting = await api.expect_ok("greet_page", {"page": let_in["page"], "nonce": "n" * 16})
    output = f"page\n{port}\n{'n' * 16}\n{greeting['nonce']}"
    proof = hmac.new(let_in["key"].encode(), output.encode(), "sha256").hexdigest()
    back = await api.expect_ok("return_page", {"page": let_in["page"], "proof": proof})
    headers = [f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {back['token']}"]
    address = api.server.address._replace(path="", host="127.0.0.1", port=port)
    renewed = await exchange(address, raw_request("/v1/web/page", "POST", None, headers))
    assert (renewed.status, renewed.json["page"]) == (200, let_in["page"])
    assert (await exchange(address, raw_request("/v1/health", headers=headers))).status == 401, (
        "the old token has ended"
    )
    api.done.add("page_pass")
    await api.expect_ok("close_web")
    assert "The port of the web page is not open" in await api.expect_error(409, "enter_page", {"code": "x"})
    over_page = await exchange(api.server.address, raw_request("/v1/web", "DELETE", headers=["Holdfast-Data: other"]))
    assert over_page.status == 421
    api.refused.add("close_web")


@covers("get_skip", "set_skip", "grant", "pending_permissions")
async def test_permissions(api: Api) -> None:
    session = await api.approvals.session()
    assert await api.expect_ok("get_skip") == {"skip": False}
    run = await api.approvals.bash(session, "one")
    await api.approvals.pending_permissions()
    asked = (await api.expect_ok("pending_permissions"))[0]
    await api.expect_error(400, "grant", {"permission": {"id": asked["id"]}, "action": "allow"})
    assert await api.expect_ok("grant", {"permission": {**asked, "id": "other"}, "action": "allow"}) == {
        "resolved": False
    }
    assert await api.expect_ok("grant", {"permission": asked, "action": "allow"}) == {"resolved": True}
    await api.approvals.events_until_end(run)
    assert (api.approvals.ran, await api.expect_ok("pending_permissions")) == (["one"], [])
    await api.expect_error(400, "set_skip", {})
    await api.expect_ok("set_skip", {"skip": True})
    assert await api.expect_ok("get_skip") == {"skip": True}
    await api.approvals.events_until_end(await api.approvals.bash(session, "two"))
    assert api.approvals.ran == ["one", "two"]
    for name in ("get_skip", "pending_permissions"):
        await api.expect_unknown_workspace(name)


@covers("answer_question", "cancel_question", "pending_questions")
async def test_questions(api: Api) -> None:
    session = await api.approvals.session()
    run = await api.approvals.call_tools(session, ("question", {"questions": [question("Really?")]}))
    await api.approvals.pending_questions()
    batch = (await api.expect_ok("pending_questions"))[0]
    await api.expect_error(400, "answer_question", {"responses": [{}], "batch_request_id": batch["id"]})
    assert await api.expect_ok("cancel_question", query={"batch_id": "other"}) == {"resolved": False}
    await api.expect_unknown_workspace("cancel_question")
    await api.expect_unknown_workspace("pending_questions")
    answers = [{"request_id": batch["questions"][0]["id"], "yes": True}]
    assert await api.expect_ok("answer_question", {"responses": answers, "batch_request_id": batch["id"]}) == {
        "resolved": True
    }
    await api.approvals.events_until_end(run)
    assert "yes" in (await api.approvals.results(session))[-1].content.lower()
    run = await api.approvals.call_tools(session, ("question", {"questions": [question("Again?")]}))
    (batch,) = await api.approvals.pending_questions()
    assert await api.expect_ok("cancel_question", query={"batch_id": batch.id}) == {"resolved": True}
    await api.approvals.events_until_end(run)
    assert await api.expect_ok("pending_questions") == []


def settings(api: Api, scope: int) -> dict[str, Any]:
    data = api.server.directory.data
    file = data / "config.json" if scope == 0 else data / "workspaces" / api.workspace / "config.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


@covers("config_set", "config_remove", "config_model", "config_compact", "config_provider_key", "get_config")
async def test_settings(api: Api) -> None:
    await api.expect_ok("config_set", {"key": "options.debug", "value": True})
    assert settings(api, 0)["options"] == {"debug": True}
    assert (await api.expect_ok("get_config"))["options"]["debug"] is True
    await api.expect_error(400, "config_set", {"key": "options.debug", "value": "loud"})
    await api.expect_error(400, "config_remove", {"key": "options.debug", "scope": 2})
    await api.expect_ok("config_remove", {"key": "options.debug"})
    assert not settings(api, 0).get("options")
    await api.expect_error(400, "config_model", {"model_type": "huge", "model": {"model": "m", "provider": "p"}})
    await api.expect_ok("config_model", {"model_type": "small", "model": {"model": "m", "provider": "p"}, "scope": 1})
    assert settings(api, 1)["models"] == {"small": {"model": "m", "provider": "p"}}
    assert settings(api, 0)["recent_models"] == {"small": [{"model": "m", "provider": "p"}]}
    await api.expect_error(400, "config_compact", {"enabled": "yes"})
    await api.expect_ok("config_compact", {"enabled": True})
    assert settings(api, 0)["options"]["tui"] == {"compact_mode": True}
    await api.expect_error(400, "config_provider_key", {"provider_id": "p"})
    await api.expect_ok("config_provider_key", {"provider_id": "p", "api_key": "$P"})
    assert settings(api, 0)["providers"] == {"p": {"api_key": "$P"}}
    await api.expect_unknown_workspace("get_config")


@covers("config_problems", "config_refresh_oauth", "config_import_copilot", "list_providers", "get_trust", "set_trust")
async def test_settings_of_files(api: Api) -> None:
    project = Path(api.server.directory.project())
    assert await api.expect_ok("config_problems") == []
    (project / "crush.json").write_text('{"options": {"debug": "loud"}}')
    problems = await api.expect_ok("config_problems")
    assert [(item["severity"], item["key"]) for item in problems] == [("error", "options.debug")]
    (project / "crush.json").write_text('{"mcp": {"x": {"command": "true"}}}')
    shown = await api.expect_ok("get_trust")
    assert (shown["trusted"], [item["key"] for item in shown["withheld"]]) == (False, ["mcp.x"])
    assert "have changed since they were shown" in await api.expect_error(
        400, "set_trust", {"trusted": True, "digest": "other"}
    )
    assert (await api.expect_ok("get_trust"))["trusted"] is False
    assert (await api.expect_ok("set_trust", {"trusted": True, "digest": shown["digest"]}))["trusted"] is True
    assert (await api.expect_ok("set_trust", {"trusted": False}))["trusted"] is False
    assert "demo" in [item["id"] for item in await api.expect_ok("list_providers")] or await api.expect_ok(
        "list_providers"
    )
    assert await api.expect_ok("config_import_copilot") == {"token": None, "success": False}
    assert "Not signed in" in await api.expect_error(400, "config_refresh_oauth", {"provider_id": "p"})
    api.done.add("config_refresh_oauth")  # tests/config: it needs a server that issues tokens
    for name in ("config_problems", "config_import_copilot", "list_providers", "get_trust"):
        await api.expect_unknown_workspace(name)


@covers("needs_init", "init_project", "init_prompt", "doctor")
async def test_project_init(api: Api) -> None:
    (Path(api.server.directory.project()) / "code.py").write_text("")
    assert await api.expect_ok("needs_init") == {"needs_init": True}
    assert "AGENTS.md" in (await api.expect_ok("init_prompt"))["prompt"]
    await api.expect_ok("init_project")
    assert await api.expect_ok("needs_init") == {"needs_init": False}
    found = await api.expect_ok("doctor", query={"areas": "settings"})
    assert {item["area"] for item in found["findings"]} == {"settings"}
    for name in ("needs_init", "init_project", "init_prompt", "doctor"):
        await api.expect_unknown_workspace(name)


@covers("run_shell", "list_jobs", "job_output", "kill_job", "get_sandbox")
async def test_processes(api: Api) -> None:
    session = await api.approvals.session()
    await api.expect_error(400, "run_shell", {"command": " "}, sid=session)
    result = await api.expect_ok("run_shell", {"command": "echo here; exit 3"}, sid=session)
    assert (result["output"].strip(), result["exit_code"]) == ("here", 3)
    assert "here" in str(await api.client.list_messages(api.workspace, SessionId(session)))
    assert await api.expect_ok("get_sandbox") == {}, "it is off"
    assert await api.expect_ok("list_jobs") == []
    for name in ("job_output", "kill_job"):
        await api.expect_error(404, name, job_id="nothing")
        api.done.add(name)  # tests/e2e/test_tools_jobs.py: the bash tool starts jobs
    for name in ("list_jobs", "get_sandbox"):
        await api.expect_unknown_workspace(name)


@covers("undo_changes", "list_files", "read_file")
async def test_files(api: Api) -> None:
    session = await api.approvals.session()
    run = await api.approvals.call_tools(session, ("write", {"file_path": "new.txt", "content": "made"}))
    await api.approvals.grant((await api.approvals.pending_permissions())[0])
    await api.approvals.events_until_end(run)
    path = Path(api.server.directory.project()) / "new.txt"
    assert "new.txt" in (await api.expect_ok("list_files"))["files"]
    read = await api.expect_ok("read_file", query={"path": "new.txt"})
    assert (base64.b64decode(read["content"]), read["file_name"]) == (b"made", "new.txt")
    await api.expect_error(404, "read_file", query={"path": "../../etc/passwd"})
    await api.expect_error(404, "undo_changes", {"run_id": "nothing"})
    assert path.exists()
    assert (await api.expect_ok("undo_changes", {}))["is_done"]
    assert not path.exists()
    await api.expect_unknown_workspace("list_files")


@covers("list_skills", "read_skill", "list_commands", "expand_command", "list_agents")
async def test_extensions(api: Api) -> None:
    project = Path(api.server.directory.project())
    (project / ".agents/skills/tidy").mkdir(parents=True)
    (project / ".agents/skills/tidy/SKILL.md").write_text("---\nname: tidy\ndescription: tidies\n---\nTidy up.\n")
    (project / ".holdfast/commands").mkdir(parents=True)
    (project / ".holdfast/commands/greet.md").write_text("Greet $ARGUMENTS.\n")
    (project / ".holdfast/agents").mkdir(parents=True)
    (project / ".holdfast/agents/looker.md").write_text("---\nname: looker\ndescription: looks\n---\nLook.\n")
    skills = {item["name"]: item["id"] for item in await api.expect_ok("list_skills")}
    text = await api.expect_ok("read_skill", {"skill_id": skills["tidy"]})
    assert b"Tidy up." in base64.b64decode(text["content"])
    await api.expect_error(400, "read_skill", {})
    assert "greet" in {item["name"] for item in await api.expect_ok("list_commands")}
    assert (await api.expect_ok("expand_command", {"prompt": "/greet the world"}))[
        "prompt"
    ].strip() == "Greet the world."
    assert "no such command" in await api.expect_error(400, "expand_command", {"prompt": "/nothing"})
    assert "looker" in {item["name"] for item in await api.expect_ok("list_agents")}
    for name in ("list_skills", "list_commands", "list_agents"):
        await api.expect_unknown_workspace(name)


@covers("list_lsps", "start_lsps", "stop_lsps", "restart_lsps", "lsp_log")
async def test_language_servers(api: Api) -> None:
    """A server that is configured and never started. Running servers: tests/extensions/lsp."""
    await api.expect_ok("config_set", {"key": "lsp.mine", "value": {"command": "no-such-server", "filetypes": ["xyz"]}})
    assert "mine" in await api.expect_ok("list_lsps")
    await api.expect_ok("start_lsps", {"path": "a.txt"})
    await api.expect_error(400, "start_lsps", {})
    await api.expect_ok("stop_lsps")
    assert await api.expect_ok("restart_lsps", {"name": ""}) == {"names": []}
    await api.expect_error(404, "restart_lsps", {"name": "nothing"})
    assert (await api.expect_ok("lsp_log", query={"name": "mine"}))["name"] == "mine"
    await api.expect_error(404, "lsp_log", query={"name": "nothing"})
    for name in ("list_lsps", "stop_lsps"):
        await api.expect_unknown_workspace(name)


async def wait_until_connected(api: Api, stream: RawStream, **counts: int) -> None:
    """Wait until the small server is connected and offers this many items."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            state = (await api.expect_ok("mcp_states")).get("small", {})
            if state.get("state") == "connected" and all(state[f"{key}_count"] == many for key, many in counts.items()):
                return
            await stream.more()


@covers(
    "mcp_states", "mcp_prompts", "mcp_refresh_tools", "mcp_refresh_prompts", "mcp_refresh_resources", "mcp_get_prompt",
    "mcp_read_resource", "mcp_restart", "mcp_log", "mcp_lend", "mcp_docker_enable", "mcp_docker_disable",
)  # fmt: skip
async def test_mcp_servers(api: Api) -> None:
    place = api.server.directory.root
    small = {"command": sys.executable, "args": ["-S", str(SMALL), str(place)], "timeout": 60}
    assert await api.expect_ok("mcp_states", id="nowhere") == {}
    await api.expect_ok("mcp_lend", {"client_id": api.client.client_id, "servers": {"small": small}})
    await api.expect_error(409, "mcp_lend", {"client_id": "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d", "servers": {}})
    stream = await RawStream.open(api.server.address, f"/v1/workspaces/{api.workspace}/events?since=0")
    await wait_until_connected(api, stream, tool=1, prompt=1, resource=1)
    assert "one" in str(await api.expect_ok("mcp_prompts"))
    got = await api.expect_ok("mcp_get_prompt", {"client_id": "small", "prompt_id": "one", "args": {"word": "w"}})
    assert got == {"prompt": "one {'word': 'w'}"}
    assert (await api.expect_ok("mcp_get_prompt", {"client_id": "small", "prompt_id": "one"}))["prompt"] == "one {}"
    read = await api.expect_ok("mcp_read_resource", {"name": "small", "uri": "small://one"})
    assert read[0]["text"] == "text of small://one"
    (place / "grow").write_text("")
    for what in ("tools", "prompts", "resources"):
        await api.expect_ok(f"mcp_refresh_{what}", {"name": "small"})
        await wait_until_connected(api, stream, **{what.removesuffix("s"): 2})
        await api.expect_error(400, f"mcp_refresh_{what}", {"name": "nothing"})
    assert "small is here" in (await api.expect_ok("mcp_log", query={"name": "small"}))["text"]
    await api.expect_ok("mcp_restart", {"name": "small"})
    async with asyncio.timeout(TIMEOUT):
        while (place / "starts").read_text() != "xx":
            await stream.more()
    stream.close()
    for name, body in (
        ("mcp_get_prompt", {"client_id": "nothing", "prompt_id": "one"}),
        ("mcp_read_resource", {"name": "nothing", "uri": "x"}),
        ("mcp_restart", {"name": "nothing"}),
    ):
        await api.expect_error(400, name, body)
    await api.expect_error(400, "mcp_log", query={"name": "nothing"})
    await api.expect_error(400, "mcp_docker_enable")
    api.done.add("mcp_docker_enable")  # The page is not built.
    await api.expect_ok("mcp_docker_disable")
    await api.expect_unknown_workspace("mcp_docker_disable")
    await api.expect_unknown_workspace("mcp_prompts")
    api.refused.add("mcp_states")  # It is never refused: stock clients call it before they know a workspace.
