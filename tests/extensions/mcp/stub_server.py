"""Small MCP server that starts in milliseconds, with tools of two real servers.

python -I -S stub_server.py time | everything [WORD...]

`time` has `get_current_time` and `convert_time`. `everything` has `echo`, `get-env` and
`trigger-long-running-operation`, a resource and a prompt with arguments. Further words are ignored.
"""

import json
import os
import select
import sys
import time
from typing import Any

KIND = sys.argv[1]
VERSION = "2025-06-18"
TEXT = {"type": "string"}
TOOLS: dict[str, dict[str, Any]] = {
    "time": {"get_current_time": {"timezone": TEXT}, "convert_time": {"time": TEXT, "source_timezone": TEXT}},
    "everything": {
        "echo": {"message": TEXT},
        "get-env": {},
        "trigger-long-running-operation": {"duration": {"type": "number"}, "steps": {"type": "number"}},
    },
}
RESOURCE = {"uri": "demo://resource/static/document/features.md", "name": "features.md", "mimeType": "text/markdown"}
PROMPT = {"name": "args-prompt", "arguments": [{"name": "city", "required": True}, {"name": "state"}]}
CAPABILITIES: dict[str, Any] = {"time": {"tools": {}}, "everything": {"tools": {}, "resources": {}, "prompts": {}}}


class Operation:
    """A long call that reports its progress."""

    def __init__(self, number: object, arguments: dict[str, Any], token: object) -> None:
        self.number = number
        self.token = token
        self.done = 0
        self.steps: int = arguments["steps"]
        self.pause = arguments["duration"] / arguments["steps"]
        self.next_at = time.monotonic()

    def advance(self) -> bool:
        """Report the next step. Returns True for the last one."""
        self.done += 1
        self.next_at += self.pause
        progress = {"progressToken": self.token, "progress": self.done, "total": self.steps}
        send(method="notifications/progress", params=progress)
        return self.done >= self.steps


operations: list[Operation] = []


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def send_text_result(number: object, text: str) -> None:
    send(id=number, result={"content": [{"type": "text", "text": text}]})


def call(number: object, parameters: dict[str, Any]) -> None:
    name, given = parameters["name"], parameters.get("arguments") or {}
    if name == "echo":
        send_text_result(number, f"Echo: {given['message']}")
    elif name == "get-env":
        send_text_result(number, json.dumps(dict(os.environ)))
    elif name == "trigger-long-running-operation":
        operations.append(Operation(number, given, parameters.get("_meta", {}).get("progressToken")))
    else:
        send_text_result(
            number, json.dumps({"timezone": given.get("timezone"), "datetime": "2026-01-01T12:00:00+00:00"})
        )


def weather(arguments: dict[str, Any]) -> dict[str, Any]:
    place = ", ".join(arguments[name] for name in ("city", "state") if name in arguments)
    return {"messages": [{"role": "user", "content": {"type": "text", "text": f"What's weather in {place}?"}}]}


def answer(message: dict[str, Any]) -> None:
    method, number, parameters = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "tools/call":
        call(number, parameters)
    elif method == "notifications/cancelled":
        operations[:] = [one for one in operations if one.number != parameters["requestId"]]
    elif number is not None:
        schema = {name: {"type": "object", "properties": takes} for name, takes in TOOLS[KIND].items()}
        results: dict[str, Any] = {
            "initialize": lambda: {
                "protocolVersion": VERSION,
                "capabilities": CAPABILITIES[KIND],
                "serverInfo": {"name": KIND, "version": "1"},
            },
            "tools/list": lambda: {"tools": [{"name": name, "inputSchema": takes} for name, takes in schema.items()]},
            "resources/list": lambda: {"resources": [RESOURCE]},
            "prompts/list": lambda: {"prompts": [PROMPT]},
            "prompts/get": lambda: weather(parameters.get("arguments") or {}),
            "ping": lambda: {},
        }
        if method in results:
            send(id=number, result=results[method]())
        else:
            send(id=number, error={"code": -32601, "message": f"There is no {method}."})


def main() -> None:
    buffer = b""
    while True:
        next_at = min((one.next_at for one in operations), default=None)
        wait = None if next_at is None else max(0.0, next_at - time.monotonic())
        if select.select([0], [], [], wait)[0]:
            piece = os.read(0, 65536)
            if not piece:
                return
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                answer(json.loads(line))
        for one in [one for one in operations if one.next_at <= time.monotonic()]:
            if one.advance():
                operations.remove(one)
                send_text_result(one.number, f"Long running operation completed. Duration: {one.steps} steps.")


main()
