"""Creates the recordings: `python tests/web/record.py`. Real servers do real work, and their streams are recorded.

Recordings differ in ids and times. The expected views are computed by the Python fold: review the differences before
they are committed.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import msgspec

from client.worlds import Harness
from e2e.tool_client import bash, tool_client
from holdfast.domain.events import encode_event
from holdfast.domain.ids import SessionId
from holdfast.domain.model_requests import ModelRequest
from holdfast.engine.retries import RetryPolicy
from holdfast.protocol.bodies import AgentMessage, RunChange
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step, Think
from server.approval_client import approval_client, question
from server.helpers import QUICK, RawStream
from web.recordings import FOLD, folded

__all__: list[str] = []

Steps = list[dict[str, Any]]


class Recorder:
    """Records the stream of one workspace."""

    def __init__(self, one: Any, stream: RawStream) -> None:  # noqa: ANN401 - any object with a client and a workspace
        self.one = one
        self.stream = stream
        self.steps: Steps = []
        self._written = 0

    def write(self) -> None:
        for event in self.stream.events[self._written :]:
            self.steps.append({"number": event.number, "event": json.loads(event.data)})
        self._written = len(self.stream.events)

    async def wait_until(self, kind: str, **facts: object) -> dict[str, Any]:
        """Read until a matching event; earlier events count, too."""

        def fits(body: dict[str, Any]) -> bool:
            inner = body["payload"].get("payload", body["payload"])
            return body["type"] == kind and all(inner.get(name) == value for name, value in facts.items())

        found = await self.stream.until(lambda event: fits(json.loads(event.data)))
        self.write()
        body: dict[str, Any] = json.loads(found.data)
        return body

    async def end(self, run: str) -> None:
        await self.wait_until("run_complete", run_id=run)

    async def load(self, session: str | None) -> None:
        """Load a snapshot of a session now."""
        name = SessionId(session) if session else None
        body = await self.one.client.snapshot(self.one.workspace, name)
        self.write()
        self.steps.append({"snapshot": json.loads(msgspec.json.encode(body)), "session": session})


@asynccontextmanager
async def recorder(one: Any, since: int = 0) -> AsyncIterator[Recorder]:  # noqa: ANN401
    path = f"/v1/workspaces/{one.workspace}/events?client_id={one.client.client_id}&since={since}"
    stream = await RawStream.open(one.client.address, path)
    try:
        yield Recorder(one, stream)
    finally:
        stream.close()


_ANSWER = "Grüße 👋🏽: a **list**\n\n- one\n- two\n\n```python\nprint('\U0001d518')\n```\n\nand an end."


def _talks(request: ModelRequest) -> Step:
    return Step((Think("Let me think of 🌊 and of \U0001d518.\nThen answer."), Say(_ANSWER)))


async def lsp_session() -> Steps:
    """Thoughts and text, one that joins in the middle, a title that is changed, a session that is deleted."""
    async with tool_client(model=ScriptedModel(_talks)) as one, recorder(one) as output:
        session = await one.session()
        run = await one.client.send_prompt(one.workspace, AgentMessage(session, "hello"))
        await output.wait_until("message_delta", session_id=session)
        await output.load(session)
        await output.end(run.run_id)
        await one.client.put_session(one.workspace, session, "Greetings")
        other = await one.session()
        await output.end((await one.client.send_prompt(one.workspace, AgentMessage(other, "again"))).run_id)
        await output.load(other)
        await one.client.config_set(one.workspace, "options.tui.theme", "paper")
        await one.client.delete_session(one.workspace, session)
        await output.wait_until("session", id=session, title="Greetings")
        await output.end((await one.client.send_prompt(one.workspace, AgentMessage(other, "once more"))).run_id)
        return output.steps


async def tools() -> Steps:
    """Files are written and changed, a command prints while it works, one call fails, a helper is sent."""
    async with tool_client() as one, recorder(one) as output:
        session = await one.session()
        await output.load(session)
        write = ("write", {"file_path": "a.txt", "content": "one\ntwo\n"})
        edit = ("edit", {"file_path": "a.txt", "old_string": "two", "new_string": "zwei 🐚"})
        await output.end((await one.call_tools(session, write, edit, ("view", {"file_path": "nowhere"}))).run_id)
        go = one.project / "go"
        slow = f"printf 'begin 🛠\\n'; while [ ! -e {go} ]; do sleep 0.02; done; echo end"
        run = await one.call_tools(session, bash(slow))
        await output.wait_until("tool_output", session_id=session)
        go.touch()
        await output.end(run.run_id)
        inner = json.dumps([("view", {"file_path": "a.txt"})])
        await output.end((await one.call_tools(session, ("agent", {"prompt": inner}))).run_id)
        return output.steps


async def queue() -> Steps:
    """Prompts wait, are moved, removed, sent into the turn; then all is cancelled."""
    async with tool_client() as one, recorder(one) as output:
        session = await one.session()
        await output.load(session)
        run = await one.call_tools(session, bash("echo started; sleep 100"))
        await output.wait_until("tool_output", session_id=session)
        names = ("first", "second", "third", "fourth")
        for name in names:
            message = AgentMessage(session, name, run_id=_run(name), delivery="queue")
            await one.client.send_prompt(one.workspace, message)
        await one.client.patch_run(one.workspace, _run("third"), RunChange(position=0))
        await one.client.patch_run(one.workspace, _run("second"), RunChange(delivery="steer"))
        await one.client.cancel_run(one.workspace, _run("first"))
        await output.load(session)
        await one.client.cancel_session(one.workspace, session)
        await output.end(run.run_id)
        await output.end((await one.call_tools(session)).run_id)
        return output.steps


def _run(name: str) -> Any:  # noqa: ANN401 - a run id
    return f"run-{name}"


async def failures() -> Steps:
    """An attempt breaks in the middle of its words and is withdrawn; the next one answers. Then one fails for good."""
    steps = [
        Step((Say("This is going to break"), Fail("busy", trouble="busy"))),
        Step((Say("This one is whole."),)),
        Step((Say("The end"), Fail("no such model"))),
    ]
    settings = msgspec.structs.replace(QUICK, retries=RetryPolicy(first=0.01, longest=0.02))
    async with tool_client(model=ScriptedModel(steps), settings=settings) as one, recorder(one) as output:
        session = await one.session()
        await output.load(session)
        for prompt in ("one", "two"):
            await output.end((await one.client.send_prompt(one.workspace, AgentMessage(session, prompt))).run_id)
        await output.wait_until("agent_event", type="agent_finished")
        return output.steps


async def permissions() -> Steps:
    """Allowed, denied with a reason, and withdrawn by a cancel."""
    async with tool_client(yolo=False) as one, recorder(one) as output:
        session = await one.session()
        await output.load(session)
        for action in ("allow", "deny"):
            run = await one.call_tools(session, bash("touch made"))
            (ask,) = await one.pending_permissions()
            await output.wait_until("permission_request", id=ask.id)
            await output.load(session)
            await one.grant(ask, action, "not like this" if action == "deny" else "")
            await output.end(run.run_id)
        run = await one.call_tools(session, bash("touch more"))
        await one.pending_permissions()
        await one.client.cancel_run(one.workspace, run.run_id)
        await output.end(run.run_id)
        return output.steps


async def questions() -> Steps:
    async with approval_client() as one, recorder(one) as output:
        session = await one.session()
        await output.load(session)
        run = await one.call_tools(
            session, ("question", {"questions": [question("Go on?"), question("A name?", "free_text")]})
        )
        (batch,) = await one.pending_questions()
        await output.wait_until("question_batch_request", id=batch.id)
        answers = [{"request_id": batch.questions[0].id, "yes": True}, {"request_id": batch.questions[1].id}]
        await one.client.answer_question(one.workspace, {"batch_request_id": batch.id, "responses": answers})
        await output.wait_until("run_complete", run_id=run.run_id)
        run = await one.call_tools(session, ("question", {"questions": [question("Again?")]}))
        (batch,) = await one.pending_questions()
        await one.client.cancel_question(one.workspace, batch.id)
        await output.end(run.run_id)
        return output.steps


async def gap() -> Steps:
    """A reader that resumes at an unknown number: a gap, a snapshot, later events."""
    async with tool_client() as one:
        session = await one.session()
        await one.run_end(await one.call_tools(session))
        async with recorder(one, since=10**9) as output:
            await output.wait_until("gap")
            await output.load(session)
            await output.end((await one.call_tools(session)).run_id)
            return output.steps


async def behind() -> Steps:
    """A snapshot that is newer than the stream: the reader has been slow."""
    async with tool_client() as one, recorder(one) as output:
        session = await one.session()
        await output.end((await one.call_tools(session)).run_id)
        run = await one.call_tools(session)
        await one.run_end(run)
        await output.load(session)
        await output.end(run.run_id)
        await output.end((await one.call_tools(session)).run_id)
        return output.steps


def harness(seed: int) -> Steps:
    """A life at random: more kinds of growth, holes and overlaps than any server makes."""
    chance = Random(seed)
    one = Harness(chance)
    steps: Steps = []
    for _ in range(120):
        before = len(one.received_events)
        one.step()
        for item in one.received_events[before:]:
            event = json.loads(encode_event(item.event))  # type: ignore[arg-type]
            steps.append({"number": item.number, "event": event})
        if chance.randint(0, 25) == 0:
            name = chance.choice(["s1", "s2"])
            body = json.loads(msgspec.json.encode(one.snapshot(SessionId(name))))
            steps.append({"snapshot": body, "session": name})
    return steps


def _reported(kind: str, number: int | None, /, **payload: object) -> dict[str, Any]:
    body: dict[str, Any] = dict(payload)
    if number is not None:
        body = {"type": body.pop("change", "created"), "payload": body}
    return {"number": number, "event": {"type": kind, "payload": body}}


_MESSAGE = {
    "parts": [{"type": "text", "data": {"text": ""}}],
    "id": "m1",
    "role": "assistant",
    "session_id": "s1",
    "model": "",
    "provider": "",
    "created_at": 1,
    "updated_at": 1,
}


def growth(seed: int) -> Steps:
    """One message with every kind of delta: fitting, overlapping, with gaps, replaced, after its end."""
    chance = Random(seed)
    steps: Steps = [_reported("message", 1, **_MESSAGE)]
    lengths = [0]
    for _ in range(300):
        part = chance.randint(0, len(lengths) + 1)
        names = {"session_id": "s1", "message_id": "m1", "part": part}
        words = "".join(chance.choices("ab\U0001f600\U0001d518é ", k=chance.randint(0, 5)))
        if chance.random() < 0.1:
            kind = chance.choice(["text", "reasoning", "finish"])
            data = {
                "text": {"text": words},
                "reasoning": {"thinking": words, "signature": ""},
                "finish": {"reason": "end_turn", "time": 1},
            }[kind]
            steps.append(_reported("message_part", None, **names, content={"type": kind, "data": data}))
            if part <= len(lengths):
                lengths[part:] = [len(words), *lengths[part + 1 :]]
            continue
        known = lengths[part] if part < len(lengths) else 0
        offset = max(0, known + chance.choice([0, 0, 0, 0, -1, -3, 2]))
        steps.append(_reported("message_delta", None, **names, offset=offset, text=words))
        if part < len(lengths) and offset <= known:
            lengths[part] = max(known, offset + len(words))
    return steps


def died() -> Steps:
    """A crashed server: its run ends without notices about its requests. The page reconnects late."""
    run = {"run_id": "r1", "session_id": "s1", "state": "active", "delivery": "steer", "accepted_at": 5, "number": 2}
    ask = {"session_id": "s1", "tool_call_id": "c1", "run_id": "r1"}
    permission = {
        **ask,
        "id": "a1",
        "tool_name": "bash",
        "description": "",
        "action": "execute",
        "params": {},
        "path": "/",
    }
    snapshot = msgspec.json.encode(Harness(Random(1)).snapshot(None))
    steps: Steps = [
        _reported("message", 1, **_MESSAGE),
        _reported("run", 2, **run, prompt="please"),
        _reported("permission_request", 3, **permission),
        _reported("permission_request", 4, **{**permission, "id": "a2", "run_id": "r2"}),
        _reported("question_batch_request", 5, **ask, id="q1", questions=[]),
        _reported(
            "tool_output", None, session_id="s1", message_id="m1", tool_call_id="c1", offset=0, text="ü" * 20_000
        ),
        _reported(
            "tool_output", None, session_id="s1", message_id="m1", tool_call_id="c1", offset=0, text="\U0001f600" * 9
        ),
        _reported("agent_event", 6, change="updated", type="error", error="It broke.", run_id="r1"),
        _reported("run_complete", 7, session_id="s1", message_id="m1", run_id="r1", outcome="interrupted", error="no"),
        _reported("run_complete", 8, session_id="s1", message_id="", run_id="unknown", outcome="failed"),
        _reported("something_new", 9, anything=1),
        {"number": 10, "event": {"type": "presence", "payload": {"clients": 2}}},
        {"snapshot": {**json.loads(snapshot), "cursor": 20, "messages": [_MESSAGE]}, "session": "s1"},
        _reported("message_delta", None, session_id="s1", message_id="m1", part=0, offset=0, text="not yet"),
        _reported("message", 15, **{**_MESSAGE, "id": "old"}),
        {"number": None, "event": {"type": "hello", "payload": {"cursor": 20, "oldest": 1, "epoch": 2}}},
        _reported("message_delta", None, session_id="s1", message_id="m1", part=0, offset=0, text="now"),
        {"number": None, "event": {"type": "gap", "payload": {"cursor": 12, "oldest": 12, "epoch": 3}}},
        _reported("message", 13, **{**_MESSAGE, "id": "m2"}),
        _reported("permission_notification", 14, tool_call_id="c1", granted=False, denied=False, id="a2"),
        _reported(
            "permission_notification", 15, tool_call_id="c1", granted=False, denied=False, id="a2", withdrawn=True
        ),
    ]
    names = [(number, f"many-{number}") for number in range(16, 80)]
    steps += [_reported("run", number, **{**run, "run_id": name, "number": number}) for number, name in names]
    ends = {"session_id": "s1", "message_id": "m1", "outcome": "completed"}
    return steps + [_reported("run_complete", number + 100, **ends, run_id=name) for number, name in names]


def _keep(name: str, steps: Steps) -> None:
    shown, digests = {}, {}
    for kind in ("all", "watched"):
        shown[kind], digests[kind] = folded(steps, keeps_all=kind == "all")
    lines = ",\n".join(json.dumps(step, ensure_ascii=False) for step in steps)
    rest = ",\n".join(f"{json.dumps(kind)}: {json.dumps(view, ensure_ascii=False)}" for kind, view in shown.items())
    text = f'{{"steps": [\n{lines}\n],\n"shown": {{\n{rest}\n}},\n"digests": {json.dumps(digests)}}}\n'
    (FOLD / f"{name}.json").write_text(text, encoding="utf-8")


async def main() -> None:
    FOLD.mkdir(exist_ok=True)
    scenes: list[Callable[[], Awaitable[Steps]]] = [
        lsp_session,
        tools,
        queue,
        failures,
        permissions,
        questions,
        gap,
        behind,
    ]
    for scene in scenes:
        _keep(getattr(scene, "__name__", "scene"), await scene())
    for seed in range(3):
        _keep(f"world-{seed}", harness(seed))
        _keep(f"growth-{seed}", growth(seed))
    _keep("died", died())


if __name__ == "__main__":
    asyncio.run(main())
