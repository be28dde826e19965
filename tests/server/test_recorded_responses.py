"""Complete responses of the routes in their states: status, headers and body, with the settings and events that follow.

Ids, times and paths differ from run to run: they are replaced by names that still show which are equal, and in which
unit a time is.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.protocol.routes import ROUTES
from recorded_values import assert_recorded, brief
from server.api import ROUTE, Api, api
from server.approval_client import question
from server.helpers import RawResponse, RawStream, exchange, raw_request, read_until, run_ended

RECORDED = Path(__file__).with_name("recorded")
UNKNOWN_CLIENT = "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32,64}\b|\bcall_\w+")
_SECONDS = re.compile(r"\b1[6-9]\d{8}(\.\d+)?\b")
_MILLISECONDS = re.compile(r"\b1[6-9]\d{11}\b")
_DATES = re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)")
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
_ESTIMATES = re.compile(r'"prompt_tokens": [1-9][0-9]*')
"""Estimated from the length of a request, which contains the path of the project."""
_MEASURED = ("seconds", "response_seconds", "days", "week")


class Recording:
    """Calls routes and records the complete responses."""

    def __init__(self, calls: Api) -> None:
        self.api = calls
        self.records: list[dict[str, Any]] = []

    async def call(self, name: str, body: object = None, query: dict[str, Any] | None = None, **names: str) -> Any:  # noqa: ANN401
        """Call a route. Returns the body of its response."""
        answer = await self.api.call(name, body, query, **names)
        about = {"route": name, "body": body if not isinstance(body, bytes) else body.decode("latin-1")}
        return self.note({**about, "query": query, "path": names}, answer)

    async def send(self, path: str, method: str = "GET", body: bytes | None = None, *headers: str) -> Any:  # noqa: ANN401
        """Send a request to any path."""
        answer = await exchange(self.api.server.address, raw_request(path, method, body, headers))
        about = {"path": path, "method": method, "body": (body or b"").decode("latin-1"), "headers": list(headers)}
        return self.note(about, answer)

    def note(self, request: dict[str, Any], answer: RawResponse) -> Any:  # noqa: ANN401
        """Record a response. Returns its body."""
        head = dict(answer.head.headers)
        if "content-length" in head:
            assert int(head.pop("content-length")) == len(answer.body) or request.get("method") == "HEAD"
            head["content-length"] = "its own"
        is_json = "json" in head.get("content-type", "")
        found = json.loads(answer.body) if is_json and answer.body else answer.body.decode()
        self.records.append({"request": brief(request), "status": answer.status, "headers": head, "answer": found})
        return found

    def leave_out_durations(self) -> None:
        """Leave out the measured times of statistics; tests/server/test_stats.py checks them."""
        for record in self.records:
            if record.get("request", {}).get("route") in ("stats", "all_stats") and record["status"] == 200:
                kept = {name: value for name, value in record["answer"].items() if name not in _MEASURED}
                for model in kept.get("models", []):
                    del model["seconds"]
                record["answer"] = kept

    def note_files(self) -> None:
        """Record the settings files of the user and of the workspace."""
        data = self.api.server.directory.data
        files = {"user": data / "config.json", "workspace": data / "workspaces" / self.api.workspace / "config.json"}
        found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        self.records.append({"settings": found})

    async def note_events(self, since: int = 0) -> None:
        """Record the stored events after a number, as a stream that begins there sends them."""
        last = await self.api.last_event()
        path = f"/v1/workspaces/{self.api.workspace}/events?since={since}"
        stream = await RawStream.open(self.api.server.address, path)
        await stream.until(lambda item: item.number == last)
        assert stream.response.head is not None
        stream.close()
        self.records.append({"stream": path, "headers": stream.response.head.headers})
        for block in stream.raw.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if not line.startswith("data: ")]
            data = "\n".join(line.removeprefix("data: ") for line in block.split("\n") if line not in lines)
            self.records.append({"fields": lines, "data": json.loads(data) if data else None})

    def assert_recorded(self, name: str) -> None:
        """Compare the responses with the recorded ones."""
        self.leave_out_durations()
        directory = self.api.server.directory
        plain = {str(directory.data): "DATA", str(directory.root): "TOP", __version__: "VERSION"}
        plain[self.api.server.manager.data_id] = "DATA-ID"
        text = json.dumps(self.records)
        for changing, shown in plain.items():
            text = text.replace(changing, shown)
        ids = {found: f"ID{number}" for number, found in enumerate(dict.fromkeys(_IDS.findall(text)), 1)}
        text = _IDS.sub(lambda found: ids[found[0]], text)
        for pattern, shown in (
            (_MILLISECONDS, '"MILLISECONDS"'),
            (_SECONDS, '"SECONDS"'),
            (_DATES, "DATE"),
            (_CLOCK, "TIME"),
            (_ESTIMATES, '"prompt_tokens": "ESTIMATE"'),
        ):
            text = pattern.sub(shown, text)
        assert_recorded(RECORDED / f"{name}.json", json.loads(text), {})


async def test_responses_of_the_server() -> None:
    async with api() as calls:
        seen = Recording(calls)
        await seen.call("health")
        found = await seen.call("version")
        assert found["pid"] > 0
        bodies: tuple[object, ...] = (
            {"command": "shutdown"},
            {"command": "shutdown_if_idle"},
            {"command": "replace"},
            {"command": "dance"},
            {"force": True},
            [],
            b"{",
            b"",
            None,
        )
        for body in bodies:
            await seen.call("control", body)
        for zone in ("0", "-840", "840", "841", "-841", "x", "", "\u0663", "12345"):
            await seen.call("all_stats", query={"zone": zone})
        await seen.call("metrics")
        await seen.call("retire_client", client_id="nobody")
        for name in ("enter_page", "page_pass", "greet_page", "return_page", "open_web"):
            await seen.call(name, {})
        await seen.call("enter_page", {"code": "x"})
        await seen.call("close_web")
        for path, method in (
            ("/", "GET"),
            ("/v1", "GET"),
            ("/v1/nothing", "GET"),
            ("/v1/health/", "GET"),
            ("/v1/health", "POST"),
            ("/v1/health", "HEAD"),
            ("/v1/health", "OPTIONS"),
            ("/v1/control", "GET"),
            ("/v1/workspaces/x/events", "DELETE"),
            ("/v1/workspaces/%2F", "GET"),
            ("/v1/workspaces/%ff", "GET"),
            ("/v1/health?client_id=x", "GET"),
        ):
            await seen.send(path, method)
        await seen.send("/v1/version", "GET", None, "Holdfast-Data: other")
        await seen.send("/v1/version", "GET", None, "Holdfast-Data: " + found["data_id"])
        await seen.send("/v1/version", "GET", None, "Origin: https://elsewhere.example")
        await seen.send("/v1/version", "GET", None, "Accept-Encoding: gzip")
        await seen.send("/v1/workspaces", "POST", b"{}", "Content-Type: text/plain")
        for record in seen.records:
            if (
                record.get("request", {}).get("route") == "version"
                or record.get("request", {}).get("path") == "/v1/version"
            ):
                record["answer"] = brief({**record["answer"], "pid": None, "build": None, "platform": None})
        seen.assert_recorded("server")


def test_every_route_is_refused_somewhere() -> None:
    """The next test calls all of them."""
    assert len(ROUTE) == len(ROUTES) > 90


async def test_refusals_of_every_route() -> None:
    """An unknown workspace, no body, a body of the wrong form, and no query, on every route of a workspace."""
    async with api() as calls:
        seen = Recording(calls)
        before = await calls.last_event()
        wrong = {"session_id": 1, "title": 1, "key": 1, "name": 1, "command": 1, "prompt": 1, "path": 1}
        bodies: tuple[object, ...] = (None, [], wrong)
        for route in ROUTES:
            if "{id}" not in route.path:
                continue
            used = [name for name in ("sid", "run_id", "job_id", "lsp") if "{" + name + "}" in route.path]
            names: dict[str, Any] = dict.fromkeys(used, "nothing")
            if route.name != "leave_workspace":
                await seen.call(route.name, {} if route.request is not None else None, id="nowhere", **names)
            if route.request is not None:
                for body in bodies:
                    await seen.call(route.name, body, **names)
            if any(query.is_required for query in route.query):
                await seen.call(route.name, **names)
        assert await calls.last_event() == before
        seen.assert_recorded("refusals")


async def test_responses_of_workspaces_and_sessions() -> None:
    async with api() as calls:
        seen = Recording(calls)
        project = Path(calls.server.directory.project())
        (project / "a.txt").write_text("one\n")
        client = {"client_id": calls.client.client_id}
        await seen.call("create_workspace", {"path": str(project), **client, "yolo": True, "env": ["A=b"]})
        await seen.call("create_workspace", {"path": "relative", **client})
        await seen.call("create_workspace", {"path": str(project / "nothing"), **client})
        await seen.call("create_workspace", {"path": str(project / "a.txt"), **client})
        await seen.call("create_workspace", {"path": str(project)})
        await seen.call("get_workspace")
        await seen.call("list_workspaces")
        await seen.call("snapshot")
        for title in (None, "", " of \n two ", "x" * 300, "\u200b"):
            await seen.call("create_session", {} if title is None else {"title": title})
        session = seen.records[-5]["answer"]["id"]
        await seen.call("put_session", {"title": "renamed"}, sid=session)
        await seen.call("put_session", {"todos": []}, sid=session)
        await seen.call("set_current_session", {"session_id": session}, client)
        await seen.call("set_current_session", {"session_id": session}, {"client_id": "nobody"})
        await seen.call("mark_read", {"session_id": session, "path": "a.txt"})
        await seen.call("mark_read", {"session_id": session, "path": "../a.txt"})
        await seen.call("mark_read", {"session_id": session, "path": ""})
        await seen.call("list_read_files", sid=session)
        await seen.call("last_read", query={"session_id": session, "path": "a.txt"})
        await seen.call("last_read", query={"session_id": session, "path": "b.txt"})
        await seen.call("list_sessions")
        await seen.call("get_session", sid=session)
        await seen.call("agent_session", sid=session)
        await seen.call("delete_session", sid=session)
        await seen.call("delete_session", sid=session)
        await seen.call("leave_workspace", query=client, id="nowhere")
        await seen.call("leave_workspace", query={"client_id": "nobody"})
        await seen.call("agent_info")
        await seen.call("init_agent")
        await seen.call("update_agent")
        await seen.call("default_small_model")
        await seen.call("default_small_model", query={"provider_id": "p"})
        await seen.note_events()
        for record in seen.records:
            _without_catalogue(record)
        seen.assert_recorded("workspaces")


def _without_catalogue(record: dict[str, Any]) -> None:
    """Leave out the effective configuration, which depends on the machine and has a record of its own."""
    answer = record.get("answer")
    bodies = (
        answer if isinstance(answer, list) else [answer, answer.get("workspace")] if isinstance(answer, dict) else []
    )
    for body in bodies:
        if isinstance(body, dict) and "config" in body:
            body["config"] = sorted(body["config"])
        if isinstance(body, dict) and "env" in body:
            body["env"] = [item for item in body["env"] if item == "A=b"]
        if isinstance(body, dict) and "skills" in body:
            body["skills"] = len(body["skills"]) > 0


async def test_responses_of_a_conversation() -> None:
    async with api() as calls:
        seen = Recording(calls)
        approvals = calls.approvals
        session = await approvals.session()
        client = {"client_id": calls.client.client_id, "via": "editor"}
        script = [["write", {"file_path": "new.txt", "content": "made\n"}], ["bash", {"command": "make"}]]
        prompt = {"session_id": session, "prompt": json.dumps(script), "run_id": "first"}
        await seen.call("send_prompt", prompt)
        await seen.call("send_prompt", prompt)
        await seen.call("send_prompt", {**prompt, "prompt": "other"})
        await seen.call("send_prompt", {**prompt, "run_id": "second", "prompt": " "})
        await approvals.pending_permissions()
        for name, more in (("a", {}), ("b", {"delivery": "steer"}), ("c", {"delivery": "queue"})):
            await seen.call("send_prompt", {"session_id": session, "prompt": "[]", "run_id": name, **more})
        await seen.call("list_queued", sid=session)
        await seen.call("count_queued", sid=session)
        for name, change in (
            ("c", {"position": 0}),
            ("a", {"position": 99}),
            ("a", {"position": -1}),
            ("b", {"delivery": "queue"}),
            ("b", {"delivery": "steer"}),
            ("b", {"delivery": "later"}),
            ("a", {"position": 0, "delivery": "queue"}),
            ("a", {}),
            ("first", {"position": 0}),
            ("nothing", {"position": 0}),
        ):
            await seen.call("patch_run", change, run_id=name)
        for state in ("waiting", "running", "ended", "odd", ""):
            await seen.call("list_runs", query={"state": state})
        await seen.call("list_runs", query={"state": "waiting", "limit": 1})
        await seen.call("list_runs", query={"state": "waiting", "session_id": "other"})
        await seen.call("agent_info")
        await seen.call("list_sessions")
        await seen.call("undo_changes", {"session_id": session})
        await seen.call("undo_changes", {"session_id": session, "dry_run": True})
        await seen.call("cancel_run", run_id="a", query=client)
        await seen.call("cancel_run", run_id="a")
        await seen.call("clear_queue", sid=session, query=client)
        await seen.call("clear_queue", sid=session)
        (asked,) = await seen.call("pending_permissions")
        await seen.call("grant", {"permission": {**asked, "id": "other"}, "action": "allow"})
        await seen.call("grant", {"permission": asked, "action": "maybe"})
        await seen.call("snapshot", query={"session_id": session})
        await seen.call("grant", {"permission": asked, "action": "allow"}, client)
        asked = await _next_permission(calls, asked["id"])
        await seen.call("grant", {"permission": asked, "action": "deny", "reason": "not now"}, {**client, "via": "odd"})
        await seen.call("grant", {"permission": asked, "action": "allow"}, client)
        async with calls.client.events(calls.workspace, since=0) as events:
            await read_until(events, run_ended("first"))
        await _record_end(seen, session)
        for record in seen.records:
            _without_catalogue(record)
        seen.assert_recorded("conversation")


async def _record_end(seen: Recording, session: str) -> None:
    """Record what is stored after the run, in every form in which it can be requested."""
    for run in ("first", "a", "b", "nothing"):
        await seen.call("get_run", run_id=run)
    for query in ({"limit": 1}, {"limit": 0}, {"limit": "x"}, {"limit": -1}, {"before": 3}, {"session_id": "other"}):
        await seen.call("list_runs", query=query)
        await seen.call("list_runs", query={**query, "state": "ended"})
    for query in ({"after": 3, "limit": 2}, {"limit": 0}, {"limit": 1_001}, {"run_id": "a"}, {"run_id": "nothing"}):
        await seen.call("read_log", query=query)
    await seen.call("read_log", query={"session_id": session, "limit": 1_000})
    await seen.call("read_log", query={"session_id": "other"})
    for name in ("list_messages", "list_user_messages", "list_history", "list_read_files", "get_session"):
        await seen.call(name, sid=session)
    await seen.call("list_all_user_messages")
    await seen.call("stats")
    await seen.call("stats", query={"zone": "90"})
    await seen.call("list_files")
    for path in ("new.txt", "", ".", "nothing", "/etc/passwd", "new.txt/x"):
        await seen.call("read_file", query={"path": path})
    for body in (
        {"session_id": session, "dry_run": True},
        {"session_id": "nothing"},
        {"run_id": "nothing"},
        {"run_id": "first", "path": "other.txt"},
        {"path": "new.txt", "dry_run": True},
        {"run_id": "first"},
        {"run_id": "first"},
        {},
    ):
        await seen.call("undo_changes", body)
    await seen.call("list_history", sid=session)
    await seen.call("summarize", sid="nothing")
    await seen.call("cancel_session", sid=session)
    await seen.call("cancel_question")
    await seen.call("pending_questions")
    await seen.note_events()


async def _next_permission(calls: Api, last: str) -> dict[str, Any]:
    """Return the open request that follows another."""
    async with asyncio.timeout(20):
        while True:
            for asked in await calls.expect_ok("pending_permissions"):
                if asked["id"] != last:
                    return dict(asked)


async def test_responses_about_settings() -> None:
    """Each change with the files that it leaves."""
    async with api() as calls:
        seen = Recording(calls)
        project = Path(calls.server.directory.project())
        model = {"model": "m", "provider": "p", "max_tokens": 7}
        changes: list[tuple[str, object]] = [
            ("config_set", {"key": "options.debug", "value": True}),
            ("config_set", {"key": "options.debug", "value": False, "scope": 1}),
            ("config_set", {"key": "options.debug", "value": "loud"}),
            ("config_set", {"key": "options.debug", "value": True, "scope": 2}),
            ("config_set", {"key": "", "value": True}),
            ("config_set", {"key": "unknown.key", "value": [1]}),
            ("config_set", {"key": "permissions.allow", "value": ["./run.sh"], "scope": 1}),
            ("config_set", {"key": "permissions.allow", "value": ["bash(make)"], "scope": 1}),
            ("config_set", {"key": "permissions.allow", "value": "bash"}),
            ("config_set", {"key": "tools.ls.max_depth", "value": -1}),
            ("config_remove", {"key": "options.debug", "scope": 1}),
            ("config_remove", {"key": "options.nothing"}),
            ("config_remove", {"key": "options.debug", "scope": 2}),
            *(("config_model", {"model_type": "large", "model": {**model, "model": f"m{n % 6}"}}) for n in range(8)),
            ("config_model", {"model_type": "small", "model": model, "scope": 1}),
            ("config_model", {"model_type": "huge", "model": model}),
            ("config_model", {"model_type": "small", "model": {**model, "max_tokens": -1}}),
            ("config_model", {"model_type": "small", "model": model, "scope": 3}),
            ("config_compact", {"enabled": True}),
            ("config_compact", {"enabled": False, "scope": 1}),
            ("config_compact", {"enabled": 1}),
            ("config_compact", {"enabled": True, "scope": "1"}),
            ("config_provider_key", {"provider_id": "p.q", "api_key": "$P"}),
            ("config_provider_key", {"provider_id": "p", "api_key": "$Q", "scope": 1}),
            ("config_provider_key", {"provider_id": "p", "api_key": {"access_token": "t"}, "kind": "oauth"}),
            ("config_provider_key", {"provider_id": "p", "api_key": {"refresh_token": "t"}, "kind": "oauth"}),
            ("config_provider_key", {"provider_id": "p", "api_key": "t", "kind": "oauth"}),
            ("config_provider_key", {"provider_id": "p", "api_key": "t", "kind": "other"}),
            ("config_provider_key", {"provider_id": "p", "api_key": 1}),
            ("config_refresh_oauth", {"provider_id": "q"}),
            ("config_import_copilot", None),
        ]
        for name, body in changes:
            await seen.call(name, body)
            seen.note_files()
        await seen.call("config_problems")
        for _ in range(2):
            await seen.call("needs_init")
            (project / "code.py").write_text("")
        (project / "AGENTS.md").write_text("x")
        await seen.call("needs_init")
        (project / "AGENTS.md").unlink()
        await seen.call("init_project")
        await seen.call("needs_init")
        await seen.call("init_prompt")
        await seen.call("config_set", {"key": "options.initialize_as", "value": "GUIDE.md"})
        await seen.call("init_prompt")
        (project / "crush.json").write_text(
            '{"mcp": {"x": {"command": "true"}},\n "options": {"debug": "loud", "disabled_tools": ["view"]}}'
        )
        shown = await seen.call("get_trust")
        await seen.call("config_problems")
        await seen.call("set_trust", {"trusted": True, "digest": "other"})
        await seen.call("set_trust", {"trusted": True})
        await seen.call("set_trust", {"trusted": True, "digest": shown["digest"]})
        await seen.call("get_trust")
        await seen.call("set_trust", {"trusted": False})
        await seen.call("get_skip")
        await seen.call("set_skip", {"skip": True})
        await seen.call("get_skip")
        seen.assert_recorded("settings")


async def test_responses_about_extensions() -> None:
    """Skills, commands, agents and servers of a project."""
    async with api() as calls:
        seen = Recording(calls)
        project = Path(calls.server.directory.project())
        files: Mapping[str, str] = {
            ".agents/skills/tidy/SKILL.md": "---\nname: tidy\ndescription: tidies\n---\nTidy up.\n",
            ".agents/skills/broken/SKILL.md": "---\nname: other\n---\n",
            ".holdfast/commands/greet.md": "---\ndescription: greets\n---\nGreet $ARGUMENTS and $1.\n",
            ".holdfast/agents/looker.md": "---\nname: looker\ndescription: looks\n---\nLook.\n",
        }
        for name, text in files.items():
            (project / name).parent.mkdir(parents=True)
            (project / name).write_text(text)
        for name in ("list_skills", "list_commands", "list_agents"):
            found = await seen.call(name)
            # Those of the program itself are not of the project.
            seen.records[-1]["answer"] = [item for item in found if str(project) in json.dumps(item)]
        (tidy,) = [item for item in await seen.call("list_skills") if item["name"] == "tidy"]
        seen.records.pop()
        await seen.call("read_skill", {"skill_id": tidy["id"]})
        await seen.call("read_skill", {"skill_id": "nothing"})
        for prompt in ("/greet the world", "/greet", "/nothing", "greet", ""):
            await seen.call("expand_command", {"prompt": prompt})
        await seen.call("expand_command", {"prompt": "/greet", "arguments": {"1": "you"}})
        for name in ("on", "off"):
            server = {"command": "no-such-program", "disabled": name == "off"}
            await seen.call("config_set", {"key": f"mcp.{name}", "value": server})
            await seen.call("config_set", {"key": f"lsp.{name}", "value": {**server, "filetypes": ["xyz"]}})
        await seen.call("list_lsps")
        for name in ("on", "off", "nothing"):
            await seen.call("lsp_diagnostics", lsp=name)
            await seen.call("lsp_log", query={"name": name})
            await seen.call("restart_lsps", {"name": name})
            await seen.call("mcp_auth_url", query={"name": name})
        await seen.call("start_lsps", {"path": ""})
        await seen.call("start_lsps", {"path": "a.xyz"})
        await seen.call("stop_lsps")
        for name in ("mcp_prompts", "mcp_pending_auth", "mcp_docker_enable", "mcp_docker_disable"):
            await seen.call(name)
        for name, body in (
            ("mcp_refresh_tools", {"name": "nothing"}),
            ("mcp_refresh_prompts", {"name": "nothing"}),
            ("mcp_refresh_resources", {"name": "nothing"}),
            ("mcp_get_prompt", {"client_id": "nothing", "prompt_id": "p"}),
            ("mcp_read_resource", {"name": "nothing", "uri": "x"}),
            ("mcp_restart", {"name": "nothing"}),
            ("mcp_auth", {"name": "nothing"}),
            ("mcp_lend", {"client_id": UNKNOWN_CLIENT, "servers": {}}),
            ("mcp_lend", {"client_id": "nobody", "servers": {}}),
            ("mcp_lend", {"client_id": calls.client.client_id, "servers": {"a b": {}}}),
        ):
            await seen.call(name, body)
        await seen.call("mcp_states", id="nowhere")
        seen.assert_recorded("extensions")


async def test_responses_about_questions() -> None:
    async with api() as calls:
        seen = Recording(calls)
        session = await calls.approvals.session()
        offered = [{"id": name, "label": name} for name in "ab"]
        asked = [question("Really?"), question("Which?", "single_choice", choices=offered)]
        client = {"client_id": calls.client.client_id, "via": "page"}
        for way in ("complete", "in part", "dismissed"):
            run = await calls.approvals.call_tools(session, ("question", {"questions": asked}))
            await calls.approvals.pending_questions()
            (batch,) = await seen.call("pending_questions")
            await seen.call("snapshot")
            first, second = (item["id"] for item in batch["questions"])
            answers = [{"request_id": first, "yes": True}, {"request_id": second, "selected_ids": ["b"]}]
            await seen.call("cancel_question", query={"batch_id": "other"})
            await seen.call("answer_question", {"batch_request_id": "other", "responses": answers})
            if way == "dismissed":
                await seen.call("cancel_question", query={"batch_id": batch["id"], **client})
            else:
                given = answers[: 1 if way == "in part" else 2]
                await seen.call("answer_question", {"batch_request_id": batch["id"], "responses": given}, client)
            await seen.call("answer_question", {"batch_request_id": batch["id"], "responses": answers}, client)
            await calls.approvals.events_until_end(run)
        await seen.note_events()
        for record in seen.records:
            _without_catalogue(record)
        seen.assert_recorded("questions")
