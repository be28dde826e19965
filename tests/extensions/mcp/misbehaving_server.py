"""Scripted MCP server with configurable misbehaviour.

python misbehaving_server.py FOLDER WORD...

The words are its behaviour: `restless` (each list differs from the last, and a change is announced at once), `odd`
(its lists contain invalid tools and schemas), `twin` (has a tool `b_go`, too), `huge` (a response that is too large),
`halves` (an unpaired surrogate in its response), `noisy` (endless log messages during a call), `babbling` (the same
with invalid messages), `forks` (leaves a process that ignores signals), `stuck` (sends one list, announces a change,
and answers nothing more), `newest` (supports only the newest revision, and announces a new tool when its file `more`
appears). Received messages are written to `FOLDER/received`, one line of JSON each.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
HOW = set(sys.argv[2:])
LISTED: list[int] = []
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def send(**message: Any) -> None:  # noqa: ANN401 - any JSON
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name: str, schema: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"name": name, "description": "Does it.", "inputSchema": schema, **more}


def tools() -> list[dict[str, Any]]:
    LISTED.append(len(LISTED))
    takes = {"type": "object", "properties": {"what": {"type": "array"}}}
    found = [tool("go", takes)]
    if "restless" in HOW:
        found.append(tool(f"number{len(LISTED)}", takes))
    if "twin" in HOW:
        found.append(tool("b_go", takes))
    if (FOLDER / "more").exists():
        found.append(tool("more", takes))
    if "odd" in HOW:
        found += [
            tool("words", "no schema"),
            tool("banana", {"type": "object", "properties": {"x": {"type": "banana"}}}),
            tool("deep", {"type": "object", "properties": 7}, annotations="none", outputSchema=[], icons=1),
            {"name": 7},
            "not even a tool",  # type: ignore[list-item]
        ]
    return found


def call(number: Any) -> None:  # noqa: ANN401 - as it came
    if "noisy" in HOW:
        while True:
            note = {"level": "info", "data": "noise"}
            send(method="notifications/message", params=note)
    if "halves" in HOW:
        send(id=number, result={"content": [{"type": "text", "text": "half \ud83d here"}]})
        return
    if "babbling" in HOW:
        while True:
            sys.stdout.write("babble\n")
    if "forks" in HOW:
        stays = ["setsid", "sh", "-c", "trap '' TERM HUP INT; while :; do sleep 60; done", str(FOLDER)]
        nowhere = subprocess.DEVNULL
        subprocess.Popen(stays, stdin=nowhere, stdout=nowhere, stderr=nowhere, env={"PATH": "/usr/bin:/bin"})
    text = "a" * (17 << 20) if "huge" in HOW else "gone"
    more = {"resultType": "complete"} if "newest" in HOW else {}
    send(id=number, result={"content": [{"type": "text", "text": text}], **more})


def initialize(method: str, number: Any) -> None:  # noqa: ANN401 - as it came
    can = {"tools": {"listChanged": True}, "logging": {}}
    about = {"name": "misbehaving", "version": "1"}
    if "newest" not in HOW:
        send(id=number, result={"protocolVersion": "2025-06-18", "capabilities": can, "serverInfo": about})
    elif method == "initialize":
        send(id=number, error={"code": -32601, "message": "What is that?"})
    else:
        send(
            id=number,
            result={
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
                "supportedVersions": ["2026-07-28"],
                "capabilities": can,
                "serverInfo": about,
            },
        )


def listen(number: Any) -> None:  # noqa: ANN401 - as it came
    meta = {SUBSCRIPTION: number}
    wanted = {"toolsListChanged": True}
    send(method="notifications/subscriptions/acknowledged", params={"_meta": meta, "notifications": wanted})
    while not (FOLDER / "more").exists():
        pass
    send(method="notifications/tools/list_changed", params={"_meta": meta})


def answer(message: dict[str, Any]) -> None:
    method, number = message.get("method", ""), message.get("id")
    if LISTED and "stuck" in HOW:
        return
    if method in ("initialize", "server/discover"):
        initialize(method, number)
    elif method == "tools/list":
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if "newest" in HOW else {}
        send(id=number, result={"tools": tools(), **more})
        if HOW & {"restless", "stuck"}:
            send(method="notifications/tools/list_changed")
    elif method == "tools/call":
        call(number)
    elif method == "subscriptions/listen":
        listen(number)
    elif number is not None and method:
        send(id=number, result={"resultType": "complete"} if "newest" in HOW else {})


for line in sys.stdin:
    with (FOLDER / "received").open("a") as file:
        file.write(line)
    answer(json.loads(line))
