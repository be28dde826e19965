"""The event log route: stored events in order, with times, by session and by run, page by page."""

import json
from typing import Any

import pytest

from holdfast.domain.events import decode_event
from holdfast.domain.ids import RunId
from server.helpers import (
    RawResponse,
    Server,
    collect_run_ends,
    exchange,
    in_process_server,
    raw_request,
    send_prompt,
    server_directory,
)


async def get_log(server: Server, workspace: str, query: str = "") -> RawResponse:
    return await exchange(server.address, raw_request(f"/v1/workspaces/{workspace}/log{query}"))


def kinds(page: dict[str, Any]) -> list[str]:
    return [event["type"] for event in page["events"]]


async def test_log_equals_stream_with_times() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "one", "r1")
        await collect_run_ends(client, workspace, ["r1"])
        stored = await server.manager.ledger.events_after(workspace, 0, 1000)
        page = (await get_log(server, workspace)).json
        assert [event["number"] for event in page["events"]] == [number for number, _ in stored]
        again = [{"type": event["type"], "payload": event["payload"]} for event in page["events"]]
        assert [decode_event(body) for _, body in stored] == [
            decode_event(json.dumps(event).encode()) for event in again
        ]
        times = [event["at"] for event in page["events"]]
        assert (await client.read_log(workspace, session=session, run="r1")).more is False
        run = await client.get_run(workspace, RunId("r1"))
        assert times == sorted(times)
        assert run.accepted_at - 1000 < times[-1] < run.ended_at + 60_000
        assert (page["more"], page["next"]) == (False, stored[-1][0])


async def test_log_of_run_covers_acceptance_to_end() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        here = (await client.create_session(workspace, "here")).id
        there = (await client.create_session(workspace, "there")).id
        for name, session in (("r1", here), ("r2", there), ("r3", here)):
            await send_prompt(client, workspace, session, name, name)
            await collect_run_ends(client, workspace, [name])
        page = (await get_log(server, workspace, "?run_id=r1")).json
        assert (kinds(page)[0], kinds(page)[-1], page["more"]) == ("run", "run_complete", False)
        assert {event["payload"]["payload"].get("run_id", "r1") for event in page["events"]} == {"r1"}
        whole = (await get_log(server, workspace, f"?session_id={here}")).json
        assert kinds(whole).count("run_complete") == 2
        ids = {event["payload"]["payload"].get("session_id", here) for event in whole["events"]}
        assert ids == {here}
        assert kinds(whole)[0] == "session"


async def test_log_pages_join_to_whole_log() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        for name in ("r1", "r2"):
            await send_prompt(client, workspace, session, name, name)
            await collect_run_ends(client, workspace, [name])
        for query in ("", f"&session_id={session}", "&run_id=r2"):
            whole = (await get_log(server, workspace, f"?limit=1000{query}")).json["events"]
            pages: list[Any] = []
            after, more = 0, True
            while more:
                page = (await get_log(server, workspace, f"?limit=2&after={after}{query}")).json
                assert 0 < len(page["events"]) <= 2
                pages, after, more = pages + page["events"], page["next"], page["more"]
            assert pages == whole


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?limit=x", "?after=-1", "?run_id=nobody"])
async def test_invalid_query_is_refused(query: str) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        assert (await get_log(server, workspace, query)).status == (404 if "run_id" in query else 400)
