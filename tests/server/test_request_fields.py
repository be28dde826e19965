"""Every optional field of every request body and every query parameter, omitted and given, down to its effect.

`FIELDS` is complete by construction: a new field without a row fails.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import __version__
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import SelectedModel
from holdfast.protocol.routes import ROUTES
from server.api import Api, api
from server.approval_client import question
from server.helpers import RawStream
from server.test_route_effects_more import settings

Row = Callable[[Api], Awaitable[None]]
FIELDS: dict[str, Row] = {}
UNKNOWN_CLIENT = "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"


def row(*names: str) -> Callable[[Row], Row]:
    def note(check: Row) -> Row:
        FIELDS.update(dict.fromkeys(names, check))
        return check

    return note


def wanted() -> set[str]:
    found = set()
    for route in ROUTES:
        found |= {f"{route.name}?{item.name}" for item in route.query if not item.is_required}
        if isinstance(route.request, type) and issubclass(route.request, msgspec.Struct):
            fields = msgspec.structs.fields(route.request)
            found |= {f"{route.name}.{field.name}" for field in fields if not field.required}
    return found | {f"config_model.model.{name}" for name in SelectedModel.__struct_fields__[2:]}


async def made(api: Api, name: str, **more: object) -> tuple[dict[str, Any], Any]:
    """Create a second workspace. Returns the response and the handle in the server."""
    body = {"path": api.server.directory.project(name), "client_id": UNKNOWN_CLIENT, **more}
    answer = await api.expect_ok("create_workspace", body)
    return answer, api.server.manager.handle(answer["id"])


# Bodies


@row("create_workspace.path", "create_workspace.client_id")
async def needed(api: Api) -> None:
    assert "path is required" in await api.expect_error(400, "create_workspace", {"client_id": UNKNOWN_CLIENT})
    assert "client_id" in await api.expect_error(400, "create_workspace", {"path": api.server.directory.project("x")})
    assert len(api.server.manager.handles) == 1


@row(*(f"create_workspace.{name}" for name in ("id", "data_dir", "version", "config", "skills", "problems")))
async def ignored_workspace_fields(api: Api) -> None:
    """A client that sends back fields of a response changes nothing."""
    sent = {"id": "mine", "data_dir": "/x", "version": "9", "config": {"a": 1}, "skills": [{"a": 1}], "problems": ["p"]}
    plain, _ = await made(api, "plain")
    full, _ = await made(api, "full", **sent)
    assert full["id"] not in ("mine", plain["id"])
    assert full["version"] == plain["version"] == __version__
    assert full["data_dir"] == str(api.server.directory.data / "workspaces" / full["id"])
    same = ("config", "skills", "problems")
    for answer in (plain, full):
        answer["config"]["options"].pop("data_directory")
    assert [plain.get(name) for name in same] == [full.get(name) for name in same]


@row("create_workspace.yolo", "create_workspace.debug", "create_workspace.channels", "create_workspace.env")
async def workspace_flags(api: Api) -> None:
    plain, handle = await made(api, "plain")
    assert not {"yolo", "debug", "channels", "env"} & set(plain)
    assert (handle.yolo, handle.debug, handle.channels, handle.env) == (False, False, (), ())
    assert await api.expect_ok("get_skip", id=plain["id"]) == {"skip": False}
    full, handle = await made(api, "full", yolo=True, debug=True, channels=["c"], env=["A=1"])
    assert [full[name] for name in ("yolo", "debug", "channels", "env")] == [True, True, ["c"], ["A=1"]]
    assert await api.expect_ok("get_skip", id=full["id"]) == {"skip": True}
    again, _ = await made(api, "full", yolo=False, env=["A=2"])
    assert (again["yolo"], again["env"]) == (True, ["A=1"]), "the first client's flags count"


@row("control.force")
async def forced(api: Api) -> None:
    await api.approvals.bash(await api.approvals.session(), "held")
    await api.approvals.pending_permissions()
    assert "with force" in await api.expect_error(409, "control", {"command": "stop"})
    assert "with force" in await api.expect_error(409, "control", {"command": "stop", "force": False})
    await api.expect_ok("control", {"command": "stop", "force": True})
    assert api.server.over is not None
    await asyncio.wait_for(asyncio.shield(api.server.over), 20)


@row("open_web.env")
async def page_environment(api: Api) -> None:
    opened = await api.server.application.web.open()
    for body, env in (({"port": 0}, ()), ({"port": 0, "env": ["A=1"]}, ("A=1",))):
        link = await api.expect_ok("open_web", body)
        page = opened.exchange(link["code"]).page
        assert opened.app.auth.pages[page].env == env


@row("set_current_session.session_id")
async def files_read(api: Api) -> None:
    session, mine = await api.approvals.session(), {"client_id": api.client.client_id}
    path = f"/v1/workspaces/{api.workspace}/events?since=0&client_id={api.client.client_id}"
    stream = await RawStream.open(api.server.address, path)
    for body, count in (({"session_id": session}, 1), ({}, 0)):
        await api.expect_ok("set_current_session", body, mine)
        assert (await api.client.get_session(api.workspace, session)).attached_clients == count
    stream.close()


@row("create_session.title", "create_session.id", "put_session.title")
async def titles(api: Api) -> None:
    plain = await api.expect_ok("create_session", {})
    assert plain["title"] == "New session"
    full = await api.expect_ok("create_session", {"title": "mine", "id": "own"})
    assert (full["title"], full["id"] != "own") == ("mine", True)
    assert (await api.expect_ok("put_session", {}, sid=full["id"]))["title"] == "mine"
    assert (await api.expect_ok("put_session", {"title": ""}, sid=full["id"]))["title"] == "New session"


async def accepted(api: Api, session: str, **more: object) -> Run:
    sent = await api.expect_ok("send_prompt", {"session_id": session, "prompt": "[]", **more})
    record = await api.server.manager.ledger.run(WorkspaceId(api.workspace), RunId(sent["run_id"]))
    assert record is not None
    return record.run


@row(*(f"send_prompt.{name}" for name in ("session_id", "prompt", "run_id", "client_id", "interactive", "yolo")))
async def plain_prompts(api: Api) -> None:
    session = await api.approvals.session()
    assert "no such session" in await api.expect_error(400, "send_prompt", {"prompt": "hi"})
    assert "empty" in await api.expect_error(400, "send_prompt", {"session_id": session})
    plain = await accepted(api, session)
    assert (len(plain.run_id) >= 16, plain.client_id, plain.interactive, plain.yolo) == (True, "", True, False)
    full = await accepted(api, session, run_id="r1", client_id=UNKNOWN_CLIENT, interactive=True, yolo=True)
    assert (full.run_id, full.client_id, full.interactive, full.yolo) == ("r1", UNKNOWN_CLIENT, True, True)
    assert not (await accepted(api, session, run_id="r2")).interactive, "a caller with a run id of its own is a program"
    assert not (await accepted(api, session, interactive=False)).interactive


@row("send_prompt.attachments", "send_prompt.require_model")
async def attachments(api: Api) -> None:
    session = await api.approvals.session()
    file = {"content": base64.b64encode(b"text").decode(), "file_path": "a", "file_name": "a", "mime_type": "text/x"}
    assert (await accepted(api, session)).attachments == ()
    assert (await accepted(api, session, attachments=None)).attachments == ()
    assert (await accepted(api, session, attachments=())).attachments == ()
    full = await accepted(api, session, attachments=[file], run_id="r1", require_model=True)
    assert [(note.file_name, note.size) for note in full.attachments] == [("a", 4)]
    assert full.require_model
    assert not (await accepted(api, session)).require_model


@row("send_prompt.delivery", "patch_run.position", "patch_run.delivery")
async def queue_positions(api: Api) -> None:
    session = await api.approvals.session()
    await api.approvals.bash(session, "held")
    await api.approvals.pending_permissions()
    assert (await accepted(api, session)).delivery == "steer"
    assert (await accepted(api, session, run_id="a")).delivery == "queue"
    for delivery in ("steer", "queue"):
        found = await accepted(api, session, run_id=f"b-{delivery}", delivery=delivery)
        assert (found.delivery, found.position > 0) == (delivery, True)
    await api.expect_error(409, "send_prompt", {"session_id": session, "prompt": "x", "delivery": "reject"})
    for body in ({}, {"position": 0, "delivery": "steer"}, {"position": None, "delivery": None}):
        assert "either" in await api.expect_error(400, "patch_run", body, run_id="a")
    assert (await api.expect_ok("patch_run", {"delivery": "steer"}, run_id="a"))["delivery"] == "steer"
    await api.expect_ok("patch_run", {"position": 0}, run_id="b-queue")
    queue = api.server.manager.handle(api.workspace).owned.engine.lane(SessionId(session)).queue
    assert queue[0].run == "b-queue"


@row("init_agent.interactive")
async def readiness(api: Api) -> None:
    before = await api.last_event()
    for body in (None, {}, {"interactive": True}, b" \n"):
        await api.expect_ok("init_agent", body)
    assert await api.last_event() == before


@row("grant.reason", "grant?client_id", "grant?via")
async def grants(api: Api) -> None:
    session = await api.approvals.session()
    for number, (reason, query) in enumerate(
        (("", {}), ("not now", {"client_id": UNKNOWN_CLIENT, "via": "page"}), ("no", {"via": "nonsense"}))
    ):
        run = await api.approvals.bash(session, f"line {number}")
        asked = msgspec.to_builtins((await api.approvals.pending_permissions())[0])
        body = {"permission": asked, "action": "deny"}
        assert (await api.expect_ok("grant", {**body, "reason": reason} if reason else body, query))["resolved"]
        await api.approvals.events_until_end(run)
    results = [item.content for item in await api.approvals.results(session)]
    assert ["not now" in text for text in results] == [False, True, False]
    finishes = await api.approvals.finish_reasons(session)
    assert finishes == ["end_turn", *["tool_use", "end_turn"] * 2], "only a no without a reason ends the turn"
    closed = [item for item in await notices(api, "permission_notification") if item["denied"]]
    assert [(item.get("by", ""), item.get("via", "")) for item in closed] == [
        ("", ""),
        (UNKNOWN_CLIENT, "page"),
        ("", ""),
    ]


async def notices(api: Api, kind: str) -> list[dict[str, Any]]:
    page = await api.expect_ok("read_log")
    return [item["payload"]["payload"] for item in page["events"] if item["type"] == kind]


@row(
    "answer_question.responses", "answer_question.batch_request_id", "answer_question?client_id", "answer_question?via"
)
async def answers(api: Api) -> None:
    session = await api.approvals.session()
    rows: list[tuple[bool, dict[str, str]]] = [(False, {}), (True, {"client_id": UNKNOWN_CLIENT, "via": "terminal"})]
    for is_named, query in rows:
        run = await api.approvals.call_tools(session, ("question", {"questions": [question("Really?")]}))
        (batch,) = await api.approvals.pending_questions()
        body: dict[str, Any] = {"responses": [{"request_id": batch.questions[0].id, "yes": True}]}
        answer = await api.expect_ok(
            "answer_question", {**body, "batch_request_id": batch.id} if is_named else body, query
        )
        assert answer == {"resolved": True}
        await api.approvals.events_until_end(run)
    closed = await notices(api, "question_batch_notification")
    assert [(item.get("by", ""), item.get("via", "")) for item in closed] == [("", ""), (UNKNOWN_CLIENT, "terminal")]
    run = await api.approvals.call_tools(session, ("question", {"questions": [question("Really?")]}))
    (batch,) = await api.approvals.pending_questions()
    assert await api.expect_ok("answer_question", {"batch_request_id": batch.id}) == {"resolved": True}
    await api.approvals.events_until_end(run)
    texts = [item.content for item in await api.approvals.results(session)]
    assert (texts[0] == texts[1], texts[1] == texts[2]) == (True, False), "without responses it is skipped"


@row("cancel_question?batch_id", "cancel_question?client_id", "cancel_question?via")
async def question_cancels(api: Api) -> None:
    first, second = await api.approvals.session(), await api.approvals.session()
    for session in (first, second):
        await api.approvals.call_tools(session, ("question", {"questions": [question("Really?")]}))
        await api.approvals.pending_questions(1 if session == first else 2)
    later = (await api.approvals.pending_questions(2))[1]
    assert (
        await api.expect_ok(
            "cancel_question", query={"batch_id": later.id, "client_id": UNKNOWN_CLIENT, "via": "command"}
        )
    )["resolved"]
    (left,) = await api.approvals.pending_questions(1)
    assert left.id != later.id
    (closed,) = await notices(api, "question_batch_notification")
    assert (closed["by"], closed["via"], closed["cancelled"]) == (UNKNOWN_CLIENT, "command", True)


@row("config_set.scope", "config_set.value", "config_remove.scope", "config_remove.value")
async def scopes(api: Api) -> None:
    await api.expect_ok("config_set", {"key": "options.debug", "value": True})
    await api.expect_ok("config_set", {"key": "options.debug", "value": False, "scope": 1})
    assert (settings(api, 0)["options"], settings(api, 1)["options"]) == ({"debug": True}, {"debug": False})
    await api.expect_ok("config_set", {"key": "options.metrics"})
    assert settings(api, 0)["options"].pop("metrics") is None
    await api.expect_ok("config_remove", {"key": "options.metrics"})
    await api.expect_ok("config_remove", {"key": "options.debug", "scope": 1, "value": 5})
    assert (settings(api, 0)["options"], settings(api, 1).get("options", {})) == ({"debug": True}, {})
    await api.expect_ok("config_remove", {"key": "options.debug"})
    assert not settings(api, 0).get("options")
    await api.expect_ok("config_set", {"key": "a.b"})
    assert settings(api, 0)["a"] == {"b": None}


@row("config_model.scope", *(f"config_model.model.{name}" for name in SelectedModel.__struct_fields__[2:]))
async def choices(api: Api) -> None:
    plain = {"model": "m", "provider": "p"}
    values: dict[str, Any] = {
        "max_tokens": 5,
        "reasoning_effort": "high",
        "think": True,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "provider_options": {"a": 1},
    }
    assert set(values) == set(SelectedModel.__struct_fields__[2:])
    await api.expect_ok("config_model", {"model_type": "large", "model": plain})
    assert settings(api, 0)["models"]["large"] == plain
    for name, value in values.items():
        await api.expect_ok("config_model", {"model_type": "large", "model": {**plain, name: value}, "scope": 1})
        assert settings(api, 1)["models"]["large"] == {**plain, name: value}
        assert (await api.expect_ok("agent_info"))["model_cfg"].get(name) == value, name
    assert settings(api, 0)["models"]["large"] == plain
    assert len(settings(api, 0)["recent_models"]["large"]) == 5, "the newest few"


@row("config_compact.enabled", "config_compact.scope", "config_provider_key.kind", "config_provider_key.scope")
async def stock_client_settings(api: Api) -> None:
    assert "enabled" in await api.expect_error(400, "config_compact", {})
    await api.expect_ok("config_compact", {"enabled": True})
    await api.expect_ok("config_compact", {"enabled": False, "scope": 1})
    found = [settings(api, scope)["options"]["tui"] for scope in (0, 1)]
    assert found == [{"compact_mode": True}, {"compact_mode": False}]
    await api.expect_ok("config_provider_key", {"provider_id": "p", "api_key": "$A"})
    token = {"access_token": "t"}
    await api.expect_ok("config_provider_key", {"provider_id": "p", "api_key": token, "kind": "oauth", "scope": 1})
    assert [settings(api, scope)["providers"]["p"] for scope in (0, 1)] == [{"api_key": "$A"}, {"oauth": token}]


@row("run_shell.session_id", "run_shell.term_width")
async def shells(api: Api) -> None:
    session, other = await api.approvals.session(), await api.approvals.session()
    plain = await api.expect_ok("run_shell", {"command": "echo $COLUMNS"}, sid=session)
    wide = await api.expect_ok(
        "run_shell", {"command": "echo $COLUMNS", "term_width": 123, "session_id": other}, sid=session
    )
    assert (plain["output"].strip() != "123", wide["output"].strip()) == (True, "123")
    counts = [len(await api.client.list_messages(api.workspace, item)) for item in (session, other)]
    assert (counts[0] > 0, counts[1]) == (True, 0), "the session of the path counts"


def texts_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.txt"))


@row(*(f"undo_changes.{name}" for name in ("path", "run_id", "dry_run", "force", "session_id")))
async def undo_fields(api: Api) -> None:
    project, runs = Path(api.server.directory.project()), []
    sessions = [await api.approvals.session() for _ in range(2)]
    for session, name in zip((*sessions, sessions[1]), "abc", strict=True):
        run = await api.approvals.call_tools(session, ("write", {"file_path": f"{name}.txt", "content": name}))
        await api.approvals.grant((await api.approvals.pending_permissions())[0])
        await api.approvals.events_until_end(run)
        runs.append(run.run_id)

    async def undo(**body: object) -> list[str]:
        report = await api.expect_ok("undo_changes", body)
        return sorted(Path(item["path"]).name for item in report["files"]) if report["is_done"] else []

    assert await undo(dry_run=True) == []
    assert texts_in(project) == ["a.txt", "b.txt", "c.txt"]
    assert await undo(run_id=runs[1]) == ["b.txt"]
    assert await undo(path="a.txt", dry_run=False) == ["a.txt"]
    (project / "c.txt").write_text("changed")
    assert await undo(session_id=sessions[1]) == [], "somebody has changed it"
    assert await undo(session_id=sessions[1], force=True) == ["c.txt"]
    assert texts_in(project) == []


@row("set_trust.digest", "set_trust.files", "set_trust.withheld")
async def trust(api: Api) -> None:
    (Path(api.server.directory.project()) / "crush.json").write_text('{"mcp": {"x": {"command": "true"}}}')
    assert "have changed since they were shown" in await api.expect_error(400, "set_trust", {"trusted": True})
    shown = await api.expect_ok("get_trust")
    body = {"trusted": True, "digest": shown["digest"], "files": ["other"], "withheld": []}
    assert (await api.expect_ok("set_trust", body))["files"] == shown["files"]


@row("expand_command.arguments")
async def arguments(api: Api) -> None:
    folder = Path(api.server.directory.project()) / ".holdfast/commands"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("Greet $NAME.\n")
    full = await api.expect_ok("expand_command", {"prompt": "/greet", "arguments": {"NAME": "Ada"}})
    plain = await api.expect_ok("expand_command", {"prompt": "/greet"})
    assert full["prompt"].strip() == "Greet Ada."
    assert "Ada" not in plain["prompt"]


@row("mcp_get_prompt.args")
async def prompt_arguments(api: Api) -> None:
    """With a server: tests/server/test_route_effects_more.py."""
    for more in ({}, {"args": {"a": "b"}}):
        await api.expect_error(400, "mcp_get_prompt", {"client_id": "nothing", "prompt_id": "p", **more})
    assert "expected" in await api.expect_error(
        400, "mcp_get_prompt", {"client_id": "n", "prompt_id": "p", "args": {"a": 1}}
    )


# Queries


@row("all_stats?zone", "stats?zone")
async def zones(api: Api) -> None:
    await api.approvals.events_until_end(await api.approvals.call_tools(await api.approvals.session()))
    for name in ("stats", "all_stats"):
        plain = await api.expect_ok(name)
        for zone in ("0", "-0", "840", "-840"):
            found = await api.expect_ok(name, query={"zone": zone})
            assert (found == plain) is (zone in ("0", "-0")) or found["runs"] == plain["runs"]
        for zone in ("841", "-841", "--1", "+1", "", "1.5", "00001"):
            assert "zone" in await api.expect_error(400, name, query={"zone": zone})


@row("events?client_id", "events?since")
async def streams(api: Api) -> None:
    path = f"/v1/workspaces/{api.workspace}/events"
    claims = api.server.manager.presence.workspaces[WorkspaceId(api.workspace)].claims
    for query, has_greeting, more in (
        ("", False, 0),
        ("?since=0", True, 0),
        (f"?since=0&client_id={UNKNOWN_CLIENT}", True, 1),
        (f"?client_id={UNKNOWN_CLIENT}", False, 1),
    ):
        stream = await RawStream.open(api.server.address, path + query)
        await api.approvals.session()
        await stream.until(lambda item: b'"session"' in item.data)
        assert (b'"hello"' in stream.raw, any(item.number for item in stream.events)) == (has_greeting, has_greeting)
        now = api.server.manager.presence.workspaces[WorkspaceId(api.workspace)].claims
        assert len(now) - len(claims) == more
        stream.close()


@row("snapshot?session_id", "list_jobs?session_id")
async def snapshot_fields(api: Api) -> None:
    sessions = [await api.approvals.session() for _ in range(2)]
    for session in sessions:
        await api.approvals.events_until_end(await api.approvals.call_tools(session))
    for query, expected in (({}, set()), ({"session_id": ""}, set()), ({"session_id": sessions[1]}, {sessions[1]})):
        found = await api.expect_ok("snapshot", query=query)
        assert {item["session_id"] for item in found["messages"]} == expected
        assert len(found["sessions"]) == 2
        assert await api.expect_ok("list_jobs", query=query) == []


@row("read_log?after", "read_log?limit", "read_log?session_id", "read_log?run_id")
async def logs(api: Api) -> None:
    sessions = [await api.approvals.session() for _ in range(2)]
    runs = [await api.approvals.call_tools(session) for session in sessions]
    for run in runs:
        await api.approvals.events_until_end(run)
    every = (await api.expect_ok("read_log"))["events"]
    assert [item["number"] for item in every] == list(range(1, await api.last_event() + 1))
    assert (await api.expect_ok("read_log", query={"after": 3}))["events"] == every[3:]
    page = await api.expect_ok("read_log", query={"limit": 2})
    assert (page["events"], page["next"], page["more"]) == (every[:2], 2, True)
    mine = (await api.expect_ok("read_log", query={"session_id": sessions[1]}))["events"]
    assert mine == [item for item in every if sessions[1] in json.dumps(item["payload"])]
    of_run = (await api.expect_ok("read_log", query={"run_id": runs[1].run_id}))["events"]
    assert of_run[0]["type"] == "run"
    assert of_run[-1]["type"] == "run_complete"
    assert set(item["number"] for item in of_run) < set(item["number"] for item in mine)
    later = of_run[2]["number"]
    assert (await api.expect_ok("read_log", query={"run_id": runs[1].run_id, "after": later}))["events"] == of_run[3:]


@row("doctor?areas")
async def areas(api: Api) -> None:
    found = await api.expect_ok("doctor", query={"areas": " settings , search tools,nonsense"})
    assert [item["area"] for item in found["findings"]] == ["settings", "search tools"]
    every = {item["area"] for item in (await api.expect_ok("doctor"))["findings"]}
    assert {"settings", "search tools", "models", "data directory"} <= every


@row("cancel_session?client_id", "clear_queue?client_id", "cancel_run?client_id")
async def cancelling_client(api: Api) -> None:
    for query, expected in (({}, ""), ({"client_id": UNKNOWN_CLIENT}, UNKNOWN_CLIENT)):
        session = await api.approvals.session()
        first = await api.approvals.bash(session, "held")
        await api.approvals.pending_permissions()
        waiting = [await accepted(api, session, run_id=f"{name}{expected[:4]}") for name in "ab"]
        await api.expect_ok("cancel_run", query=query, run_id=waiting[0].run_id)
        await api.expect_ok("clear_queue", query=query, sid=session)
        await api.expect_ok("cancel_session", query=query, sid=session)
        await api.approvals.events_until_end(first)
        for run in (first.run_id, *(item.run_id for item in waiting)):
            found = await api.client.get_run(WorkspaceId(api.workspace), run)
            assert (found.cancelled_by, found.outcome) == (expected, "cancelled")


@row("default_small_model?provider_id")
async def small_models(api: Api) -> None:
    """Models of a provider: tests/runtime. Here one model is given."""
    assert await api.expect_ok("default_small_model") == await api.expect_ok(
        "default_small_model", query={"provider_id": "x"}
    )


@row(*(f"list_runs?{name}" for name in ("session_id", "state", "limit", "before")))
async def run_pages(api: Api) -> None:
    sessions = [await api.approvals.session() for _ in range(2)]
    for name, session in zip("abcd", (*sessions, *sessions), strict=True):
        await accepted(api, session, run_id=name)
        await api.approvals.events_until_end(await api.approvals.call_tools(session))

    async def names(**query: object) -> list[str]:
        return [run["run_id"] for run in await api.expect_ok("list_runs", query=query) if len(run["run_id"]) == 1]

    every = await api.expect_ok("list_runs")
    assert await names() == list("dcba")
    assert await names(session_id=sessions[0]) == list("ca")
    assert await names(session_id="") == list("dcba")
    assert len(await api.expect_ok("list_runs", query={"limit": 3})) == 3
    assert await api.expect_ok("list_runs", query={"limit": 0}) == []
    assert await api.expect_ok("list_runs", query={"before": every[1]["number"]}) == every[2:]
    assert await api.expect_ok("list_runs", query={"before": 0}) == every
    assert await api.expect_ok("list_runs", query={"state": "waiting"}) == []
    assert (
        await api.expect_ok("list_runs", query={"state": "ended", "limit": 2, "before": every[1]["number"]})
        == every[2:4]
    )


def test_every_field_has_a_row() -> None:
    assert set(FIELDS) == wanted() | {f"config_compact.{name}" for name in ("enabled", "scope")} | {
        f"config_provider_key.{name}" for name in ("kind", "scope")
    }


@pytest.mark.parametrize("check", list(dict.fromkeys(FIELDS.values())), ids=lambda check: check.__name__)
async def test_each_field_has_its_effect(check: Row) -> None:
    async with api() as opened:
        await check(opened)
