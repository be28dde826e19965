"""Every command with every option: exit code, output, and requests to the server.

The table is complete: a command, an argument or an option without a row, given and left out, is an error.
"""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.in_process import Caller, Request, commands, given_in
from cli.isolated_home import IsolatedHome
from holdfast.client.client import Client
from holdfast.domain.ids import RunId
from holdfast.protocol.bodies import AgentMessage
from server.helpers import read_until, run_ended

TESTS = Path(__file__).parents[1]
SKILL = "---\nname: {0}\ndescription: Does {0}\n---\nBody of {0}.\n"


class Row(msgspec.Struct, frozen=True):
    """A command line; `{name}` is replaced by a value of the place. `requests` omits those of every command."""

    line: str
    requests: tuple[Request, ...] = ()
    code: int = 0
    out: str = ""
    err: str = ""
    keys: str = ""
    """The keys of the JSON that is printed, or of the first object in its list."""
    without: str = ""
    """A text that is not printed."""


def get(path: str, /, **query: str) -> Request:
    return Request("GET", path, query)


def post(path: str, /, **body: Any) -> Request:  # noqa: ANN401 - any JSON
    return Request("POST", path, {}, body)


SESSIONS, MESSAGES = get("W/sessions"), get("W/sessions/{session}/messages")
SESSION = get("W/sessions/{session}")
RUN = "run_id session_id state delivery accepted_at number started_at step ended_at outcome yolo"
REPORTED = (get("W/runs/told"), get("W/runs/told"))
STATES = get("W/mcp/states")
STATS = (
    "sessions messages prompt_tokens completion_tokens cost costs runs days seconds response_seconds models tools week "
    "workspaces zone"
)
RENAMED = Request("PUT", "W/sessions/{session}", {}, {"title": "A b"})

SERVED = (
    # Runs
    Row("runs list", (get("W/runs", limit="20"),), out="RUN    STATE"),
    Row("runs", (get("W/runs", limit="20"),), out="wrote  completed"),
    Row("runs list --limit 1", (get("W/runs", limit="1"),), out="wrote ", without="told"),
    Row("runs list --limit 0", code=2, err="0 is not in the range"),
    Row("runs list --limit 1001", code=2, err="1001 is not in the range"),
    Row("runs list --session {session}", (get("W/runs", session_id="{session}", limit="20"),), out="told "),
    Row("runs list --json", (get("W/runs", limit="20"),), keys=f"{RUN} prompt message_id"),
    Row("runs show told", (*REPORTED, MESSAGES), out="\n> words=3 tool=ls\n\nword1 word2 word3\n"),
    Row("runs show told --json", (*REPORTED, get("W/runs/told")), keys=f"{RUN} prompt message_id"),
    Row("runs cancel told", (*REPORTED, Request("POST", "W/runs/told/cancel", {"client_id": "*"})), out="completed\n"),
    Row("runs cancel nobody", (get("W/runs/nobody"),) * 2 + (get("W/runs", limit="1000"),), 4, err="no run nobody in"),
    # Sessions
    Row("sessions list", (SESSIONS,), out="SESSION "),
    Row(
        "sessions list --json",
        (SESSIONS,),
        keys="id parent_session_id title message_count prompt_tokens completion_tokens summary_message_id cost "
        "created_at updated_at is_busy attached_clients",
    ),
    Row("sessions show {session}", (SESSION, MESSAGES), out="\n[tool ls]\n\nword1 word2 word3\n"),
    Row(
        "sessions show {session} --json",
        (SESSION, MESSAGES),
        keys="parts id role session_id model provider created_at updated_at run_id",
    ),
    Row("sessions last", (SESSIONS, get("W/sessions/{last}"), get("W/sessions/{last}/messages")), out="[tool write]"),
    Row(
        "sessions last --json",
        (SESSIONS, get("W/sessions/{last}"), get("W/sessions/{last}/messages")),
        keys="parts id role session_id model provider created_at updated_at run_id",
    ),
    Row("sessions rename {session} A b", (RENAMED,)),
    Row("sessions rename {session} ''", code=2, err="The title is empty"),
    Row("sessions delete {session}", (SESSION,), 2, err="--yes"),
    Row("sessions delete nothing --yes", (SESSIONS, get("W/sessions/nothing")), 4, err="no such session"),
    Row("sessions export {session}", (SESSION, MESSAGES), out="## You\n\nwords=3 tool=ls\n"),
    Row("sessions export {session} --format json", (SESSION, MESSAGES), keys="session messages"),
    Row("sessions export {session} --format xml", code=2, err="'xml' is not one of"),
    Row("sessions export {session} -o talk.md", (SESSION, MESSAGES), without="You"),
    # Changes
    Row("undo --dry-run", (post("W/undo", dry_run=True),), out="note.txt would be removed\n"),
    Row("undo note.txt --dry-run", (post("W/undo", dry_run=True, path="{here}/note.txt"),), out="\n-one\n"),
    Row("undo --run wrote --dry-run", (get("W/runs", limit="1000"), post("W/undo", dry_run=True, run_id="wrote"))),
    Row(
        "undo --session {session} --dry-run --force",
        (post("W/undo", dry_run=True, force=True, session_id="{session}"),),
        4,
        err="nothing to undo",
    ),
    Row("undo", (post("W/undo"),), out="note.txt was removed\n", without="-one"),
    # Numbers
    Row("stats", (get("W/stats", zone="*"),), out="a session"),
    Row("stats --json", (get("W/stats", zone="*"),), keys=STATS),
    Row("stats --all --json", (get("/v1/stats", zone="*"),), keys=STATS),
    Row("stats --html page.html", (get("W/stats", zone="*"),), err="Written to page.html."),
    Row("stats --html /nowhere/page.html", (get("W/stats", zone="*"),), 4, err="cannot be written"),
    # Extensions
    Row("skills list", (get("W/skills"), get("W")), out="s1               project  Does s1"),
    Row("skills list --json", (get("W/skills"), get("W")), keys="skills broken"),
    Row("skills show s1", (post("W/skills/read", skill_id="s1"),), out="Body of s1."),
    Row("skills show s1 --json", (post("W/skills/read", skill_id="s1"),), keys="content result"),
    Row("skills show nothing", (post("W/skills/read", skill_id="nothing"),), 4, err="no such skill"),
    Row("commands list", (get("W/commands"),), out="/c1 "),
    Row("commands list --json", (get("W/commands"),), keys="name source description path"),
    Row("commands show /c1 x y", (post("W/commands/expand", prompt="/c1 x y", arguments={}),), out="Do x y.\n"),
    Row("commands show c1 --json", (post("W/commands/expand", prompt="/c1", arguments={}),), keys="prompt command"),
    Row(
        "commands show /zz", (post("W/commands/expand", prompt="/zz", arguments={}),), 4, err="There is no such command"
    ),
    Row("agents list", (get("W/agents"),), out="@a1 "),
    Row("agents list --json", (get("W/agents"),), keys="name source description path tools withheld"),
    # Servers of tools and languages
    Row("mcp list", (STATES,), out="off     disabled         stdio"),
    Row("mcp list --json", (STATES,), keys="name state connected_at type"),
    Row("mcp list --no-wait", (STATES,), out="off "),
    Row("mcp logs off", (STATES, get("W/mcp/log", name="off")), err="off has printed nothing."),
    Row("mcp logs none", (STATES, get("W/mcp/log", name="none")), 4, err="no MCP server called none. There is: off."),
    Row("mcp restart off", (post("W/mcp/restart", name="off"), STATES), err="off: disabled, 0 tools."),
    Row("mcp login off --no-browser", (STATES,), 4, err="has no login"),
    Row("lsp list", (get("W/lsps"),), err="No language server is running here"),
    Row("lsp list --json", (get("W/lsps"),), out="[]"),
    Row("lsp logs none", (get("W/lsps/log", name="none"),), 4, err="no language server of that name"),
    Row("lsp restart", (post("W/lsps/restart", name=""),), err="No language server is running"),
    Row("lsp restart none", (post("W/lsps/restart", name="none"),), 4, err="no language server"),
    Row("lsp start none.py", code=4, err="There is no file none.py."),
    Row(
        "lsp start plain", (post("W/lsps/start", path="plain"), get("W/lsps")), err="No language server is running here"
    ),
    # The server
    Row("server status", out="address     unix://"),
    Row("server status --json", keys="pid version protocol address data_dir workspaces problem"),
    Row("server start", out="running     process"),
    Row("server start --json", keys="pid version protocol address data_dir workspaces problem"),
    Row("web --no-open", (post("/v1/web", port=0, env="*"),), out="http://127.0.0.1:"),
    Row("web --port 0", code=2, err="0 is not in the range"),
    Row("web --close", (Request("DELETE", "/v1/web"),), out="Closed. Pages"),
    Row("doctor --area server", (get("W/doctor", areas="server"),), out="\nNo problems.\n"),
    Row("doctor --area server --json", (get("W/doctor", areas="server"),), keys="findings"),
    Row("doctor --area server --area hooks", (get("W/doctor", areas="server,hooks"),), out="server"),
    Row("doctor --area none", (get("W/doctor", areas="none"),), err="no results for none", without="problems"),
)
PLACE = {"cwd", "data_dir", "host"}
"""Checked for all commands together: `test_every_command_accepts_another_directory`, and `test_data_directories`."""
ELSEWHERE = {
    ("tui", "session"): "tui/test_terminal.py",
    ("tui", "continues"): "tui/test_terminal.py",
    ("tui", "yolo"): "tui/test_terminal.py",
    ("web", "port"): "cli/test_web.py::test_closing_and_a_fixed_port",
    ("web", "no_open"): "cli/test_web.py::test_the_browser_is_opened_if_there_is_one",
    ("attach", "session"): "cli/test_query_commands.py::test_a_session_is_followed",
    ("runs wait", "run_id"): "cli/test_query_commands.py::test_runs_wait_reports_the_outcome",
    ("runs wait", "timeout"): "cli/test_query_commands.py::test_runs_wait_can_time_out",
    ("runs wait", "streams"): "cli/test_query_commands.py::test_runs_wait_can_time_out",
    ("runs wait", "raw"): "cli/test_standard_streams.py::test_a_piped_answer_has_no_control_sequences_unless_raw",
    ("runs wait", "quiet"): "cli/test_run_approvals.py",
    ("server stop", "force"): "cli/test_run_faults.py::test_a_stopped_server_interrupts_the_run",
    ("nodes drain", "node"): "e2e/test_cluster_operation.py",
    ("nodes evict", "node"): "e2e/test_cluster_operation.py",
    ("nodes evict", "yes"): "e2e/test_cluster_operation.py",
    ("nodes list", "as_json"): "e2e/test_cluster_operation.py",
    ("mcp login", "no_browser"): "extensions/mcp/test_cli_mcp.py::test_login_with_browser",
    ("doctor", "as_json"): "cli/test_doctor.py::test_problems_are_listed_with_remedies",
    ("doctor", "areas"): "cli/test_doctor.py::test_problems_are_listed_with_remedies",
    ("undo", "dry_run"): "tools/test_undo.py",
    ("demo", "fast"): "cli/test_demo.py::test_the_demonstration_shows_all_sections",
    ("demo", "keep"): "cli/test_demo.py::test_the_demonstration_shows_all_sections",
    ("demo", "worker"): "cli/test_demo.py::test_the_demonstration_shows_all_sections",
    ("models", "refresh"): "cli/test_models.py::test_a_refresh_lists_models_that_are_newer_than_the_catalogue",
    ("logs", "follow"): "cli/test_query_commands.py::test_logs_are_followed",
}
BY_HAND = {"run", "serve", "acp", "migrate"}
"""Commands whose options have a table of their own: `test_asked.py`, `test_run.py`, `test_run_faults.py`."""


class Place:
    """A directory in which something was done, with one of everything that is listed."""

    def __init__(self, home: IsolatedHome) -> None:
        self.home = home
        self.here = home.home / "table"
        self.caller = Caller(home, str(self.here))
        self.values = {"here": str(self.here)}

    def prepare(self) -> None:
        for path, text in (
            (".holdfast/skills/s1/SKILL.md", SKILL.format("s1")),
            (".holdfast/commands/c1.md", "---\ndescription: Does c1\n---\nDo $ARGUMENTS.\n"),
            (".holdfast/agents/a1.md", "---\nname: a1\ndescription: Does a1\ntools: view\n---\nLook.\n"),
            ("plain", "no language\n"),
        ):
            file = self.here / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        asyncio.run(self._converse())

    async def _converse(self) -> None:
        async with Client(self.home.where.address) as client:
            workspace = (await client.create_workspace(str(self.here))).id
            off = {"command": "true", "disabled": True}
            await client.config_set(workspace, "mcp.off", off, scope=1)
            written = 'tool=write {"file_path": "note.txt", "content": "one\\n"}'
            for run, text, name in (("told", "words=3 tool=ls", "session"), ("wrote", written, "last")):
                session = await client.create_session(workspace, name)
                self.values[name] = session.id
                async with client.events(workspace, since=0) as events:
                    await client.send_prompt(workspace, AgentMessage(session.id, text, RunId(run), yolo=True))
                    await read_until(events, run_ended(RunId(run)))


@pytest.fixture(scope="module")
def place(home: IsolatedHome) -> Place:
    made = Place(home)
    made.prepare()
    return made


def _filled(value: Any, values: dict[str, str]) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], value)
    if isinstance(value, dict):
        return {name: _filled(item, values) for name, item in value.items()}
    return value


def _fits(found: Any, wanted: Any) -> bool:  # noqa: ANN401 - any JSON
    """`*` is anything."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_fits(found[name], wanted[name]) for name in wanted)
    return wanted in ("*", found)


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.line)
def test_a_command_with_its_options(row: Row, place: Place) -> None:
    done = place.caller.call(*shlex.split(_filled(row.line, place.values)))
    assert done.exit_code == row.code, done.output
    assert row.out in done.stdout
    assert row.err in done.stderr
    assert not row.without or row.without not in done.stdout
    assert (row.code == 0) or not done.stdout, "an error prints nothing on stdout"
    wanted = [_filled(msgspec.to_builtins(request), place.values) for request in row.requests]
    found = [msgspec.to_builtins(request) for request in place.caller.requests]
    assert len(found) == len(wanted), found
    assert all(map(_fits, found, wanted)), found
    if row.keys:
        reported = json.loads(done.stdout)
        first = reported[0] if isinstance(reported, list) else reported
        assert set(first) == set(row.keys.split())


def test_output_files_are_written(place: Place) -> None:
    """After the rows that name them, or by itself."""
    session = place.values["session"]
    assert place.caller.call("sessions", "export", session, "--output", "talk.md").exit_code == 0
    assert "words=3 tool=ls" in (place.here / "talk.md").read_text()
    assert place.caller.call("stats", "--html", "page.html").exit_code == 0
    assert (place.here / "page.html").read_text().startswith("<!doctype html>")


def _taking(name: str) -> list[str]:
    return [words for words, command in commands() if any(param.name == name for param in command.params)]


@pytest.mark.parametrize("words", [words for words in _taking("cwd") if words not in BY_HAND | {"tui", "attach"}])
def test_every_command_accepts_another_directory(words: str, place: Place) -> None:
    """A missing directory is refused before any request; an existing one becomes the workspace."""
    done = place.caller.call(*words.split(), "--cwd", "/no/such/directory")
    assert done.exit_code == 2
    assert "does not exist" in done.stderr
    assert place.caller.requests == []


def test_the_given_directory_is_the_workspace(place: Place) -> None:
    elsewhere = place.home.home / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    assert place.caller.call("runs", "--cwd", str(elsewhere), "--json").stdout == "[]\n"
    assert place.caller.call("stats", "--cwd", str(elsewhere), "--json").stdout.count(str(elsewhere)) == 1


def test_every_option_has_a_row() -> None:
    """Given in one row, and left out in another, or tested elsewhere."""
    from cli.test_local_table import LOCAL  # noqa: PLC0415 - which imports this module

    values = {"session": "s" * 32, "last": "l" * 32, "here": "/here"}
    lines = [tuple(shlex.split(_filled(line, values))) for line in (*(row.line for row in SERVED), *LOCAL)]
    seen: dict[str, list[set[str]]] = {}
    for line in lines:
        name, given = given_in(line)
        seen.setdefault(name, []).append(given)
    missing = []
    for name, command in commands():
        for param in command.params:
            assert param.name is not None
            if name in BY_HAND or param.name in PLACE or (name, param.name) in ELSEWHERE:
                continue
            with_it = any(param.name in given for given in seen.get(name, []))
            without_it = param.required or any(param.name not in given for given in seen.get(name, []))
            if not (with_it and without_it):
                missing.append((name, param.name))
    assert missing == []


def test_the_list_of_commands_tested_elsewhere_is_current() -> None:
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert name in (TESTS / file).read_text(), test
