"""Lines around the conversation, the actions of the app and the state of the connection, without a screen."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console
from rich.text import Text
from textual.binding import Binding

from client.every_event import TYPES, event_of
from client.scripted_server import session_event
from holdfast.client.errors import ClientError
from holdfast.client.key_focus import Focus
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.approvals import PermissionNotification, QuestionNotification
from holdfast.domain.events import AgentEvent, AgentNotice, Change
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.line_diff import DiffLine
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody
from holdfast.tui import block_render, redraw, welcome
from holdfast.tui.app import HoldfastApp
from holdfast.tui.app_context import AppContext
from holdfast.tui.approvals import ApprovalController
from holdfast.tui.blocks import NoticeBlock, ReasoningBlock
from holdfast.tui.diff_render import DiffView
from holdfast.tui.redraw import Renderer
from holdfast.tui.server_connection import LSP_STATE_NAMES, ServerConnection, ServerCounts, count_servers
from holdfast.tui.themes import DARK, PLAIN
from holdfast.tui.welcome import WelcomeView
from holdfast.tui.widgets.queue_panel import QueuePanel
from tui.fake_context import NO, FakeClient, FakeContext, Recorder
from tui.message_builders import drawn, message
from tui.test_block_table import text

Json = dict[str, Any]


def run(name: str, state: Any = "active", **more: Any) -> Run:  # noqa: ANN401
    return Run(RunId(name), SessionId("s"), state, "queue", 1_000, **{"prompt": f"do {name}", **more})


# Lines around the conversation.


class DrawingFixture:
    """A renderer over fakes; `lines` has what was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake: Any = FakeContext()
        self.fake: FakeContext = fake
        self.connection: Any = fake.connection
        self.connection.session = SessionId("s")
        self.connection.state, self.connection.error, self.connection.notice = "live", "", None
        self.connection.other_clients, self.connection.last = 0, None
        self.connection.latest = lambda: self.connection.last
        fake.transcript.palette = DARK
        fake.transcript.follows, fake.transcript.has_focus = True, False
        self.context: Any = fake
        self.context.focused = None
        self.context.search_bar = SimpleNamespace(has_focus_within=False)
        self.keyboard = Focus()
        self.prompts = SimpleNamespace(is_cancel_pending=False)
        self.renderer = Renderer(
            fake.context,
            cast(Any, SimpleNamespace(ticks=11)),
            cast(Any, None),
            cast(Any, self.prompts),
            cast(Any, SimpleNamespace(keyboard=self.keyboard)),
        )
        monkeypatch.setattr(redraw, "time", SimpleNamespace(time=lambda: 100.0))

    def written(self) -> dict[str, str]:
        entries = [entry for entry in self.fake.entries() if str(entry[0]).endswith(".update")]
        return {str(name)[:-7]: str(content) for name, content, *_ in entries}


def hints(*pairs: str) -> str:
    return " · ".join(pairs)


LISTS = ("ctrl+p commands", "ctrl+s sessions", "ctrl+g help")
HINTS: list[tuple[Json, str]] = [
    ({}, hints("enter send", "tab read", *LISTS)),
    ({"session": None}, hints("enter send", "tab choose", *LISTS)),
    ({"session": None, "writes": False}, hints("↑↓ choose", "enter open", "tab write")),
    ({"follows": False}, hints("ctrl+end to the newest", "enter send", "tab read", "ctrl+p commands", "ctrl+g help")),
    ({"shell": ["make"]}, hints("esc esc stop it", "enter send", "tab read", "ctrl+p commands", "ctrl+g help")),
    ({"runs": 1}, hints("enter steer", "alt+enter queue", "esc esc cancel", "ctrl+p commands")),
    ({"runs": 2}, hints("enter steer", "alt+enter queue", "esc esc cancel", "ctrl+t edit the queue")),
    ({"runs": 1, "follows": False},
     hints("ctrl+end to the newest", "enter steer", "alt+enter queue", "esc esc cancel", "ctrl+p commands")),
    ({"reads": True}, hints("J K prompts", "j k move", "space unfold", "y copy", "ctrl+f find", "tab write")),
    ({"reads": True, "follows": False},
     hints("ctrl+end to the newest", "j k move", "space unfold", "y copy", "ctrl+f find", "tab write")),
    ({"searches": True, "reads": True}, hints("enter, ↑ previous", "↓ next", "esc close", "then n N continue")),
    ({"queue": True, "searches": True},
     hints("enter edit", "x remove", "s send now", "q own turn", "shift+↑↓ move", "esc back")),
    ({"settled": True, "runs": 1}, hints("letters begin a prompt", "esc esc cancel", "ctrl+p commands")),
    ({"settled": True, "writes": False, "runs": 1},
     hints("enter steer", "alt+enter queue", "esc esc cancel", "ctrl+p commands")),
    ({"text": "!ls", "settled": True}, hints("enter runs it in the shell", "the model sees the output")),
    ({"completes": True, "text": "!ls"}, hints("↑↓ choose", "enter, tab accept", "esc close")),
    ({"pending": True, "runs": 1, "completes": True}, "esc again to cancel"),
    ({"pending": True, "shell": ["make"]}, "esc again to cancel"),
    ({"pending": True}, hints("enter send", "tab read", *LISTS)),
]  # fmt: skip


def test_hints_in_every_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for state, expected in HINTS:
        fixture = DrawingFixture(monkeypatch)
        fake = fixture.fake
        fixture.connection.session = state.get("session", "s")
        fixture.connection.shell_commands = state.get("shell", [])
        fake.transcript.follows, fake.transcript.has_focus = state.get("follows", True), state.get("reads", False)
        fake.composer.has_focus, fake.composer.text = state.get("writes", True), state.get("text", "")
        fake.composer.completes = state.get("completes", False)
        fixture.context.search_bar.has_focus_within = state.get("searches", False)
        fixture.context.focused = QueuePanel() if state.get("queue") else None
        fixture.prompts.is_cancel_pending = state.get("pending", False)
        fixture.renderer._approvals = cast(
            ApprovalController, SimpleNamespace(keyboard=Focus(is_settled=state.get("settled", False)))
        )
        runs = [run(str(at)) for at in range(state.get("runs", 0))]
        assert str(fixture.renderer._hints(runs)) == expected, state


def test_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = message("assistant", text("x" * 400))
    long = AgentNotice("retrying", "w " * 60)
    rows: list[tuple[Json, str]] = [
        ({}, ""),
        ({"notice": AgentNotice("re_authenticate", "No key.")}, "! No key. ctrl+l sets a key."),
        ({"notice": AgentNotice("retrying", "No key.")}, ""),
        ({"state": "broken", "error": "Away."}, "The connection is lost and will be restored. Away."),
        ({"active": [run("a", started_at=90_000)]}, "⠙ Waiting for the model · 10 s"),
        ({"active": [run("a")]}, "⠙ Starting · 1 min 39 s"),
        ({"active": [run("a", started_at=90_000)], "last": answer}, "⠙ Writing · 10 s · ~100 tokens"),
        ({"active": [run("a", started_at=90_000)], "queue": [run("b"), run("c")]},
         "⠙ Waiting for the model · 10 s · 2 queued"),
        ({"active": [run("a", started_at=90_000)], "state": "broken"}, "⠙ Waiting for the server · 10 s"),
        ({"active": [run("a", started_at=90_000)], "notice": long},
         f"⠙ {('w ' * 60)[:62].rstrip()}… · 10 s"),
    ]  # fmt: skip
    for fields, expected in rows:
        fixture = DrawingFixture(monkeypatch)
        for name, value in fields.items():
            setattr(fixture.connection, name, value)
        fixture.renderer._draw_activity(fixture.connection.runs())
        assert fixture.written().get("activity", "") == expected, fields


def test_shell_commands_and_unchanged_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = DrawingFixture(monkeypatch)
    for commands, expected in (([], None), (["a"], "⠙ $ a"), (["a"], None), (["a", "b"], "⠙ $ b  and 1 more"),
                               (["a", "b", "c"], "⠙ $ c  and 2 more")):  # fmt: skip
        fixture.connection.shell_commands = commands
        fixture.renderer._draw_shell()
        assert fixture.written().get("shell") == expected
        assert fixture.fake.line("shell").display == bool(commands)


CONFIG: Json = {
    "models": {"large": {"provider": "p", "model": "m"}},
    "providers": {"p": {"models": [{"id": "x", "context_window": 5}, {"id": "m", "context_window": 1000}]}},
}


def test_top_line(monkeypatch: pytest.MonkeyPatch) -> None:
    session = msgspec.structs.replace(session_event("s").change.object, title="Title")
    rows: list[tuple[Json, str, str]] = [
        ({}, "holdfast p  Title", "m"),
        ({"session": None}, "holdfast p", "m"),
        ({"directory": "/"}, "holdfast /  Title", "m"),
        ({"other_clients": 1}, "holdfast p  Title", "2 clients · m"),
        ({"yolo": True}, "holdfast p  Title", "your prompts act without asking · m"),
        ({"yolo": True, "mode": True}, "holdfast p  Title", "acts without asking · m"),
        ({"node": "b:1", "other_clients": 1}, "holdfast p  Title", "2 clients · m · at b:1"),
        ({"state": "broken"}, "holdfast p  Title", "reconnecting …"),
        ({"state": "broken", "node": "b:1", "has_alternatives": True}, "holdfast p  Title", "looking for a server …"),
        ({"state": "broken", "mode": True}, "holdfast p  Title", "acts without asking · reconnecting …"),
        ({"large": {"reasoning_effort": "high", "think": True}}, "holdfast p  Title", "m high"),
        ({"large": {"think": True}}, "holdfast p  Title", "m reasoning"),
        ({"counts": [ServerCounts("mcp", 2, 0, 2), ServerCounts("lsp", 1, 1, 3)]}, "holdfast p  Title",
         "m · mcp 2 · lsp 1/3"),
        ({"counts": [ServerCounts("mcp", 2, 0, 2), ServerCounts("lsp", 1, 1, 3)], "width": 99}, "holdfast p  Title",
         "m · lsp 1/3"),
    ]  # fmt: skip
    for fields, left, right in rows:
        fixture = DrawingFixture(monkeypatch)
        given = dict(fields)
        large = {**CONFIG["models"]["large"], **given.pop("large", {})}
        fixture.fake.config = {**CONFIG, "models": {"large": large}}
        fixture.fake.size.width = given.pop("width", 100)
        workspace = WorkspaceBody("w", "/p", yolo=given.pop("mode", False))  # type: ignore[arg-type]
        fixture.connection.view.workspace = workspace
        fixture.connection.view.sessions = {SessionId("s"): session}
        counts = given.pop("counts", [])
        fixture.connection.servers = SimpleNamespace(counts=lambda counts=counts: iter(counts))
        for name, value in given.items():
            setattr(fixture.connection, name, value)
        fixture.renderer._draw_top()
        written = fixture.written()
        usage = block_render.format_usage(session, 1000, is_short=fixture.fake.size.width < 100)
        shown = written["top-right"].replace(f" · {usage}", "") if usage else written["top-right"]
        assert (written["top-left"], shown) == (left, right), fields
    assert redraw._context_window(CONFIG) == 1000
    for other in ({}, {"models": CONFIG["models"]}, {**CONFIG, "models": {"large": {"provider": "p", "model": "y"}}}):
        assert redraw._context_window(other) == 0
    empty = {**CONFIG, "providers": {"p": {"models": [{"id": "m", "context_window": None}]}}}
    assert redraw._context_window(empty) == 0


def test_a_frame_is_busy_while_something_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    for runs, commands, expected in (([], [], False), ([run("a")], [], True), ([], ["ls"], True)):
        fixture = DrawingFixture(monkeypatch)
        fixture.connection.active, fixture.connection.shell_commands = runs, commands
        for name in ("_draw_transcript", "_draw_top", "_draw_queue"):
            monkeypatch.setattr(fixture.renderer, name, lambda: None)
        assert fixture.renderer.draw() is expected


# Blocks.


def test_reasoning_and_notices() -> None:
    rows: list[tuple[ReasoningBlock, list[str], list[str]]] = [
        (ReasoningBlock("a\nb", 0), ["  ✻ Thought"], ["  ✻ Thought", "  │ a", "  │ b"]),
        (ReasoningBlock("a", 1), ["  ✻ Thought for 1 s"], ["  ✻ Thought for 1 s", "  │ a"]),
        (ReasoningBlock("", 3), ["  ✻ Thought for 3 s"], ["  ✻ Thought for 3 s"]),
        (ReasoningBlock("a\nb\n", 0, is_open=True), ["  ✻ Thinking b"], ["  ✻ Thinking b", "  │ a", "  │ b", "  │"]),
    ]
    for block, folded, unfolded in rows:
        assert (drawn(block), drawn(block, is_unfolded=True)) == (folded, unfolded)
    for kind, mark in (("error", "✗"), ("cancelled", "■"), ("summary", "≡"), ("info", "·")):
        assert drawn(NoticeBlock(kind, "Title", "words")) == [f"  {mark} Title", "  words"]  # type: ignore[arg-type]
        assert drawn(NoticeBlock(kind, "Title")) == [f"  {mark} Title"]  # type: ignore[arg-type]
    # Long text wraps inside the margins of both sides.
    assert [len(line) for line in drawn(NoticeBlock("info", "", "x" * 60), width=20)][1:] == [19, 19, 19, 11]
    assert [len(line) for line in drawn(ReasoningBlock("x" * 32, 0), width=20, is_unfolded=True)][1:] == [19, 19, 6]
    head = ReasoningBlock("x" * 60, 0, is_open=True)
    assert [len(drawn(head, width=20, is_unfolded=unfolded)[0]) for unfolded in (False, True)] == [20, 20]
    for width, expected in ((2, ["▌ a", "▌ b", "▌ c"]), (3, ["▌ a", "▌ b", "▌ c"]), (4, ["▌ ab", "▌ c"])):
        console = Console(width=width, color_system=None)
        segments = console.render(block_render.LeftBar(Text("abc"), ""), console.options)
        assert "".join(segment.text for segment in segments).split("\n")[:-1] == expected, width


# The welcome screen.


async def test_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = SimpleNamespace(directory=str(tmp_path), view=SimpleNamespace(workspace=None, sessions={}))

    def names() -> list[str]:
        return [title for _, title, _ in welcome.start_actions(connection)]

    def facts(height: int = 20, providers: str = "") -> list[str]:
        return str(welcome.welcome_text(connection, providers, height)).split("\n")

    assert names() == ["Choose a model", "Write AGENTS.md", "Keys"]
    assert f"directory  {tmp_path}" in facts()
    assert "model      none yet: ctrl+l chooses one" in facts()
    assert not [line for line in facts() if line.startswith(("sessions", "providers"))]
    assert "providers  one, two" in facts(providers="one, two")
    assert len(facts(34)) - len(facts(33)) == welcome._ANCHOR.count("\n") + 2
    for parent, count in (("x", 0), ("", 1)):
        child = msgspec.structs.replace(session_event("s").change.object, parent_session_id=SessionId(parent))
        connection.view.sessions = {"s": child}
        assert ("Continue" in names()) == bool(count)
        assert (f"sessions   {count}: ctrl+s opens one" in facts()) == bool(count)
    config: Json = {"models": {"large": {"provider": "demo", "model": "d"}}, "options": {"initialize_as": "G.md"}}
    connection.view.workspace = SimpleNamespace(config=config)
    assert names() == ["Take the tour", "Continue", "Choose a model", "Keys"]
    assert "model      demo/d  (scripted answers, no model)" in facts()
    config["models"]["large"]["provider"] = "p"
    assert names() == ["Continue", "Choose a model", "Write G.md", "Keys"]
    (tmp_path / "G.md").touch()
    assert names() == ["Continue", "Choose a model", "Keys"]
    providers: list[Json] = [
        {"id": "a", "models": [1]}, {"id": "b", "name": "B", "models": [1]}, {"id": "demo", "models": [1]},
        {"id": "c", "models": []}, {"id": "d", "models": [1], "lack": "key"},
    ]  # fmt: skip
    missing = "no key and no local model: ctrl+l sets a key"
    for found, expected, frames in ((providers, "a, B", 1), (providers[2:], missing, 1), (NO, "searching …", 0)):
        fake = FakeContext(list_providers=tuple(found) if isinstance(found, list) else found)
        view = WelcomeView(fake.context)
        await view.find_providers()
        assert (view._providers, fake.frames) == (expected, frames)


# Actions of the app.

STARTED = {
    "commands": "choose", "new_session": "create_session", "sessions": "choose_session", "runs": "choose_run",
    "summarize": "summarize", "init": "describe_project", "models": "choose_model", "effort": "choose_effort",
    "jobs": "choose_job", "changes": "choose_change", "yolo": "toggle_auto_approve", "extensions": "choose_extension",
    "themes": "_choose_theme", "recall": "recall",
}  # fmt: skip
CALLED = {
    "escape": "prompts.escape", "take_back": "prompts.restore_cancelled", "queue_focus": "prompts.focus_queue",
    "editor": "prompts.edit_externally", "follow": "transcript.action_bottom", "fold_all": "transcript.action_fold_all",
    "find": "search.open",
}  # fmt: skip
KEYS = {
    "ctrl+p": "commands", "ctrl+s": "sessions", "ctrl+n": "new_session", "ctrl+l": "models", "ctrl+g,f1": "help",
    "f2": "effort", "ctrl+y": "yolo", "ctrl+t": "queue_focus", "ctrl+f": "find", "ctrl+o": "editor",
    "ctrl+r": "recall", "ctrl+z": "suspend_process", "tab": "switch", "pageup": "page(-1)", "pagedown": "page(1)",
    "ctrl+end": "follow", "escape": "escape", "ctrl+c": "leave",
}  # fmt: skip


def test_each_action_of_the_app() -> None:
    app = HoldfastApp(ServerLocation(ServerAddress(path="/none"), "", can_be_started=False), "/p")
    fake: Any = FakeContext()
    fake.search_bar, app._prompts = Recorder(fake.log, "search"), cast(Any, Recorder(fake.log, "prompts"))
    fake.start = lambda work, *_: fake.log.append(work if isinstance(work, str) else work.__name__)
    app._prompts.recall = SimpleNamespace(__name__="recall")  # type: ignore[method-assign, assignment]
    app.context = cast(AppContext, fake)
    fake.transcript.display = True
    others = {"help", "switch", "page", "leave"}
    actions = {name.removeprefix("action_") for name in vars(HoldfastApp) if name.startswith("action_")}
    assert actions == {*STARTED, *CALLED, *others}, "a new action needs a row"
    for name, method in STARTED.items():
        getattr(app, f"action_{name}")()
        assert fake.entries() == [method], name
    for name, method in CALLED.items():
        getattr(app, f"action_{name}")()
        assert fake.entries() == [(method,)], name
    fake.transcript.display = False
    app.action_find()
    assert fake.entries() == []
    bindings = {item.key: item.action for item in HoldfastApp.BINDINGS if isinstance(item, Binding)}
    assert bindings == KEYS
    is_open = app.connection._is_ready
    for has_dialog, opened in ((False, True), (False, False), (True, True), (True, False)):
        fake.has_dialog = has_dialog
        is_open.set() if opened else is_open.clear()
        for name in [action.partition("(")[0] for action in KEYS.values()]:
            needs = {"commands", "effort", "sessions", "new_session", "models", "yolo", "escape", "recall"}
            expected = name in ("leave", "suspend_process") or (not has_dialog and (opened or name not in needs))
            assert bool(app.check_action(name, ())) == expected, (name, has_dialog, opened)
        assert app.check_action("anything", ())


# The connection.


class ConnectionFixture:
    """A connection whose background work is only recorded."""

    def __init__(self, **results: Any) -> None:  # noqa: ANN401
        self.log: list[tuple[object, ...]] = []
        self.changes = 0
        where = ServerLocation(ServerAddress(path="/none"), "", can_be_started=False)
        self.connection = ServerConnection(where, "/p", on_change=self._changed)
        inner: Any = self.connection._connection
        inner._client, inner.workspace = FakeClient(self.log, results), "w"
        self.connection._start_task = self._record  # type: ignore[method-assign]
        self.connection.session = SessionId("s")
        self.connection._is_ready.set()

    def _changed(self) -> None:
        self.changes += 1

    def _record(self, work: Any) -> None:  # noqa: ANN401
        self.log.append(("task", work.__name__))
        work.close()

    def take(self) -> list[object]:
        found = [entry[1] if entry[0] == "task" else entry for entry in self.log]
        self.log.clear()
        return found


def snapshot(*messages: Any, cursor: int = 1) -> SnapshotBody:  # noqa: ANN401
    return SnapshotBody(cursor, 1, WorkspaceBody("w", "/p"), (), messages, ())  # type: ignore[arg-type]


async def test_state_of_the_connection() -> None:
    fixture = ConnectionFixture()
    connection = fixture.connection
    connection._report_trouble("Away.")
    assert (connection.state, connection.error, fixture.changes) == ("broken", "Away.", 1)
    connection._report_trouble("Away.")
    assert fixture.changes == 1, "nothing has changed"
    connection._report_trouble("Still away.")
    assert fixture.changes == 2
    await connection._receive(event_of("session", SessionId("t"), 3))
    assert (connection.state, connection.error) == ("live", "")
    assert fixture.take() == ["_report_session", "_read_servers"]
    await connection._receive(event_of("session", SessionId("t"), 4))
    assert fixture.take() == []


TASKS = {"config_changed": ["_read_workspace", "_read_servers"]}


async def test_tasks_and_changes_of_each_event() -> None:
    quiet = {"hello", "file", "skills_event", "removed", "config_changed"}
    for name in TYPES:
        if name == "gap":
            continue
        fixture = ConnectionFixture()
        fixture.connection.state = "live"
        before = msgspec.structs.replace(message("assistant", text("x" * 18), id="m"), session_id=SessionId("s"))
        fixture.connection.view.load(snapshot(before), SessionId("s"))
        await fixture.connection._receive(event_of(name, SessionId("s"), 9))
        assert fixture.take() == TASKS.get(name, []), name
        assert bool(fixture.changes) == (name not in quiet), name


async def test_status_events() -> None:
    fixture = ConnectionFixture()
    connection = fixture.connection
    rows: list[tuple[Any, str | None, list[str]]] = [
        ("retrying", "retrying", []), ("error", "retrying", []), ("fallback", "retrying", ["e"]),
        ("re_authenticate", "re_authenticate", ["e"]), ("agent_finished", "re_authenticate", ["e"]),
    ]  # fmt: skip
    for kind, notice, warnings in rows:
        connection._apply_status(AgentEvent(Change("created", AgentNotice(kind, "e"))))
        assert (connection.notice.type if connection.notice else None, connection.warnings) == (notice, warnings)
    end = event_of("run_complete", SessionId("s")).event
    connection._apply_status(end)
    assert connection.notice is not None, "a missing key is still missing after the run"
    connection.notice = AgentNotice("retrying", "e")
    connection._apply_status(end)
    assert [connection.notice] == [None]
    assert [str(item) for item in connection.ended_runs] == ["r", "r"]
    for name, key, kind in (("permission_notification", "ask", PermissionNotification),
                            ("question_batch_notification", "batch", QuestionNotification)):  # fmt: skip
        connection._apply_status(event_of(name, SessionId("s")).event)
        assert isinstance(connection.outcomes[key], kind)
    run_event: Any = event_of("run", SessionId("s"), change="updated").event
    order = ["_read_order"]
    for state, change, tasks in (("waiting", "updated", order), ("waiting", "created", []), ("active", "updated", [])):
        changed = msgspec.structs.replace(run_event.change.object, state=state)
        connection._apply_status(type(run_event)(Change(change, changed)))  # type: ignore[arg-type]
        assert fixture.take() == tasks
    for at, change, session in (("t", "deleted", "s"), ("s", "updated", "s"), ("s", "deleted", None)):
        connection.needs_full_redraw = False
        connection._apply_status(event_of("session", SessionId(at), change=change).event)
        assert (connection.session, connection.needs_full_redraw) == (session, session is None)


async def test_opening_a_session() -> None:
    fixture = ConnectionFixture(snapshot=[snapshot(cursor=4), ClientError("no"), snapshot(cursor=6)])
    connection = fixture.connection
    connection.other_clients = 3
    await connection.open_session(SessionId("t"))
    assert fixture.take() == [("snapshot", "t"), "_load_subagents", ("set_current_session", "t")]
    assert (connection.session, connection.other_clients, connection._connection.cursor) == ("t", 0, 4)
    with pytest.raises(ClientError):
        await connection.open_session(SessionId("u"))
    assert connection.session == "t"
    assert connection._is_settled.is_set()
    await connection.open_session(None)
    assert fixture.take()[1:] == [("snapshot", None), "_load_subagents", ("set_current_session", "")]


async def test_presence_and_order() -> None:
    session = session_event("s").change.object
    found = [msgspec.structs.replace(session, attached_clients=count) for count in (0, 1, 3)]
    fixture = ConnectionFixture(get_session=[*found, NO, msgspec.structs.replace(found[2], id=SessionId("t"))],
                                list_queued=[("b", "a", "x"), NO])  # fmt: skip
    connection = fixture.connection
    await connection._read_presence()
    assert fixture.take() == [], "it is not connected"
    connection.state = "live"
    for others, changes in ((0, 0), (0, 0), (2, 1), (2, 1), (2, 1)):
        await connection._read_presence()
        assert (connection.other_clients, fixture.changes) == (others, changes)
    runs = [run(str(at), "waiting", prompt=words, number=at) for at, words in enumerate("abc", 1)]
    runs += [run("4", number=4), run("5", "ended"), run("6", "folded")]
    connection.view.runs = {item.run_id: item for item in runs}
    assert [item.run_id for item in connection.runs()] == ["4", "1", "2", "3"]
    assert [item.run_id for item in connection.waiting()] == ["1", "2", "3"]
    for _ in range(2):
        await connection._read_order()
        assert [item.run_id for item in connection.waiting()] == ["2", "1", "3"]
    assert fixture.changes == 2
    connection.session = None
    fixture.take()
    await connection._read_order()
    await connection._read_presence()
    assert (await connection.cancel(), connection.runs(), fixture.take()) == ((), [], [])
    assert connection.index.starting_message(SessionId("m1$$c1")) is None
    assert connection.message(MessageId("m1")) is None
    assert LSP_STATE_NAMES
    assert list(count_servers("x", [], 1, ())) == []
    assert list(count_servers("x", [1, 2, 3, 3], 1, (3,))) == [ServerCounts("x", 1, 2, 4)]
    assert ToolCallId("c1") not in connection.index._calls


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"cancelled": True}, ("cancel_question", "q")),
        ({"cancelled": False, "a": 1}, ("answer_question", {"cancelled": False, "a": 1})),
        ({"a": 1}, ("answer_question", {"a": 1})),
    ],
)  # fmt: skip
async def test_answers(body: Json, expected: object) -> None:
    fixture = ConnectionFixture(cancel_session=SimpleNamespace(cancelled=[RunId("a")]))
    await fixture.connection.answer_question("q", body)
    await fixture.connection.answer_permission(body)
    assert await fixture.connection.cancel() == ("a",)
    assert fixture.take() == [expected, ("grant", body), ("cancel_session", "s")]


async def test_prompt_of_a_connection() -> None:
    fixture = ConnectionFixture(create_session=SimpleNamespace(id="new"), snapshot=snapshot())
    connection = fixture.connection
    for session, before in ((None, [("create_session",)]), (SessionId("t"), [])):
        for yolo in (False, True):
            connection.session, connection.yolo = session, yolo
            await connection.prompt("hi", delivery="queue")
            log: list[Any] = fixture.take()
            assert log[: len(before)] == before
            sent = log[-1][1]
            assert (sent.session_id, sent.prompt, sent.delivery, sent.client_id, sent.interactive, sent.yolo) == (
                session or "new", "hi", "queue", "me", True, yolo
            )  # fmt: skip


async def test_only_errors_of_the_client_are_suppressed() -> None:
    for error, is_raised in ((NO, False), (ValueError("mistake"), True)):
        fixture = ConnectionFixture(mcp_states=error)
        fetching = fixture.connection.servers.fetch(fixture.connection.client, fixture.connection.workspace)
        if is_raised:
            with pytest.raises(ValueError, match="mistake"):
                await fetching
        else:
            await fetching


def test_changes_of_different_length_in_two_columns() -> None:
    kinds: list[Any] = ["removed", "added", "added", "hunk", "removed", "removed", "added"]
    lines = [DiffLine(kind, f"line {at}", old=at, new=at) for at, kind in enumerate(kinds, 1)]
    console = Console(width=120, color_system=None)
    shown = console.render_lines(DiffView(lines, PLAIN), console.options, pad=False)
    assert len(shown) == 5
