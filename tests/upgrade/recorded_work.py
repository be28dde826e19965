"""The work recorded in the fixture: prompts, the model's scripted responses, and the API's responses afterwards."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.domain.ids import SessionId, WorkspaceId
from model_server.script import CallTool, Reply, Say, Think
from model_server.server import RecordedRequest

__all__ = ["DELETED", "ROOT_LENGTH", "answer", "calls", "read_all"]

ROOT_LENGTH = len("/tmp/hf-abcdefgh")
"""Paths are replaced by paths of the same length, in the database file too."""
DELETED = "removed-with-its-session"
"""Part of every text of the deleted session."""


def calls(*steps: Sequence[tuple[str, Mapping[str, object]]], then: str = "Done.") -> str:
    """Return a prompt that makes the scripted model call these tools, step by step, and then return text."""
    return "calls " + json.dumps([steps, then])


def answer(request: RecordedRequest) -> Reply:
    """The scripted model: a title, the next step of the prompt's calls, or a plain response."""
    messages: list[Any] = request.json["messages"]  # type: ignore[assignment]
    if "tools" not in request.json:
        return Reply((Say(("A summary or title.",)),))
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    prompt, done = _text(messages[last]), sum(message["role"] == "assistant" for message in messages[last:])
    if "calls [" not in prompt:
        if "please fail" in prompt:
            return Reply(status=400, body=b'{"error": {"message": "The scripted provider refuses this."}}')
        return Reply((Think(("Considering ",)), Say(("An answer to: ", prompt[-80:]))))
    steps, then = json.JSONDecoder().raw_decode(prompt[prompt.index("calls [") + 6 :])[0]
    if done >= len(steps):
        return Reply((Say((then,)),))
    return Reply(
        tuple(
            CallTool(f"call-{len(messages)}-{index}", name, (json.dumps(given),))
            for index, (name, given) in enumerate(steps[done])
        )
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(item.get("text", "") for item in content)


async def read_all(client: Client, workspace: WorkspaceId) -> dict[str, Any]:
    """Return everything the API returns about the stored work of a workspace, as plain JSON values."""
    sessions = (await client.snapshot(workspace)).sessions
    ids = sorted(session.id for session in sessions)
    runs = await client.list_runs(workspace, limit=1000)
    found = {
        "sessions": {session.id: session for session in sessions},
        "listed": [session.id for session in await client.list_sessions(workspace)],
        "messages": {item: await client.list_messages(workspace, SessionId(item)) for item in ids},
        "files": {item: await client.list_history(workspace, SessionId(item)) for item in ids},
        "read": {item: sorted(await client.list_read_files(workspace, SessionId(item))) for item in ids},
        "runs": {run.run_id: run for run in runs},
        "typed": [message.id for message in await client.list_all_user_messages(workspace)],
        "log": await _log(client, workspace),
        "config": await client.get_config(workspace),
        "trust": await client.get_trust(workspace),
        "stats": await client.stats(workspace, 0),
    }
    plain: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return plain


async def _log(client: Client, workspace: WorkspaceId) -> list[object]:
    events: list[object] = []
    cursor, more = 0, True
    while more:
        page = await client.read_log(workspace, after=cursor)
        events += page.events
        cursor, more = page.next, page.more
    return events
