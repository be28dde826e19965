"""Scripted language server with configurable misbehaviour.

python scripted_server.py FOLDER [words for a process list]

`FOLDER/how` has its behaviour, one word a line, read again for every message: `silent` (publishes no diagnostics),
`deaf` (answers no request), `crash` (exits at the next file), `flood` (publishes far too much first), `garbage`
(sends invalid messages), `old` (publishes for outdated versions), `busy` (reports progress only). `FOLDER/start` is
read once: `hang`, `crash`, `pull`, `late-pull` (registers for pull diagnostics), `folders`, `utf-8`, `child` (starts
a process that outlives it), `stays` (acknowledges the shutdown and keeps running). Received messages are written to
`FOLDER/received`, one line of JSON each. A line with `BAD` is an error, one with `ODD` a warning.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
OUT = sys.stdout.buffer


def words(name: str) -> set[str]:
    path = FOLDER / name
    return set(path.read_text().split()) if path.exists() else set()


START = words("start")
ENCODING = "utf-8" if "utf-8" in START else "utf-16"


def send(message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    OUT.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    OUT.flush()


def receive() -> dict[str, Any] | None:
    length = 0
    while line := sys.stdin.buffer.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    if not length:
        return None
    message: dict[str, Any] = json.loads(sys.stdin.buffer.read(length))
    with (FOLDER / "received").open("a") as file:
        file.write(json.dumps(message) + "\n")
    return message


def units(text: str) -> int:
    return len(text.encode("utf-8")) if ENCODING == "utf-8" else len(text.encode("utf-16-le")) // 2


def spans(text: str, pattern: str) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(text.split("\n")):
        for match in re.finditer(pattern, line):
            start, end = units(line[: match.start()]), units(line[: match.end()])
            found.append({"start": {"line": number, "character": start}, "end": {"line": number, "character": end}})
    return found


def diagnostics(text: str) -> list[dict[str, Any]]:
    kinds = (("BAD", 1), ("ODD", 2))
    return [
        {"range": span, "severity": severity, "message": f"{word} is here", "source": "ours", "code": word.lower()}
        for word, severity in kinds
        for span in spans(text, word)
    ]


class Server:
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}

    def run(self) -> None:
        while (message := receive()) is not None:
            if message.get("method") == "exit":
                break
            if "method" in message:
                self.handle(message)
        while "stays" in START:
            signal.pause()

    def handle(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        if method.startswith("textDocument/did"):
            self.published(method, params)
        elif "id" in message and not ("deaf" in words("how") and method != "shutdown"):
            answer = self.answer(method, params)
            if answer is not None:
                send({"id": message["id"], **answer})
        if method == "initialized" and "late-pull" in START:
            registration = {"id": "r1", "method": "textDocument/diagnostic"}
            send({"id": 901, "method": "client/registerCapability", "params": {"registrations": [registration]}})
        elif method == "initialized":
            watcher = {"watchers": [{"globPattern": "**/*.zz"}]}
            watching = {"id": "w", "method": "workspace/didChangeWatchedFiles", "registerOptions": watcher}
            send({"id": 902, "method": "client/registerCapability", "params": {"registrations": [watching]}})
            send({"id": 903, "method": "workspace/configuration", "params": {"items": [{"section": "our.part"}]}})
            send({"id": 904, "method": "workspace/somethingNew", "params": {}})

    def published(self, method: str, params: dict[str, Any]) -> None:
        document = params["textDocument"]
        uri, how = document["uri"], words("how")
        if method.endswith("didClose"):
            self.texts.pop(uri, None)
            return
        if method.endswith("didSave"):
            return
        self.texts[uri] = document.get("text", "") or "".join(item["text"] for item in params.get("contentChanges", ()))
        self.versions[uri] = document["version"]
        if "crash" in how:
            sys.stderr.write("the disk ate my homework\n")
            sys.exit(3)
        if "garbage" in how:
            OUT.write(b"Segmentation fault, but politely\n" * 400)
            OUT.flush()
        if "flood" in how:
            self.flood(uri)
        if "busy" in how:
            send({"method": "$/progress", "params": {"token": "t", "value": {"kind": "begin", "title": "thinking"}}})
        if not how & {"silent", "busy"} and not START & {"pull", "late-pull"}:
            self.publish(uri, self.versions[uri] - ("old" in how))

    def flood(self, uri: str) -> None:
        for number in range(3_000):
            send({"method": "window/logMessage", "params": {"type": 3, "message": f"line {number} " + "x" * 200}})
        span = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}
        many = [{"range": span, "message": f"finding {number}", "severity": 2} for number in range(5_000)]
        for number in range(3):
            send(
                {"method": "textDocument/publishDiagnostics", "params": {"uri": f"{uri}.{number}", "diagnostics": many}}
            )

    def publish(self, uri: str, version: int) -> None:
        params = {"uri": uri, "version": version, "diagnostics": diagnostics(self.texts[uri])}
        send({"method": "textDocument/publishDiagnostics", "params": params})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        uri = params.get("textDocument", {}).get("uri", "")
        text = self.texts.get(uri, "")
        if method == "initialize":
            return self.initialize()
        if method == "textDocument/diagnostic":
            if words("how") & {"silent"}:
                return None
            return {"result": {"kind": "full", "items": diagnostics(text)}}
        if method == "textDocument/rename":
            name = params["newName"]
            changes = {
                known: [{"range": span, "newText": name} for span in spans(content, rf"\b{self.word(text, params)}\b")]
                for known, content in self.texts.items()
            }
            return {"result": {"changes": {known: edits for known, edits in changes.items() if edits}}}
        if method == "textDocument/references":
            found = spans(text, rf"\b{self.word(text, params)}\b")
            return {"result": [{"uri": uri, "range": span} for span in found]}
        if method == "shutdown":
            return {"result": None}
        return {"error": {"code": -32601, "message": f"no {method} here"}}

    def word(self, text: str, params: dict[str, Any]) -> str:
        place = params["position"]
        line = text.split("\n")[place["line"]]
        match = next(item for item in re.finditer(r"\w+", line) if units(line[: item.start()]) == place["character"])
        return match.group()

    def initialize(self) -> dict[str, Any] | None:
        if "hang" in START:
            return None
        if "crash" in START:
            sys.stderr.write("cannot find my settings\n")
            sys.exit(7)
        if "child" in START:
            subprocess.Popen(["sleep", *sys.argv[2:3]], start_new_session=True)
        can: dict[str, Any] = {
            "textDocumentSync": {"openClose": True, "change": 1, "save": {"includeText": True}},
            "referencesProvider": True,
            "renameProvider": True,
            "positionEncoding": ENCODING,
        }
        if "pull" in START:
            can["diagnosticProvider"] = {"interFileDependencies": False, "workspaceDiagnostics": False}
        if "folders" in START:
            can["workspace"] = {"workspaceFolders": {"supported": True, "changeNotifications": True}}
        return {"result": {"capabilities": can}}


if __name__ == "__main__":
    Server().run()
