"""Record a data directory and settings written by the installed version, as the fixture of the upgrade test.

    PYTHONPATH=tests .venv/bin/python -m upgrade.make_fixture ARCHIVE

The real server is driven through its API and commands; only the model is scripted. Run it once per released format
and keep the archive: later versions must open every one of them.
"""

import asyncio
import io
import json
import signal
import sys
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import msgspec

from e2e.cli_environment import CliEnvironment
from holdfast.client.client import Client
from holdfast.client.server_address import ServerAddress
from holdfast.domain.files import UndoRequest
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Attachment
from holdfast.protocol.bodies import AgentMessage
from model_server.server import ModelServer
from server.helpers import read_until, run_ended
from stream_servers import reserve_port
from upgrade.recorded_work import DELETED, ROOT_LENGTH, answer, calls, read_all

SETTINGS = """
[models.large]
provider = "local"
model = "big"

[models.small]
provider = "local"
model = "small"

[providers.local]
type = "openai-compat"
base_url = "$UPGRADE_MODEL_URL"
api_key = "a-key-in-the-settings"

[[providers.local.models]]
id = "big"
context_window = 100000
cost_per_1m_in = 2.0
cost_per_1m_out = 10.0

[[providers.local.models]]
id = "small"
context_window = 50000

[permissions]
deny = ["bash(shutdown *)"]
"""
PROJECT = """
[env]
FROM_PROJECT = "yes"
"""
LONG = "x" * 3000


class RecordedClient:
    """One client of the server that is recorded."""

    def __init__(self, cli_env: CliEnvironment, client: Client, workspace: WorkspaceId) -> None:
        self.cli_env = cli_env
        self.client = client
        self.id = workspace

    @classmethod
    async def open(cls, cli_env: CliEnvironment, name: str) -> "RecordedClient":
        client = await cli_env.client()
        given = tuple(f"{key}={value}" for key, value in cli_env.environment.items())
        return cls(cli_env, client, (await client.create_workspace(str(cli_env.root / name), env=given)).id)

    async def session(self, title: str = "New session") -> SessionId:
        return (await self.client.create_session(self.id, title)).id

    async def send(self, session: SessionId, prompt: str, run: str, **more: Any) -> RunId:  # noqa: ANN401
        message = AgentMessage(session, prompt, RunId(run), **{"interactive": True, **more})
        await self.client.send_prompt(self.id, message)
        return RunId(run)

    async def end(self, run: str) -> None:
        async with asyncio.timeout(60), self.client.events(self.id, since=0) as events:
            await read_until(events, run_ended(RunId(run)))

    async def run(self, session: SessionId, prompt: str, run: str, **more: Any) -> None:  # noqa: ANN401
        await self.send(session, prompt, run, **more)
        await self.end(run)

    async def grant(self, *actions: str) -> None:
        for action in actions:
            ask = await self.pending()
            body = {
                "permission": msgspec.to_builtins(ask),
                "action": action,
                "reason": "no" if action == "deny" else "",
            }
            assert (await self.client.grant(self.id, body)).resolved

    async def pending(self) -> object:
        async with asyncio.timeout(60):
            while not (found := await self.client.pending_permissions(self.id)):
                pass
        return found[0]

    async def wait_for_file(self, name: str) -> None:
        """Return once a tool has created this file: it is running."""
        async with asyncio.timeout(60):
            while not (self.cli_env.project / name).exists():
                await self.client.health()

    async def answer_questions(self) -> None:
        async with asyncio.timeout(60):
            while not (found := await self.client.pending_questions(self.id)):
                pass
        responses = [{"request_id": item.id, "fill_in_text": "An answer in words."} for item in found[0].questions]
        await self.client.answer_question(self.id, {"batch_request_id": found[0].id, "responses": responses})


async def ordinary_work(at: RecordedClient) -> None:
    """Create sessions with every outcome but `interrupted`, and every kind of content of a session."""
    picture = Attachment(b"\x89PNG\r\n\x1a\n" + bytes(64), "/nowhere/picture.png", "picture.png", "image/png")
    note = Attachment(b"An attached note.", "/nowhere/note.txt", "note.txt", "text/plain")
    plain = await at.session()
    await at.run(plain, "hello there", "plain-1", attachments=(picture, note))
    await at.run(plain, "a long prompt " + LONG, "plain-2")
    files = await at.session("Files and approvals")
    await files_and_approvals(at, files)
    helper = await at.session("With a sub-agent")
    await at.run(helper, calls([("agent", {"prompt": "look around in the sub-agent"})]), "helper-1")
    summary = await at.session("With a summary")
    await at.run(summary, "something to summarize", "summary-1")
    await at.client.summarize(at.id, summary)
    await at.run(summary, "after the summary", "summary-2")
    ends = await at.session("Outcomes")
    await at.run(ends, "please fail", "ends-failed")
    await at.send(ends, calls([("bash", {"command": "touch begun; sleep 600"})]), "ends-cancelled", yolo=True)
    await at.wait_for_file("begun")
    await at.send(ends, "cancelled while it waits", "ends-waiting", delivery="queue")
    await at.client.cancel_session(at.id, ends)
    await at.end("ends-cancelled")
    folding = await at.session("With a folded prompt")
    wait = "touch folding; until test -e fold-now; do sleep 0.05; done"
    await at.send(folding, calls([("bash", {"command": wait})]), "folding-1", yolo=True)
    await at.wait_for_file("folding")
    await at.send(folding, "folded into the run before", "folding-2", delivery="steer")
    (at.cli_env.project / "fold-now").touch()
    await at.end("folding-2")


async def files_and_approvals(at: RecordedClient, session: SessionId) -> None:
    write = [("write", {"file_path": "made.txt", "content": "one\n"})]
    edit = [("edit", {"file_path": "made.txt", "old_string": "one", "new_string": "two"})]
    other = [("write", {"file_path": "other.txt", "content": "other\n"})]
    await at.send(session, calls(write, edit, other), "files-1")
    await at.grant("allow_session", "allow", "allow")
    await at.end("files-1")
    await at.client.undo_changes(at.id, UndoRequest(path="other.txt", session_id=session))
    todos = [{"content": "Do it", "status": "in_progress", "active_form": "Doing it"}]
    shell = [("bash", {"command": "./print-much.sh", "description": "Print much"})]
    denied = [("bash", {"command": "touch denied-file"})]
    question = {"type": "free_text", "question": "What now?", "description": "It decides."}
    await at.send(
        session,
        calls([("todos", {"todos": todos})], shell, denied, [("question", {"questions": [question]})]),
        "files-2",
    )
    await at.grant("allow_always", "deny")
    await at.answer_questions()
    await at.end("files-2")
    await at.client.run_shell(at.id, session, "echo typed by a person")


async def deleted_session(at: RecordedClient) -> None:
    """Delete a session whose text must not be found after the upgrade."""
    session = await at.session(f"Title {DELETED}")
    note = Attachment(f"Attachment {DELETED}".encode(), f"/nowhere/{DELETED}.txt", f"{DELETED}.txt", "text/plain")
    work = calls(
        [("agent", {"prompt": f"Sub-agent {DELETED}"})],
        [("write", {"file_path": "deleted.txt", "content": f"Content {DELETED} {LONG}"})],
        [("bash", {"command": f"./print-much.sh {DELETED}"})],
        then=f"Answer {DELETED}",
    )
    await at.run(session, work, "deleted-1", attachments=(note,), yolo=True)
    await at.run(session, f"Prompt {DELETED} {LONG}", "deleted-2")
    await at.run(session, f"please fail {DELETED}", "deleted-3")
    await at.client.delete_session(at.id, session)


async def settings_and_sign_ins(at: RecordedClient) -> dict[str, Any]:
    shown = await at.client.get_trust(at.id)
    await at.client.set_trust(at.id, trusted=True, digest=shown.digest)
    await at.client.config_set(at.id, "options.max_minutes", 77, scope=0)
    await at.client.config_set(at.id, "options.context_files", ["NOTES.md"], scope=1)
    link = await at.client.open_web()
    async with Client(ServerAddress(host="127.0.0.1", port=urlsplit(link.url).port or 0)) as page:
        entered = await page.enter_page(link.code)
    return {"page": entered.page, "key": entered.key}


async def record(cli_env: CliEnvironment, archive: Path, port: int) -> None:
    cli_env.settings.write_text(SETTINGS)
    cli_env.environment["UPGRADE_MODEL_URL"] = cli_env.provider.base_url()
    (cli_env.project / "holdfast.toml").write_text(PROJECT)
    (cli_env.project / "print-much.sh").write_text('#!/bin/sh\nseq -f "line %g $1" 1 20000\n')
    (cli_env.project / "print-much.sh").chmod(0o755)
    (cli_env.root / "v").mkdir()
    await cli_env.stdout_of("login", "openai", stdin="a-stored-key")
    await cli_env.stdout_of("run", "from the command line")
    await cli_env.stdout_of("server", "stop")
    await cli_env.serve("--host", f"tcp://127.0.0.1:{port}")
    at, other = await RecordedClient.open(cli_env, "w"), await RecordedClient.open(cli_env, "v")
    expected: dict[str, Any] = await settings_and_sign_ins(at)
    await ordinary_work(at)
    await deleted_session(at)
    await other.run(await other.session("Another workspace"), "hello from the other one", "other-1")
    interrupted = await at.session("Interrupted by a stop")
    await at.send(interrupted, calls([("bash", {"command": "touch started; sleep 600"})]), "interrupted-1", yolo=True)
    await at.wait_for_file("started")
    await cli_env.stop(signal.SIGTERM)
    await cli_env.serve("--host", f"tcp://127.0.0.1:{port}")
    at, other = await RecordedClient.open(cli_env, "w"), await RecordedClient.open(cli_env, "v")
    expected |= {"w": await read_all(at.client, at.id), "v": await read_all(other.client, other.id)}
    crashed = await at.session("Killed with an open approval")
    await at.send(crashed, calls([("bash", {"command": "touch never-allowed"})]), "crashed-1")
    await at.pending()
    await at.send(crashed, "a prompt that waits", "crashed-2", delivery="queue")
    expected["ids"] = {"w": at.id, "v": other.id, "crashed": crashed}
    await cli_env.stop(signal.SIGKILL)
    pack(cli_env, expected, archive)


def pack(cli_env: CliEnvironment, expected: dict[str, Any], archive: Path) -> None:
    """Move the write-ahead log into the database, so that its paths can be replaced, and pack everything."""
    connection = apsw.Connection(str(cli_env.data / "holdfast.db"))
    connection.pragma("user_version")  # Opens the file: a checkpoint before the first read does nothing.
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    expected["root"] = str(cli_env.root)
    assert len(str(cli_env.root)) == ROOT_LENGTH
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in ("c", "d", "w", "v"):
            tar.add(cli_env.root / name, name)
        body = json.dumps(expected).encode()
        entry = tarfile.TarInfo("expected.json")
        entry.size = len(body)
        tar.addfile(entry, io.BytesIO(body))


async def main(archive: Path) -> None:
    async with ModelServer(answer, models={"big": 1, "small": 1}) as provider:
        cli_env = CliEnvironment(provider)
        try:
            with reserve_port() as port:
                await record(cli_env, archive, port)
        finally:
            await cli_env.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).resolve()))
