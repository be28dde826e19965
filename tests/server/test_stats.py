"""The page of the routes, usage statistics of a workspace, and routes without an implementation."""

import base64
import hashlib
import re

import pytest

from holdfast.domain.messages import text_of
from holdfast.protocol.openapi import document
from holdfast.protocol.routes import ROUTES
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step
from server.helpers import (
    EchoModel,
    collect_run_ends,
    exchange,
    in_process_server,
    raw_request,
    send_prompt,
    server_directory,
)


async def test_route_page_loads_no_external_resource() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        answer = await exchange(server.address, raw_request("/v1/docs/"))
    text = answer.body.decode()
    assert answer.status == 200
    assert answer.head.headers["content-type"] == "text/html; charset=utf-8"
    for route in ROUTES:
        assert f"{route.method} {route.full_path}" in text
    for name in document()["components"]["schemas"]:
        assert f">{name}<" in text
    assert not re.search(r"<script|<img|<link|https?://|@import|url\(| on\w+=| style=", text)
    rules = answer.head.headers["content-security-policy"].split("; ")
    style = re.search(r"<style>(.*?)</style>", text)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert rules[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= set(rules)


_FAILS, _ANSWERS = Step((Say("so "), Fail("no"))), Step((Say("yes"),))


class FailingModel(EchoModel):
    """Model that fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ScriptedModel(lambda request: _FAILS if text_of(request.messages[-1]) == "fail" else _ANSWERS)


async def test_statistics_count_usage() -> None:
    async with server_directory() as directory, in_process_server(directory, FailingModel()) as server:
        client, workspace = await server.open_workspace()
        assert (await client.stats(workspace)).runs == {}
        for number, text in enumerate(["one", "two", "fail"]):
            session = (await client.create_session(workspace, text)).id
            await send_prompt(client, workspace, session, text, f"r{number}")
            await collect_run_ends(client, workspace, [f"r{number}"])
        found = await client.stats(workspace)
        sessions = await client.list_sessions(workspace)
    assert found.sessions == 3
    assert found.runs == {"completed": 2, "failed": 1}
    assert sum(found.days.values()) == 3
    assert found.messages == sum(item.message_count for item in sessions) > 3
    assert found.prompt_tokens == sum(item.prompt_tokens for item in sessions)
    assert found.cost == pytest.approx(sum(item.cost for item in sessions))
    assert 0 <= found.seconds < 60
    assert [(item.model, item.messages) for item in found.models] == [("scripted", 3)]
    assert sum(map(sum, found.week)) == 3


async def test_days_and_hours_use_time_zone_of_reader() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "one", "r")
        await collect_run_ends(client, workspace, ["r"])
        here, ahead = await client.stats(workspace, 0), await client.all_stats(120)
        assert [ahead.zone, ahead.workspaces] == [120, (directory.project(),)]
        hours = [[hour for day in found.week for hour, count in enumerate(day) if count] for found in (here, ahead)]
        assert (hours[0][0] + 2) % 24 == hours[1][0]
        for zone in ("x", "841", "--1", "99999", "%C2%B2"):
            answer = await exchange(server.address, raw_request(f"/v1/stats?zone={zone}"))
            assert answer.status == 400, zone


EMPTY = [
    ("POST", "skills/read", b'{"skill_id":"x"}', 400),
    ("GET", "lsps/gopls/diagnostics", None, 404),
    ("POST", "mcp/get-prompt", b'{"client_id":"x","prompt_id":"y","args":{}}', 400),
    ("POST", "mcp/read-resource", b'{"name":"x","uri":"y"}', 400),
    ("GET", "mcp/auth-url", None, 400),
    ("GET", "mcp/auth-url?name=x", None, 200),
    ("POST", "mcp/auth", b'{"name":"x"}', 400),
    ("POST", "mcp/docker/enable", None, 400),
    ("POST", "mcp/docker/disable", None, 200),
]


async def test_unimplemented_routes_return_documented_response() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        for method, path, body, status in EMPTY:
            answer = await exchange(server.address, raw_request(f"/v1/workspaces/{workspace}/{path}", method, body))
            assert answer.status == status, path
            if status >= 400:
                assert len(answer.json["message"]) > 10, path
            unknown = await exchange(server.address, raw_request(f"/v1/workspaces/nowhere/{path}", method, body))
            assert unknown.status in (400, 404), path
            assert "message" in unknown.json


async def test_unreadable_settings_return_documented_response() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        (directory.data / "config.json").write_text("{")
        paths = document()["paths"]
        for path in ("", "/{id}", "/{id}/config", "/{id}/providers", "/{id}/snapshot"):
            answer = await exchange(server.address, raw_request(f"/v1/workspaces{path.replace('{id}', workspace)}"))
            assert str(answer.status) in paths[f"/v1/workspaces{path}"]["get"]["responses"], path
            assert answer.status < 500, path
