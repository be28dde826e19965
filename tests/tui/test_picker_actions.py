"""Every list of the terminal app: each key, the request that follows, the dialogs and notices, and each failure.

The controllers run without the app (`tui/fake_context.py`); each row compares their complete log.
"""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from textual.theme import Theme

from client.scripted_server import session_event
from holdfast.domain.extensions import NEVER, LspInfo, LspState, McpInfo
from holdfast.domain.files import UndoneFile, UndoReport, UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.processes import JobInfo, JobOutput
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel, SkipPermissions, WorkspaceBody
from holdfast.protocol.extension_routes import SkillInfo, SkillText
from holdfast.tui import pickers
from holdfast.tui.block_render import format_age, format_duration
from holdfast.tui.pickers import ExtensionPicker, ModelPicker, SessionPicker, WorkspacePicker
from holdfast.tui.screens.picker import PickerItem, PickerResult
from holdfast.tui.themes import THEMES
from tui.fake_context import NO, FakeContext
from tui.test_picker_items import version

Json = dict[str, Any]
ERROR = ("notice", "No.", {"severity": "error", "timeout": 10})
NOW = 1_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickers, "time", SimpleNamespace(time=lambda: float(NOW)))


def dialog(kind: str, title: str = "") -> tuple[str, str, str]:
    return ("dialog", kind, title)


def pick(value: str, key: str = "enter") -> PickerResult:
    return PickerResult(value, key)


def shown(fake: FakeContext) -> list[tuple[object, ...]]:
    """Return title, values, hint, keys, start and empty text of each list."""
    return [
        (d._title, [c.value for c in d._choices], d._hint, tuple(d._keys), d._start, d._empty)
        for d in fake.dialogs
        if hasattr(d, "_choices")
    ]


# Sessions and runs.

ONE = msgspec.structs.replace(session_event("one").change.object, title="First", updated_at=NOW - 60)
TWO = msgspec.structs.replace(session_event("two").change.object, title="Second", is_busy=True)
SESSIONS = [ONE, TWO]
LIST = dialog("Picker", "Sessions")
DELETED = "Its conversation and the history of its files are deleted."


@pytest.mark.parametrize(
    ("answers", "results", "expected"),
    [
        ((), {"list_sessions": NO}, [("list_sessions",), ERROR]),
        ((None,), {}, [("list_sessions",), LIST]),
        ((pick("gone"),), {}, [("list_sessions",), LIST]),
        ((pick("two"),), {}, [("list_sessions",), LIST, ("open", "two"), ("composer.focus",)]),
        ((pick("two"),), {"open": NO}, [("list_sessions",), LIST, ("open", "two"), ERROR, ("composer.focus",)]),
        (
            (pick("one", "ctrl+r"), "New", None),
            {},
            [("list_sessions",), LIST, dialog("TextInput", "Rename the session"),
             ("put_session", "one", "New"), ("list_sessions",), LIST],
        ),
        (
            (pick("one", "ctrl+r"), None, None),
            {},
            [("list_sessions",), LIST, dialog("TextInput", "Rename the session"), ("list_sessions",), LIST],
        ),
        (
            (pick("one", "ctrl+x"), True, None),
            {},
            [("list_sessions",), LIST, dialog("Confirm", "Delete “First”?"),
             ("delete_session", "one"), ("list_sessions",), LIST],
        ),
        (
            (pick("two", "ctrl+x"), False, None),
            {},
            [("list_sessions",), LIST, dialog("Confirm", "Delete “Second”?"), ("list_sessions",), LIST],
        ),
    ],
)  # fmt: skip
async def test_list_of_sessions(answers: tuple[object, ...], results: Json, expected: list[object]) -> None:
    fake = FakeContext(answers, **{"list_sessions": [SESSIONS, SESSIONS], **results})
    fake.connection.session = SessionId("one")
    await SessionPicker(fake.context).choose_session()
    assert fake.entries() == expected
    lists = shown(fake)
    starts = ["one", answers[0].value if len(lists) > 1 else ""]  # type: ignore[attr-defined]
    for at, seen in enumerate(lists):
        keys = ("ctrl+r", "ctrl+x")
        assert seen == ("Sessions", ["one", "two"], pickers._SESSION_KEYS, keys, starts[at], "No session matches.")
    for asked in fake.dialogs:
        if hasattr(asked, "_yes"):
            more = " Its current run is cancelled." if "Second" in asked._title else ""
            assert (asked._text, asked._yes) == (DELETED + more, "delete it")
        elif hasattr(asked, "_is_secret"):
            assert (asked._value, asked._is_secret) == ("First", False)
    if lists:
        assert [item.detail.split(" · ")[0] for item in fake.dialogs[0]._choices][:1] == [format_age(60)]
        assert [item.mark for item in fake.dialogs[0]._choices] == ["", "●"]


def run(name: str, **more: Any) -> Run:  # noqa: ANN401 - any field
    given: Json = {"accepted_at": (NOW - 60) * 1000, "prompt": f"do {name}", "number": 1, **more}
    return Run(RunId(name), SessionId(f"session of {name}"), "active", "queue", **given)


RUNS = (run("a"), run("sub", parent_run_id=RunId("a")), run("b"))
GET_RUNS = ("list_runs", {"limit": 100})
RUN_LIST = dialog("Picker", "Runs")


@pytest.mark.parametrize(
    ("answers", "results", "expected"),
    [
        ((), {"list_runs": NO}, [GET_RUNS, ERROR]),
        ((None,), {"list_runs": RUNS}, [GET_RUNS, RUN_LIST]),
        ((pick("", "ctrl+x"),), {"list_runs": RUNS}, [GET_RUNS, RUN_LIST]),
        ((pick("b"),), {"list_runs": RUNS}, [GET_RUNS, RUN_LIST, ("open", "session of b")]),
        (
            (pick("b", "ctrl+x"), None),
            {"list_runs": RUNS},
            [GET_RUNS, RUN_LIST, ("cancel_run", "b"), GET_RUNS, RUN_LIST],
        ),
        (
            (pick("a", "ctrl+x"), None),
            {"list_runs": RUNS, "cancel_run": NO},
            [GET_RUNS, RUN_LIST, ("cancel_run", "a"), ERROR, GET_RUNS, RUN_LIST],
        ),
    ],
)
async def test_list_of_runs(answers: tuple[object, ...], results: Json, expected: list[object]) -> None:
    fake = FakeContext(answers, **results)
    await SessionPicker(fake.context).choose_run()
    assert fake.entries() == expected
    for seen in shown(fake):
        assert seen == ("Runs", ["a", "b"], pickers._RUN_KEYS, ("ctrl+x",), "", "There are no runs yet.")
    for list_ in fake.dialogs:
        assert format_age(60) in list_._choices[0].detail


@pytest.mark.parametrize(
    ("method", "session", "results", "expected"),
    [
        ("create_session", "s", {}, [("open", None), ("composer.focus",)]),
        ("create_session", "s", {"open": NO}, [("open", None), ERROR, ("composer.focus",)]),
        ("summarize", "s", {}, [("summarize", "s")]),
        ("summarize", "s", {"summarize": NO}, [("summarize", "s"), ERROR]),
        ("summarize", None, {}, []),
        (
            "describe_project", "s", {"init_prompt": SimpleNamespace(prompt="describe")},
            [("init_prompt",), ("prompt", "describe")],
        ),
        ("describe_project", "s", {"init_prompt": NO}, [("init_prompt",), ERROR]),
        (
            "describe_project", "s", {"init_prompt": SimpleNamespace(prompt="describe"), "prompt": NO},
            [("init_prompt",), ("prompt", "describe"), ERROR],
        ),
    ],
)  # fmt: skip
async def test_commands_of_a_session(method: str, session: Any, results: Json, expected: list[object]) -> None:  # noqa: ANN401
    fake = FakeContext(**results)
    fake.connection.session = session
    await getattr(SessionPicker(fake.context), method)()
    assert fake.entries() == expected


# Models.

LACK = "Off needs a key: set OFF_KEY."
OFF: Json = {"id": "off", "name": "Off", "api_key": "$OFF_KEY", "lack": LACK, "models": [{"id": "x"}]}
ON: Json = {"id": "on", "models": [{"id": "m", "can_reason": True, "reasoning_levels": ["low", "high"]}, {"id": "p"}]}
AWAY: Json = {"id": "away", "lack": "It is away.", "models": [{"id": "y"}]}
SET_UP = {**OFF, "lack": ""}
PROVIDERS = [OFF, ON, AWAY]
GET = ("list_providers",)
LARGE = dialog("Picker", "Choose the large model: it does the work")
SMALL = dialog("Picker", "Choose the small model: it writes titles")
OFF_KEY = dialog("TextInput", "Key of Off")


def stored(provider: str) -> tuple[str, Json]:
    return ("config_provider_key", {"scope": 0, "provider_id": provider, "kind": "string", "api_key": "k"})


def chosen(provider: str, model: str, size: str = "large") -> list[object]:
    request = ConfigModelRequest(size, SelectedModel(model, provider))  # type: ignore[arg-type]
    return [("config_model", request), ("notice", f"{model} is the {size} model now.")]


KEPT = ("notice", "The key is stored.")


@pytest.mark.parametrize(
    ("answers", "results", "expected", "starts"),
    [
        ((), {"list_providers": NO}, [GET, ERROR], []),
        ((None,), {}, [GET, LARGE], ["on/m"]),
        ((pick("on/p"),), {}, [GET, LARGE, *chosen("on", "p")], ["on/m"]),
        (
            (pick("on/p"),), {"config_model": NO},
            [GET, LARGE, ("config_model", ConfigModelRequest("large", SelectedModel("p", "on"))), ERROR], ["on/m"],
        ),
        (
            (pick("on/p", "tab"), pick("on/p", "tab"), pick("on/p", "tab"), pick("on/m")), {},
            [GET, LARGE, GET, SMALL, GET, LARGE, GET, SMALL, *chosen("on", "m", "small")],
            ["on/m", "on/p", "on/m", "on/p"],
        ),
        ((pick("on/"), None), {}, [GET, LARGE, GET, LARGE], ["on/m", "on/"]),
        # A key is set for a provider that has none, and for one that has.
        ((pick("off/x", "ctrl+e"), "k", None), {}, [GET, LARGE, OFF_KEY, stored("off"), KEPT, GET, LARGE],
         ["on/m", "off/x"]),
        ((pick("on/m", "ctrl+e"), "", None), {}, [GET, LARGE, dialog("TextInput", "Key of on"), GET, LARGE],
         ["on/m", "on/m"]),
        # Choosing a model whose provider needs a key.
        ((pick("off/x"), "k"), {"list_providers": [PROVIDERS, [SET_UP]]},
         [GET, LARGE, OFF_KEY, stored("off"), KEPT, GET, *chosen("off", "x")], ["on/m"]),
        ((pick("off/x"), "k", None), {"list_providers": [PROVIDERS, PROVIDERS, PROVIDERS]},
         [GET, LARGE, OFF_KEY, stored("off"), KEPT, GET, GET, LARGE], ["on/m", "off/x"]),
        ((pick("off/x"), "k", None), {"list_providers": [PROVIDERS, NO, PROVIDERS]},
         [GET, LARGE, OFF_KEY, stored("off"), KEPT, GET, ERROR, GET, LARGE], ["on/m", "off/x"]),
        ((pick("off/x"), "k", None), {"config_provider_key": NO},
         [GET, LARGE, OFF_KEY, stored("off"), ERROR, GET, LARGE], ["on/m", "off/x"]),
        ((pick("off/x"), None, None), {}, [GET, LARGE, OFF_KEY, GET, LARGE], ["on/m", "off/x"]),
        ((pick("off/"), "k", None), {}, [GET, LARGE, OFF_KEY, stored("off"), KEPT, GET, LARGE], ["on/m", "off/"]),
        ((pick("away/y"), None), {}, [GET, LARGE, ("notice", "It is away.", {"timeout": 10}), GET, LARGE],
         ["on/m", "away/y"]),
    ],
)  # fmt: skip
async def test_list_of_models(
    answers: tuple[object, ...], results: Json, expected: list[object], starts: list[str]
) -> None:
    fake = FakeContext(answers, **{"list_providers": [PROVIDERS] * 4, **results})
    models = {"large": {"provider": "on", "model": "m"}, "small": {"provider": "on", "model": "p"}}
    fake.config = {"models": models}
    await ModelPicker(fake.context).choose_model()
    assert fake.entries() == expected
    lists = shown(fake)
    assert [seen[4] for seen in lists] == starts
    for seen, marks in zip(lists, [[c.mark for c in d._choices] for d in fake.dialogs if hasattr(d, "_choices")],
                           strict=True):  # fmt: skip
        assert seen[1:4] == (["on/m", "on/p", "off/", "away/", "off/x", "away/y"], pickers._MODEL_KEYS,
                             ("tab", "ctrl+e"))  # fmt: skip
        assert marks[:2] == (["●", ""] if "large" in str(seen[0]) else ["", "●"])
    for asked in fake.dialogs:
        if hasattr(asked, "_is_secret"):
            hint = "The server stores it and never shows it. You can set OFF_KEY instead."
            assert asked._is_secret
            assert (asked._hint, asked._value) == (hint if asked._title.endswith("Off") else "", "")


@pytest.mark.parametrize(
    ("large", "answer", "expected"),
    [
        ({"model": "m", "provider": "on"}, None, []),
        ({"model": "m", "provider": "on"}, "high", ["high", True, "high"]),
        ({"model": "m", "provider": "on"}, "on", ["", True, "on"]),
        ({"model": "m", "provider": "on", "reasoning_effort": "high", "think": True}, "", ["", False, "default"]),
        ({"model": "p", "provider": "on"}, None, "p has no adjustable reasoning effort."),
        ({"model": "m", "provider": "off"}, None, "m has no adjustable reasoning effort."),
        (None, None, "This model has no adjustable reasoning effort."),
    ],
)
async def test_list_of_reasoning_efforts(large: Any, answer: str | None, expected: Any) -> None:  # noqa: ANN401
    fake = FakeContext((None if answer is None else pick(answer),), list_providers=[PROVIDERS])
    fake.config = {"models": {"large": large}} if large else {}
    await ModelPicker(fake.context).choose_effort()
    if isinstance(expected, str):
        assert fake.entries() == [GET, ("notice", expected)]
        return
    log = fake.entries()
    assert log[:2] == [GET, dialog("Picker", "Reasoning effort of m")]
    assert shown(fake)[0][1] == ["", "low", "high"]
    assert shown(fake)[0][4] == large.get("reasoning_effort", "")
    if not expected:
        assert len(log) == 2
        return
    effort, think, word = expected
    choice = SelectedModel("m", "on", reasoning_effort=effort, think=think)
    word = "the model's default" if word == "default" else word
    assert log[2:] == [("config_model", ConfigModelRequest("large", choice)), ("notice", f"Reasoning effort: {word}")]


async def test_effort_that_could_not_be_stored() -> None:
    fake = FakeContext((pick(""),), list_providers=[PROVIDERS], config_model=NO)
    fake.config = {"models": {"large": {"model": "m", "provider": "on", "think": True}}}
    await ModelPicker(fake.context).choose_effort()
    assert fake.entries()[3:] == [ERROR]
    assert shown(fake)[0][4] == "on"
    fake = FakeContext((), list_providers=NO)
    await ModelPicker(fake.context).choose_effort()
    assert fake.entries() == [GET, ERROR]


# Jobs and changed files.

JOB = JobInfo("j1", SessionId("s"), RunId("r"), "make  all", "", "/p", (NOW - 60) * 1000)
DONE = msgspec.structs.replace(JOB, id="j2", state="completed", exit_code=0, ended_at=(NOW - 50) * 1000)
FAILED = msgspec.structs.replace(DONE, id="j3", exit_code=2)
GET_JOBS, JOB_LIST = ("list_jobs",), dialog("Picker", "Background jobs")


@pytest.mark.parametrize(
    ("answers", "results", "expected", "text"),
    [
        ((), {"list_jobs": NO}, [GET_JOBS, ERROR], ""),
        ((None,), {}, [GET_JOBS, JOB_LIST], ""),
        ((pick("", "ctrl+x"),), {}, [GET_JOBS, JOB_LIST], ""),
        ((pick("j1", "ctrl+x"), None), {}, [GET_JOBS, JOB_LIST, ("kill_job", "j1"), GET_JOBS, JOB_LIST], ""),
        ((pick("j1", "ctrl+x"), None), {"kill_job": NO},
         [GET_JOBS, JOB_LIST, ("kill_job", "j1"), ERROR, GET_JOBS, JOB_LIST], ""),
        ((pick("j2"), None), {"job_output": NO},
         [GET_JOBS, JOB_LIST, ("job_output", "j2"), ERROR, GET_JOBS, JOB_LIST], ""),
        *[
            ((pick("j2"), None, None), {"job_output": JobOutput(DONE, out, err)},
             [GET_JOBS, JOB_LIST, ("job_output", "j2"), dialog("PagerScreen", "make  all"), GET_JOBS, JOB_LIST], text)
            for out, err, text in (
                ("", "", "No output yet."), ("a", "", "a"), ("", "b", "b"), ("a", "b", "a\nb"),
            )
        ],
    ],
)  # fmt: skip
async def test_list_of_jobs(answers: tuple[object, ...], results: Json, expected: list[object], text: str) -> None:
    fake = FakeContext(answers, **{"list_jobs": (JOB, DONE, FAILED), **results})
    await WorkspacePicker(fake.context).choose_job()
    assert fake.entries() == expected
    for seen in shown(fake):
        values = ["j1", "j2", "j3"]
        assert seen == ("Background jobs", values, pickers._JOB_KEYS, ("ctrl+x",), "", "There are no jobs.")
    for asked in fake.dialogs:
        if hasattr(asked, "_choices"):
            assert [(item.title, item.detail, item.mark) for item in asked._choices] == [
                ("make all", f"j1 · running · {format_duration(60_000)}", "●"),
                ("make all", f"j2 · completed · exit code 0 · {format_duration(10_000)}", "✓"),
                ("make all", f"j3 · completed · exit code 2 · {format_duration(10_000)}", "✗"),
            ]
        else:
            assert (asked._text, asked._title) == (text, "make  all")


VERSIONS = (version("/p/a.py", 0, "1", 1), version("/p/a.py", 1, "2", 5), version("/p/b", 0, "", 1),
            version("/p/b", 1, "1\n2", 9))  # fmt: skip
HISTORY, CHANGES = ("list_history", "s"), dialog("Picker", "Changed files")
UNDO = UndoRequest("/p/a.py", session_id=SessionId("s"))
FORCED = msgspec.structs.replace(UNDO, force=True)
RESTORED = UndoReport((UndoneFile("/p/a.py", "restored", 0),), True)
REFUSED = UndoReport((UndoneFile("/p/x", "unchanged", 0), UndoneFile("/p/a.py", "refused", 0, "", "It was edited.")),
                     False)  # fmt: skip
DIFF = dialog("DiffScreen", "a.py")
ASKED = dialog("Confirm", "The file has changed since.")
SAID = ("notice", "a.py: restored")


@pytest.mark.parametrize(
    ("answers", "results", "expected"),
    [
        ((), {"list_history": NO}, [HISTORY, ERROR]),
        ((None,), {}, [HISTORY, CHANGES]),
        ((pick("/p/a.py"), None, None), {}, [HISTORY, CHANGES, DIFF, HISTORY, CHANGES]),
        ((pick("/p/a.py"), "undo", None), {"undo_changes": RESTORED},
         [HISTORY, CHANGES, DIFF, ("undo_changes", UNDO), SAID, HISTORY, CHANGES]),
        ((pick("/p/a.py"), "undo", None), {"undo_changes": NO},
         [HISTORY, CHANGES, DIFF, ("undo_changes", UNDO), ERROR, HISTORY, CHANGES]),
        ((pick("/p/a.py"), "undo", False, None), {"undo_changes": REFUSED},
         [HISTORY, CHANGES, DIFF, ("undo_changes", UNDO), ASKED, HISTORY, CHANGES]),
        ((pick("/p/a.py"), "undo", True, None), {"undo_changes": [REFUSED, RESTORED]},
         [HISTORY, CHANGES, DIFF, ("undo_changes", UNDO), ASKED, ("undo_changes", FORCED), SAID, HISTORY, CHANGES]),
        ((pick("/p/a.py"), "undo", True, None), {"undo_changes": [REFUSED, NO]},
         [HISTORY, CHANGES, DIFF, ("undo_changes", UNDO), ASKED, ("undo_changes", FORCED), ERROR, HISTORY, CHANGES]),
    ],
)  # fmt: skip
async def test_list_of_changed_files(answers: tuple[object, ...], results: Json, expected: list[object]) -> None:
    fake = FakeContext(answers, **{"list_history": VERSIONS, **results})
    await WorkspacePicker(fake.context).choose_change()
    assert fake.entries() == expected
    for at, seen in enumerate(shown(fake)):
        start = "/p/a.py" if at else ""
        assert seen == ("Changed files", ["/p/b", "/p/a.py"], pickers._CHANGE_KEYS, (), start, "No file has changed.")
    for asked in fake.dialogs:
        if hasattr(asked, "_can_undo"):
            assert asked._can_undo
            assert [(line.kind, line.text) for line in asked._lines] == [("removed", "1"), ("added", "2")]
        elif hasattr(asked, "_yes"):
            assert (asked._text, asked._yes) == ("It was edited.", "undo it anyway")
        else:
            assert [item.title for item in asked._choices] == ["b", "a.py"]


async def test_changed_files_without_a_session() -> None:
    fake = FakeContext()
    fake.connection.session = None
    await WorkspacePicker(fake.context).choose_change()
    assert fake.entries() == [("notice", "This session has not changed any files yet.")]


def test_entry_of_a_changed_file() -> None:
    old, new = version("/p/a", 0, "1\n2", 1), version("/p/a", 1, "1\n3\n4", 1)
    missing = [msgspec.structs.replace(item, is_missing=True, content="") for item in (old, new)]
    rows = [(old, new, "+2 -1"), (missing[0], new, "+3 -0  new"), (old, missing[1], "+0 -2  removed"),
            (missing[0], missing[1], "+0 -0  removed")]  # fmt: skip
    for first, last, detail in rows:
        assert pickers._change_item("/p/a", first, last, "/p/") == PickerItem("/p/a", "a", detail)


# Themes and auto-approval.


async def test_list_of_themes() -> None:
    own = THEMES[0].name
    themes = {"zebra": Theme("zebra", "#000000"), "ant": Theme("ant", "#000000", dark=False), own: THEMES[0]}
    fake = FakeContext((pick("ant"), None), config_set=[None, NO])
    picker = WorkspacePicker(fake.context)
    assert [await picker.choose_theme(themes, "zebra") for _ in range(2)] == ["ant", None]
    assert fake.entries() == [dialog("Picker", "Themes")] * 2
    assert (shown(fake)[0][1], shown(fake)[0][4]) == ([own, "ant", "zebra"], "zebra")
    assert [item.detail for item in fake.dialogs[0]._choices][1:] == ["light", "dark"]
    for error in ([], [ERROR]):
        await picker.store_theme("ant")
        assert fake.entries() == [("config_set", "options.tui.theme", "ant"), *error]


ASK, ALLOW = ("notice", "Tools ask for approval again."), (
    "notice", "Tools act without asking now.", {"severity": "warning"}
)  # fmt: skip
OFF_NOW, ON_NOW = SkipPermissions(False), SkipPermissions(True)
CONFIRM = dialog("AutoApprove")


@pytest.mark.parametrize(
    ("skip", "yolo", "answers", "set_skip", "expected", "after"),
    [
        (NO, True, (), None, [ERROR], True),
        (OFF_NOW, False, (False,), None, [CONFIRM], False),
        (OFF_NOW, False, (True,), None, [CONFIRM, ("set_skip", {"skip": True}), ALLOW], False),
        (OFF_NOW, False, (True,), NO, [CONFIRM, ("set_skip", {"skip": True}), ERROR], False),
        (ON_NOW, False, (), None, [("set_skip", {"skip": False}), ASK], False),
        (ON_NOW, True, (), NO, [("set_skip", {"skip": False}), ERROR], True),
        (OFF_NOW, True, (), None, [ASK], False),
        (ON_NOW, True, (), None, [("set_skip", {"skip": False}), ASK], False),
    ],
)
async def test_auto_approval(
    skip: object, yolo: bool, answers: tuple[object, ...], set_skip: object, expected: list[object], after: bool
) -> None:
    fake = FakeContext(answers, get_skip=skip, set_skip=set_skip)
    fake.connection.yolo = yolo
    await WorkspacePicker(fake.context).toggle_auto_approve()
    assert fake.entries() == [("get_skip",), *expected]
    assert fake.connection.yolo == after
    assert fake.frames == (expected[-1] in (ASK, ALLOW))


# Extensions.

SKILLS = (SkillInfo("/k", "write", "Write  it.", "", "user", True),)
MCP = McpInfo("db", "error", NEVER, error="No\n route", tools=("mcp_db_ask", "mcp_db_tell"))
LSP = LspInfo("py", LspState.ERROR, NEVER, "It is missing.", 2)
TEXT = SkillText(b"# Write\xff", None)  # type: ignore[arg-type]
STATES = ({"path": "/bad", "state": "error", "error": "no name"}, {"path": "/k", "state": ""})
GET_ALL = [("list_skills",), ("mcp_states",), ("list_lsps",)]
OPENED = [*GET_ALL, dialog("Picker", "Extensions")]


def restarted(name: str) -> tuple[str, str]:
    return ("notice", f"{name} is restarting.")


@pytest.mark.parametrize(
    ("picked", "results", "expected", "text"),
    [
        (pick("mcp db", "ctrl+r"), {}, [("mcp_restart", "db"), restarted("db")], ""),
        (pick("mcp db", "ctrl+r"), {"mcp_restart": NO}, [("mcp_restart", "db"), ERROR], ""),
        (pick("lsp py", "ctrl+r"), {}, [("restart_lsps", "py"), restarted("py")], ""),
        (pick("lsp py", "ctrl+r"), {"restart_lsps": NO}, [("restart_lsps", "py"), ERROR], ""),
        (pick("skill write", "ctrl+r"), {},
         [("notice", "A skill is a text file; changes take effect by themselves.")], ""),
        (pick("mcp db"), {"mcp_log": SimpleNamespace(text="line")},
         [("mcp_log", "db"), dialog("PagerScreen", "db")],
         "No\n route\n\nTools:\n  mcp_db_ask\n  mcp_db_tell\n\nLog:\nline"),
        (pick("mcp gone"), {"mcp_log": SimpleNamespace(text=" ")},
         [("mcp_log", "gone"), dialog("PagerScreen", "gone")], "The log is empty."),
        (pick("mcp db"), {"mcp_log": NO}, [("mcp_log", "db"), ERROR, dialog("PagerScreen", "db")],
         "No\n route\n\nTools:\n  mcp_db_ask\n  mcp_db_tell\n\nThe log is empty."),
        (pick("lsp py"), {"lsp_log": SimpleNamespace(text="trace")},
         [("lsp_log", "py"), dialog("PagerScreen", "py")], "It is missing.\n\nLog:\ntrace"),
        (pick("lsp py"), {"lsp_log": NO},
         [("lsp_log", "py"), ERROR, dialog("PagerScreen", "py")], "It is missing.\n\nThe log is empty."),
        (pick("skill write"), {"read_skill": TEXT}, [("read_skill", "write"), dialog("PagerScreen", "write")],
         "# Write\ufffd"),
        (pick("skill write"), {"read_skill": NO}, [("read_skill", "write"), ERROR], ""),
        (pick("broken /bad"), {}, [dialog("PagerScreen", "/bad")], "no name"),
        (pick("broken /gone"), {}, [dialog("PagerScreen", "/gone")], "The file no longer exists."),
    ],
)  # fmt: skip
async def test_list_of_extensions(picked: PickerResult, results: Json, expected: list[object], text: str) -> None:
    shows_text = any(entry[0] == "dialog" for entry in expected)  # type: ignore[index]
    answers = (picked, *((None,) if shows_text else ()), None)
    states = {"list_skills": SKILLS, "mcp_states": {"db": MCP}, "list_lsps": {"py": LSP}}
    fake = FakeContext(answers, **states, **results)
    fake.connection.view.workspace = WorkspaceBody("w", "/p", skills=STATES)  # type: ignore[arg-type]
    await ExtensionPicker(fake.context).choose_extension()
    assert fake.entries() == [*OPENED, *expected, *OPENED]
    values = ["mcp db", "lsp py", "skill write", "broken /bad"]
    for at, seen in enumerate(shown(fake)):
        start = picked.value if at else ""
        keys = (pickers._EXTENSION_KEYS, ("ctrl+r",))
        assert seen == ("Extensions", values, *keys, start, pickers._NO_EXTENSIONS)
    if shows_text:
        (screen,) = [item for item in fake.dialogs if not hasattr(item, "_choices")]
        assert screen._text == text
        assert screen._is_log == (picked.value[:3] in ("mcp", "lsp"))


@pytest.mark.parametrize(
    ("answers", "results", "expected"),
    [
        ((), {"list_skills": NO}, [("list_skills",), ERROR]),
        ((None,), {"mcp_states": {}, "list_lsps": {}}, OPENED),
        ((pick("", "ctrl+r"),), {"mcp_states": {}, "list_lsps": {}}, OPENED),
        ((None,), {"mcp_states": NO}, [("list_skills",), ("mcp_states",), dialog("Picker", "Extensions")]),
        ((None,), {"mcp_states": {}, "list_lsps": NO}, OPENED),
    ],
)
async def test_closed_list_of_extensions(answers: tuple[object, ...], results: Json, expected: list[object]) -> None:
    fake = FakeContext(answers, **{"list_skills": (), **results})
    await ExtensionPicker(fake.context).choose_extension()
    assert fake.entries() == expected


def test_entries_of_extensions() -> None:
    mcp = McpInfo("db", "connected", NEVER, tool_count=1, prompt_count=2)
    lsp = LspInfo("py", LspState.READY, NEVER)
    rows: list[tuple[PickerItem, tuple[str, str, str]]] = [
        (pickers.mcp_item(mcp), ("connected · 1 tool · 2 prompts", "●", "MCP servers")),
        (pickers.mcp_item(McpInfo("db", "disabled", NEVER, resource_count=3)),
         ("disabled · 3 resources", "○", "MCP servers")),
        (pickers.mcp_item(McpInfo("db", "starting", NEVER)), ("starting", "◌", "MCP servers")),
        (pickers.mcp_item(McpInfo("db", "needs auth", NEVER, "log\nin", 1)),
         ("needs login · log in", "!", "MCP servers")),
        (pickers.mcp_item(MCP), ("error · No route", "✗", "MCP servers")),
        (pickers.lsp_item(lsp), ("ready", "●", "Language servers")),
        (pickers.lsp_item(msgspec.structs.replace(lsp, diagnostic_count=1)),
         ("ready · 1 diagnostic", "●", "Language servers")),
        (pickers.lsp_item(LSP), ("error · 2 diagnostics · It is missing.", "✗", "Language servers")),
        (pickers.lsp_item(LspInfo("py", LspState.STARTING, NEVER)), ("starting", "◌", "Language servers")),
        (pickers.lsp_item(LspInfo("py", LspState.STOPPED, NEVER)), ("stopped", "○", "Language servers")),
    ]  # fmt: skip
    for item, expected in rows:
        assert (item.detail, item.mark, item.group) == expected
        assert item.value == f"{'mcp' if item.title == 'db' else 'lsp'} {item.title}"
    assert pickers.skill_items(SKILLS, STATES) == [
        PickerItem("skill write", "write", "user · Write it.", "●", "Skills"),
        PickerItem("broken /bad", "/bad", "no name", "✗", "Skills"),
    ]
