"""Every command that asks a server, in every state of what it asks for: exit code, output and requests, whole.

`command_states.txt` has the expected texts. A state that is added to a type gets a row by itself, and fails until its
text is recorded and read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cli.recorded_outputs import NOW, Desk, Recording
from holdfast.cli import frontends
from holdfast.cli import server as server_command
from holdfast.client.errors import BrokenResponse, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.domain.extensions import LspState, McpState
from holdfast.domain.files import UndoneFile
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    Message,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.runs import Outcome, RunState

RECORDING = Recording(Path(__file__).with_name("command_states.txt"))
ESC = "\x1b[31m"
A, B = "a" * 32, "ab" * 16
MILLISECONDS = int(NOW * 1000)


class Then(list[Any]):
    """Answers one after the other; the last one stays. A plain list is an answer."""


class Case(msgspec.Struct, frozen=True):
    """A command line and what the server answers. `name` is added if the line is not unique."""

    line: str
    answers: dict[str, Any] = {}
    name: str = ""
    stdin: str = ""
    recorded: dict[str, str] = {}
    """Directories of detached runs."""
    project: str = ""
    """The settings file of the project, which is not trusted."""
    is_reachable: bool = True

    @property
    def label(self) -> str:
        return " | ".join(filter(None, [self.line, self.name]))


def mcp(name: str, state: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"name": name, "state": state, "connected_at": "", "type": "http", **more}


def lsp(name: str, state: LspState, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"name": name, "state": int(state), "connected_at": "", **more}


def by_name(*items: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item for item in items}


def run(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    plain = {"session_id": "s", "state": "ended", "delivery": "queue", "accepted_at": MILLISECONDS - 90_000}
    return {"run_id": name, **plain, "prompt": f"Do {name}", **more}


def session(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    numbers = {"message_count": 3, "prompt_tokens": 1, "completion_tokens": 1, "cost": 0.0, "attached_clients": 0}
    times = {"created_at": 0, "updated_at": int(NOW) - 7200, "is_busy": False}
    texts = {"parent_session_id": "", "title": f"Title of {name}", "summary_message_id": ""}
    return {"id": name, **texts, **numbers, **times, **more}


def said(role: Any, *parts: Any, model: str = "") -> Message:  # noqa: ANN401
    return Message(parts, "m", role, "s", model, "", 1, 1)  # type: ignore[arg-type]


def call(name: str, arguments: str) -> ToolCallPart:
    return ToolCallPart(ToolCall("c", name, arguments, finished=True))  # type: ignore[arg-type]


def result(name: str, text: str, *, is_error: bool = False) -> ToolResultPart:
    return ToolResultPart(ToolResult("c", name, text, "", is_error))  # type: ignore[arg-type]


TALK = [
    said("user", TextPart(Text(f"Look{ESC}\nat it")), BinaryPart(Binary("shot.png", "image/png", b"x"))),
    said("assistant", TextPart(Text("I look.")), call("ls", "{}"), FinishPart(Finish("tool_use", 1)), model="big"),
    said("tool", result("ls", "a\nb")),
    said("assistant", TextPart(Text("Half")), FinishPart(Finish("canceled", 1))),
    said("assistant", FinishPart(Finish("error", 1, "No money", "Pay first"))),
    said("assistant", FinishPart(Finish("end_turn", 1))),
    said("system", TextPart(Text("hidden"))),
]
STATES, LSPS = "GET W/mcp/states", "GET W/lsps"
RESTART, LSP_RESTART = "POST W/mcp/restart", "POST W/lsps/restart"
STARTING = by_name(mcp("a", "starting"))
ALL_MCP = [
    mcp(state.replace(" ", "-"), state, error=f"why {state}" * (state == "error")) for state in get_args(McpState)
]
COUNTED = [
    mcp("one", "connected", tool_count=1, prompt_count=1, resource_count=1, tools=["t"]),
    mcp("two", "connected", tool_count=2, prompt_count=2, resource_count=2),
    mcp("three", "needs auth", error=f"log{ESC} in", prompt_count=3),
    mcp(f"x{ESC}", "error", type="stdio", error="first\nsecond"),
]
LANGUAGES = [lsp(state.name.lower(), state) for state in LspState if state != LspState.STARTING]
PROJECT_SERVERS = '[mcp.theirs]\ncommand = "x"\n[mcp.also]\nurl = "http://h/"\n[lsp.l]\ncommand = "x"\n'


def mcp_cases() -> Iterator[Case]:
    yield Case("mcp list", {STATES: {}}, "nothing")
    yield Case("mcp list", {STATES: by_name(*ALL_MCP)}, "every state")
    yield Case("mcp list", {STATES: by_name(*COUNTED)}, "counts")
    yield Case("mcp list --json", {STATES: by_name(*COUNTED)}, "counts", project=PROJECT_SERVERS)
    yield Case("mcp list", {STATES: {}}, "project", project=PROJECT_SERVERS)
    yield Case("mcp list", {STATES: by_name(*COUNTED)}, "counts, project", project=PROJECT_SERVERS)
    yield Case("mcp list", {STATES: Then([STARTING, STARTING, by_name(mcp("a", "connected"))])}, "starts")
    yield Case("mcp list --host unix:///s", {STATES: {}}, "remote", project=PROJECT_SERVERS)
    for line in ("list", "list --no-wait", "logs a", "restart a"):
        yield Case(
            f"mcp {line}",
            {STATES: STARTING, RESTART: {}, "GET W/mcp/log": {"name": "a", "text": ""}},
            "starts for ever",
        )
    for info in ALL_MCP:
        answers = {STATES: Then([STARTING, by_name(mcp("b", "connected"), {**info, "name": "a"})]), RESTART: {}}
        yield Case("mcp restart a", answers, info["state"])
    for info in COUNTED:
        yield Case("mcp restart a", {STATES: by_name({**info, "name": "a"}), RESTART: {}}, info["name"].strip(ESC))
    yield Case("mcp restart a", {STATES: {}, RESTART: {}}, "gone")
    yield Case("mcp restart a", {RESTART: (404, {"message": "no such server"})}, "refused")
    for text in ("", "one\ntwo", f"{ESC}red\n"):
        yield Case("mcp logs a", {STATES: {}, "GET W/mcp/log": {"name": "a", "text": text}}, repr(text))


def lsp_cases() -> Iterator[Case]:
    starting = by_name(lsp("l", LspState.STARTING))
    yield Case("lsp list", {LSPS: {}}, "nothing")
    yield Case("lsp list", {LSPS: by_name(*LANGUAGES)}, "every state")
    yield Case("lsp list --json", {LSPS: by_name(*LANGUAGES)}, "every state")
    counted = [lsp("a", LspState.READY, diagnostic_count=2), lsp(f"b{ESC}", LspState.ERROR, error=f"bad{ESC}")]
    yield Case("lsp list", {LSPS: by_name(*counted)}, "counts and errors")
    yield Case("lsp list", {LSPS: Then([starting, starting, by_name(lsp("l", LspState.READY))])}, "starts")
    yield Case("lsp list", {LSPS: starting}, "starts for ever")
    started = {"POST W/lsps/start": {}, LSPS: Then([starting, by_name(lsp("l", LspState.READY))])}
    yield Case("lsp start a.py", started)
    yield Case("lsp start b.py", started)
    yield Case("lsp start b.py --host unix:///s", started)
    for names in ([], ["a"], ["a", "gone"], ["gone"], ["b", "a"]):
        for state in (LspState.READY, LspState.ERROR):
            after = by_name(lsp("a", state), lsp("b", LspState.READY), lsp("c", LspState.ERROR))
            yield Case("lsp restart", {LSP_RESTART: {"names": names}, LSPS: after}, f"{','.join(names)} {state.name}")
    yield Case("lsp restart a", {LSP_RESTART: {"names": ["a"]}, LSPS: by_name(lsp("a", LspState.READY))})
    for text in ("", f"one\n{ESC}two"):
        for file in ("", "/l/log"):
            log = {"name": "a", "text": text, "file": file}
            yield Case("lsp logs a", {"GET W/lsps/log": log}, f"{bool(text)} {file}")


def run_cases() -> Iterator[Case]:
    ended = [run(outcome, outcome=outcome) for outcome in get_args(Outcome)]
    others = [run(state, state=state, accepted_at=MILLISECONDS - 86_400_000) for state in get_args(RunState)]
    yield Case("runs list", {"GET W/runs": []}, "nothing")
    yield Case("runs list", {"GET W/runs": [*ended, *others]}, "every state")
    yield Case("runs list --session aaaa --limit 7", {"GET W/runs": ended, "GET W/sessions": [session(A), session(B)]})
    yield Case("runs list --session s", {"GET W/runs": ended[:1]})
    yield Case("runs list --json", {"GET W/runs": ended[:1]})
    here = {"GET /v1/workspaces": [], "GET W/runs/r": run("r", outcome="completed")}
    yield Case("runs show r", here)
    yield Case("runs show r --json", here)
    yield Case("runs show r", {**here, "GET W/runs/r": run("r", state="active")}, "active")
    yield Case("runs show r", {**here, "GET W/runs/r": run("r", outcome="failed", error=f"bad{ESC}")}, "failed")
    cancelled = {"POST W/runs/r/cancel": run("r", outcome="cancelled", state="ended")}
    yield Case("runs cancel r", {**here, **cancelled}, "cancelled")
    yield Case("runs cancel r", {**here, "POST W/runs/r/cancel": run("r", state="cancelling")}, "cancelling")
    workspaces = [{"id": "one", "path": "/one"}, {"id": "two", "path": "/two"}]
    elsewhere = {"GET /v1/workspaces": workspaces, "GET /v1/workspaces/two/runs/r": run("r"), **here}
    yield Case("runs cancel r", {**elsewhere, "GET /v1/workspaces": workspaces, **cancelled}, "another workspace")
    missing: dict[str, Any] = {"GET /v1/workspaces": [], "GET W/runs": []}
    yield Case("runs cancel r", missing, "unknown")
    yield Case("runs cancel ..", missing, "no id")
    yield Case(
        "runs cancel aaaa",
        {**missing, "GET W/runs": [run(A)], f"GET W/runs/{A}": run(A), f"POST W/runs/{A}/cancel": run(A)},
        "prefix",
    )
    yield Case("runs cancel aaaa", missing, "unknown prefix")
    yield Case("runs cancel aaaa", {**missing, "GET W/runs": [run(A), run("aaaa" + "b" * 28)]}, "two prefixes")
    yield Case(
        "runs cancel aaaa",
        {**missing, f"GET W/runs/{A}": run(A), f"POST W/runs/{A}/cancel": run(A)},
        "recorded prefix",
        recorded={A: "/rec"},
    )
    joined = {"id": "w"}
    for status in (400, 404, 409, 500, 502):
        opened = Then([(status, {"message": "not now"}), joined])
        answers = {**here, **cancelled, "POST /v1/workspaces": opened}
        yield Case("runs cancel r", answers, f"recorded directory {status}", recorded={"r": "/rec"})
    yield Case("runs cancel r", {**here, **cancelled}, "recorded directory", recorded={"r": "/rec"})
    yield Case("runs cancel r", {**missing, "GET W/runs/r": (500, {"message": "broken"})}, "500")


def session_cases() -> Iterator[Case]:
    listed = {
        "GET W/sessions": [
            session(A),
            session(B, updated_at=int(NOW), title=f"x{ESC}"),
            session("c", updated_at=int(NOW) + 5, parent_session_id=A),
        ]
    }
    talk = {f"GET W/sessions/{A}": session(A, title=f"T{ESC}"), f"GET W/sessions/{A}/messages": TALK}
    yield Case("sessions list", {"GET W/sessions": []}, "nothing")
    yield Case("sessions list", listed)
    yield Case("sessions list --json", listed)
    yield Case("sessions show aaaa", {**listed, **talk})
    yield Case(f"sessions show {A} --json", talk)
    yield Case(
        "sessions show abab", {**listed, "GET W/sessions": [session(B), session("abab" + "c" * 28)]}, "ambiguous"
    )
    yield Case(
        "sessions show abab",
        {**listed, "GET W/sessions": [session("abab" + str(number) * 28) for number in range(6)]},
        "six",
    )
    yield Case(
        "sessions show abab",
        {**listed, "GET W/sessions": [session("abab" + str(number) * 28) for number in range(5)]},
        "five",
    )
    yield Case("sessions show nobody", {**listed, "GET W/sessions/nobody": (404, {"message": "There is none."})})
    yield Case("sessions last", {"GET W/sessions": []}, "nothing")
    yield Case("sessions last", {"GET W/sessions": [session("c", parent_session_id=A)]}, "sub-agents only")
    newest = {f"GET W/sessions/{B}": session(B), f"GET W/sessions/{B}/messages": TALK[:2]}
    yield Case("sessions last", {**listed, **newest})
    yield Case("sessions last --json", {**listed, **newest})
    yield Case(f"sessions rename {A} ' a  b ' c", {f"PUT W/sessions/{A}": {}})
    yield Case(f"sessions rename {A} ' '", {f"PUT W/sessions/{A}": {}})
    yield Case("sessions delete aaaa --yes", {**listed, **talk, f"DELETE W/sessions/{A}": {}})
    yield Case("sessions delete aaaa", {**listed, **talk, f"DELETE W/sessions/{A}": {}})
    yield Case("sessions export aaaa", {**listed, **talk})
    yield Case(
        f"sessions export {A} --format json",
        {f"GET W/sessions/{A}": session(A), f"GET W/sessions/{A}/messages": TALK[:1]},
    )


def undo_cases() -> Iterator[Case]:
    outcomes = get_args(UndoneFile.__annotations__["outcome"])
    for flags in ("", " --dry-run", " --force", " --dry-run --force"):
        files = [
            {
                "path": f"HERE/{outcome}{ESC}",
                "outcome": outcome,
                "version": 3,
                "diff": f"-a {ESC}",
                "reason": "it is open",
            }
            for outcome in outcomes
        ]
        is_done = "dry" not in flags
        yield Case(f"undo{flags}", {"POST W/undo": {"files": files, "is_done": False}}, "every outcome")
        yield Case(f"undo{flags}", {"POST W/undo": {"files": files[:3], "is_done": is_done}}, "no refusal")
    nothing = {"POST W/undo": {"files": [], "is_done": True}}
    yield Case("undo a.py --run r --session s", nothing)
    yield Case("undo --run aaaa --session abab", {**nothing, "GET W/runs": [run(A)], "GET W/sessions": [session(B)]})


def file_cases() -> Iterator[Case]:
    skill = {"id": "i", "name": "n", "description": f"d{ESC}", "label": "l", "source": "user", "user_invocable": True}
    states = ({"name": "n", "path": "/p", "state": 0}, {"name": "x", "path": f"/x{ESC}", "state": 1, "error": "bad"})
    body = {"id": "w", "path": "/work", "skills": states}
    for line in ("skills list", "skills list --json"):
        yield Case(line, {"GET W/skills": [skill], "GET W": body})
    yield Case("skills list", {"GET W/skills": [], "GET W": {"id": "w", "path": "/work"}}, "nothing")
    for line in ("skills show i", "skills show i --json"):
        yield Case(line, {"POST W/skills/read": {"content": "VGV4dAo/Cgo=", "result": {}}})
    found = [
        {"name": "a", "source": "user", "description": f"d{ESC}", "hint": "WORDS", "arguments": [{"name": "x"}]},
        {"name": "b", "source": "mcp", "arguments": [{"name": "x"}, {"name": "y"}]},
        {"name": "c", "source": "project", "path": f"/c{ESC}", "withheld": ["model", "allowed-tools"]},
    ]
    for line in ("commands list", "commands list --json"):
        yield Case(line, {"GET W/commands": found})
    expanded = {"POST W/commands/expand": {"prompt": f"text{ESC}", "command": "a"}}
    for line in ("commands show a", "commands show /a 'b  c' d", "commands show a --json"):
        yield Case(line, expanded)
    agents = [
        {"name": "all", "source": "user", "description": f"d{ESC}"},
        {"name": "none", "source": "user", "tools": []},
        {"name": "four", "source": "project", "tools": list("abcd"), "path": f"/c{ESC}", "withheld": ["tools"]},
        {"name": "five", "source": "project", "tools": list("abcde")},
    ]
    for line in ("agents list", "agents list --json"):
        yield Case(line, {"GET W/agents": agents})
    yield Case("agents list", {"GET W/agents": []}, "nothing")


VERSION = {
    "version": "9", "commit": "c", "build_id": "b", "go_version": "", "platform": "p", "protocol": 4, "pid": 77,
}  # fmt: skip


def server_cases() -> Iterator[Case]:
    running = {"GET /v1/version": VERSION, "GET /v1/workspaces": [{"id": "w", "path": "/a"}, {"id": "x", "path": "/b"}]}
    for line in ("server status", "server start", "server status --json", "server start --json"):
        yield Case(line, {**running, "GET /v1/health": {}})
    yield Case("server status", {**running, "GET /v1/health": (503, {"message": "disk full"})}, "problem")
    yield Case("server status --json", {**running, "GET /v1/health": (503, {"message": "disk full"})}, "problem")
    for line in (
        "server status",
        "server start",
        "server status --host unix:///s",
        "server start --host unix:///s",
        "server stop",
    ):
        yield Case(line, {**running, "GET /v1/health": {}}, "not running", is_reachable=False)
    for force in ("", " --force"):
        for ends in (Unreachable(), ConnectionLost(), BrokenResponse()):
            health = Then([{}, (503, {"message": "full"}), TimedOut(), ends])
            yield Case(
                f"server stop{force}",
                {**running, "GET /v1/health": health, "POST /v1/control": {}},
                type(ends).__name__,
            )
    yield Case("server stop", {**running, "GET /v1/health": {}, "POST /v1/control": {}}, "does not stop")
    yield Case("server stop", {**running, "POST /v1/control": (409, {"message": "A run is active."})}, "refused")
    yield Case("server stop", {"GET /v1/version": TimedOut()}, "hangs")
    link = {"POST /v1/web": {"url": "http://127.0.0.1:5/", "code": "c d", "seconds": 60}}
    for line in ("web", "web --no-open", "web --port 7", "web --no-open --port 65535"):
        yield Case(line, link)
    for reachable in (True, False):
        yield Case("web --close", {"DELETE /v1/web": {}}, "" if reachable else "not running", is_reachable=reachable)


def error_cases() -> Iterator[Case]:
    """Every error of a request, once for each way a command asks."""
    for error in (Unreachable(), ConnectionLost(), TimedOut(), BrokenResponse(), ServerProblem(500, f"bad{ESC}")):
        for line, name in (("sessions list", "GET W/sessions"), ("skills show x", "POST W/skills/read")):
            yield Case(line, {name: error}, type(error).__name__)
    for body in (b"", b"[", b"{}", b'[{"id": 1}]', b"\xff"):
        yield Case("sessions list", {"GET W/sessions": body}, repr(body))
    for status in (401, 403, 404, 409, 500, 503):
        yield Case("sessions list", {"GET W/sessions": (status, {"message": "Why."})}, str(status))


CASES = [
    case
    for table in (
        mcp_cases, lsp_cases, run_cases, session_cases, undo_cases, file_cases, server_cases, error_cases,
    )
    for case in table()
]  # fmt: skip


def _filled(value: Any, here: str) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.replace("HERE", here)
    if isinstance(value, dict):
        return {name: _filled(item, here) for name, item in value.items()}
    return [_filled(item, here) for item in value] if type(value) is list else value


def _answer(value: Any, here: str) -> Any:  # noqa: ANN401
    return (200, _filled(value, here)) if type(value) is list else _filled(value, here)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_command_in_a_state(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, monkeypatch)
    desk.stdin = case.stdin
    desk.write("work/a.py", "")
    for name, directory in case.recorded.items():
        desk.write(f"d/detached/{name}", directory)
    if case.project:
        desk.write("work/holdfast.toml", case.project)
    desk.server.answers |= {name: _answer(value, str(desk.work)) for name, value in case.answers.items()}
    desk.server.finds = lambda: case.is_reachable
    monkeypatch.setattr(server_command, "end_of", lambda _: None)
    monkeypatch.setattr(frontends, "environment_pairs", lambda _: [])
    RECORDING.check(case.label, desk.call(case.line))


def test_names_are_unique() -> None:
    labels = [case.label for case in CASES]
    assert sorted({label for label in labels if labels.count(label) > 1}) == []
    assert set(RECORDING.expected) == set(labels), "texts without a row"
