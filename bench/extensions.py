"""The cost of ten MCP servers and three language servers: none until they are used, and none while idle."""

import json
import sys
import threading
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure, Goal, ratio_of_medians
from bench.raw_client import RawClient, Readers
from bench.servers import served

__all__ = ["measure"]

TIMES = 7
_IDLE = 3.0
_ENDINGS = ("one", "two", "three")

_LANGUAGE_SERVER = """
import json, sys
read, write = sys.stdin.buffer, sys.stdout.buffer
while head := read.readline():
    read.readline()
    said = json.loads(read.read(int(head.split(b":")[1])))
    if "id" in said:
        body = json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": {"capabilities": {}}}).encode()
        write.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        write.flush()
"""
_MCP_SERVER = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if "id" in said:
        version = said.get("params", {}).get("protocolVersion", "")
        server = {"name": "small", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server, "tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}), flush=True)
"""


def _furnish(root: Path) -> None:
    """Write settings with many servers."""
    settings = root / ".config/crush/crush.json"
    settings.parent.mkdir(parents=True)
    mcp = {f"m{number}": {"command": sys.executable, "args": ["-c", _MCP_SERVER]} for number in range(10)}
    lsp = {
        ending: {"command": sys.executable, "args": ["-c", _LANGUAGE_SERVER], "filetypes": [ending]}
        for ending in _ENDINGS
    }
    settings.write_text(json.dumps({"mcp": mcp, "lsp": lsp}))
    for ending in _ENDINGS:
        (root / "project" / f"file.{ending}").write_text("x\n")


def _leave(_: Path) -> None:
    """Write settings without servers."""


def _answered(*, prepare: bool) -> float:
    with served(prepare=_furnish if prepare else _leave) as server:
        return server.wait_for_answer(over_tcp=False) * 1e3


def _first_turn(*, prepare: bool) -> float:
    with served(prepare=_furnish if prepare else _leave) as server:
        server.wait_for_answer("/v1/version", over_tcp=False)
        client = RawClient(server, over_tcp=False)
        session, readers = client.session(), Readers([client.stream()])
        client.post(session, "words=20", interactive=True)
        readers.until_ends(1)
        done = time.perf_counter() - server.began
        readers.close()
        client.close()
        return done * 1e3


def _idle(*, prepare: bool) -> float:
    """Return milliseconds of processor time in an idle second."""
    with served(prepare=_furnish if prepare else _leave) as server:
        server.wait_for_answer("/v1/version", over_tcp=False)
        client = RawClient(server, over_tcp=False)
        session, readers = client.session(), Readers([client.stream()])
        for ending in _ENDINGS if prepare else ():
            client.post(session, f'tool=view {{"file_path": "file.{ending}"}}')
            readers.until_ends(1)
        _until_ready(client, *((len(_ENDINGS), 10) if prepare else (0, 0)))
        _pause(1.0)
        before = server.processor()
        _pause(_IDLE)
        spent = server.processor() - before
        readers.close()
        client.close()
        return spent / _IDLE * 1e3


def _until_ready(client: RawClient, languages: int, tools: int) -> None:
    """Wait until the servers are ready: stopped or idle ones cost nothing anyway."""
    wanted = (("lsps", 2, languages), ("mcp/states", "connected", tools))
    while not all(
        sum(info["state"] == state for info in json.loads(client.get(what)).values()) == n for what, state, n in wanted
    ):
        _pause(0.05)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def measure() -> list[Figure]:
    """Measure with and without servers, alternately."""
    answers = [(_answered(prepare=True), _answered(prepare=False)) for _ in range(TIMES)]
    turns = [(_first_turn(prepare=True), _first_turn(prepare=False)) for _ in range(TIMES)]
    idle = median(_idle(prepare=True) for _ in range(2))
    beside = "without any of them"
    return [
        ratio_of_medians("13 servers: to first answer", "ms", answers, beside, Goal(1.1, is_ratio=True)),
        ratio_of_medians("13 servers: to first turn done", "ms", turns, beside, Goal(1.15, is_ratio=True)),
        Figure("13 servers: idle", idle, "ms/s", None, "", Goal(2)),
    ]
