"""MCP server with one tool, one prompt and one resource. Each list is longer after `grow`."""

import json
import sys
from pathlib import Path
from typing import Any


def answer(method: str, params: dict[str, Any], place: Path) -> dict[str, Any] | None:
    names = ["one", "two"] if (place / "grow").exists() else ["one"]
    match method:
        case "initialize":
            offered: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
            version = params.get("protocolVersion", "2025-03-26")
            return {"protocolVersion": version, "capabilities": offered, "serverInfo": {"name": "s", "version": "1"}}
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        case "prompts/list":
            arguments = [{"name": "word", "required": False}]
            return {"prompts": [{"name": name, "arguments": arguments} for name in names]}
        case "resources/list":
            return {"resources": [{"name": name, "uri": f"small://{name}"} for name in names]}
        case "resources/templates/list":
            return {"resourceTemplates": []}
        case "prompts/get":
            text = f"{params['name']} {params.get('arguments') or {}}"
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": f"text of {params['uri']}"}]}
        case "ping":
            return {}
        case _:
            return None


def main() -> None:
    place = Path(sys.argv[1])
    with (place / "starts").open("a", encoding="utf-8") as file:
        file.write("x")
    sys.stderr.write("small is here\n")
    sys.stderr.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        found = answer(asked.get("method", ""), asked.get("params") or {}, place)
        error = {"error": {"code": -32601, "message": "unknown"}}
        reported = {"result": found} if found is not None else error
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reported}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
