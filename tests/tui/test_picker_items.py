"""Entries of the lists of models, reasoning levels, sessions, runs and changed files: order, marks and facts."""

from typing import Any

import msgspec

from client.scripted_server import session_event
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import SelectedModel
from holdfast.tui import pickers
from holdfast.tui.block_render import format_duration
from holdfast.tui.screens.picker import PickerItem
from planting import CLAUSES, assert_every_clause_decides

PROVIDERS: list[dict[str, Any]] = [
    {"id": "off", "name": "Off", "lack": "Off needs a key: set OFF_KEY, or run `holdfast login off`.",
     "models": [{"id": "m"}, {"id": "n", "name": "N"}]},
    {"id": "on", "models": [
        {"id": "m", "name": "M", "context_window": 8_000, "cost_per_1m_in": 0.5, "cost_per_1m_out": 2},
        {"id": "n", "cost_per_1m_in": 1}, {"id": "o", "cost_per_1m_out": 1, "context_window": 0},
    ]},
    {"id": "empty", "name": "Empty", "models": None, "lack": ""},
    {"id": "other", "name": "Other", "lack": "It is away."},
]  # fmt: skip


def check_models() -> None:
    for current in ("on/n", "off/n", ""):
        assert pickers.model_items(PROVIDERS, current) == [
            PickerItem("on/m", "M", "8k tokens · $0.5 in, $2 out", group="on"),
            PickerItem("on/n", "n", "$1 in, $0 out", "●" if current == "on/n" else "", group="on"),
            PickerItem("on/o", "o", group="on"),
            PickerItem("off/", "Off", "needs a key: set OFF_KEY", group="Not set up yet"),
            PickerItem("other/", "Other", "It is away", group="Not set up yet"),
            PickerItem("off/m", "m", "Off · not set up yet", group="Off", is_rare=True),
            PickerItem(
                "off/n", "N", "Off · not set up yet", "●" if current == "off/n" else "", "Off", current != "off/n"
            ),
        ]
    for id, expected in (("off", PROVIDERS[0]["lack"]), ("on", ""), ("empty", ""), ("unknown", "")):
        assert pickers.missing_requirement(PROVIDERS, id) == expected


def check_levels() -> None:
    def marks(facts: dict[str, Any], effort: str = "", *, think: bool = False) -> list[tuple[str, str, str]]:
        items = pickers.effort_items(facts, SelectedModel("m", "p", reasoning_effort=effort, think=think))
        return [(item.value, item.detail, item.mark) for item in items]

    levels = {"can_reason": True, "reasoning_levels": ["low", "high"], "default_reasoning_effort": "low"}
    assert marks({}) == marks({"can_reason": False, "reasoning_levels": ["low"]}) == []
    assert marks(levels) == [("", "low", "●"), ("low", "", ""), ("high", "", "")]
    assert marks(levels, "high") == [("", "low", ""), ("low", "", ""), ("high", "", "●")]
    assert marks({"can_reason": True}) == [("", "", "●"), ("on", "", "")]
    assert marks({"can_reason": True}, think=True) == [("", "", ""), ("on", "", "●")]


def check_sessions() -> None:
    session = session_event("s").change.object
    for fields, is_shown, mark, facts in (
        ({}, False, "", "0 messages"),
        ({"is_busy": True, "attached_clients": 2}, False, "●", "2 attached"),
        ({"attached_clients": 1}, True, "", "0 messages"),
        ({"attached_clients": 2}, True, "◉", "1 attached"),
        ({"message_count": 7}, False, "", "7 messages"),
    ):
        changed = msgspec.structs.replace(session, **fields)
        item = pickers._session_item(changed, 1_000, is_shown=is_shown)
        assert (item.value, item.title, item.mark) == ("s", "title of s", mark)
        assert facts in item.detail
        assert all(item.detail.split(" · "))
        assert ("attached" in item.detail) == ("attached" in facts)
    seconds = msgspec.structs.replace(session, updated_at=10**9)
    milliseconds = msgspec.structs.replace(session, updated_at=10**12)
    ages = [pickers._session_item(item, 10**9 + 120, is_shown=False).detail for item in (seconds, milliseconds)]
    assert ages[0] == ages[1]


def check_runs() -> None:
    run = Run(RunId("r"), SessionId("s"), "active", "queue", 60_000, prompt=" do\n this ", started_at=70_000, number=1)
    ended = msgspec.structs.replace(run, state="ended", outcome="failed", error="no", ended_at=75_000)
    now = 190_000
    waiting = msgspec.structs.replace(run, state="waiting", started_at=0, prompt="", kind="summary")
    items = [pickers._run_item(item, now) for item in (run, ended, waiting)]
    assert [item.title for item in items] == ["do this", "do this", "summary"]
    assert [item.detail.split(" · ")[0] for item in items] == ["active", "failed", "waiting"]
    assert [len(item.detail.split(" · ")) for item in items] == [3, 4, 2]
    assert [item.mark for item in items] == ["●", pickers._RUN_MARKS["failed"], "●"]
    assert items[0].detail.split(" · ")[1] == format_duration(120_000)
    assert items[1].detail.split(" · ")[1] == format_duration(5_000)
    assert items[1].detail.endswith(" · no")
    assert len(pickers._run_item(msgspec.structs.replace(run, prompt="x" * 200), now).title) == 120


def version(path: str, number: int, content: str, at: int) -> FileVersion:
    return msgspec.convert(
        {"id": f"{path}{number}", "session_id": "s", "path": path, "content": content, "version": number,
         "created_at": at, "updated_at": at}, FileVersion,
    )  # fmt: skip


def check_files() -> None:
    versions = [
        version("a", 2, "3", 9), version("a", 0, "1", 1), version("a", 1, "2", 5), version("b", 0, "1", 2),
        version("b", 1, "2", 12), version("c", 0, "1", 3), version("c", 1, "1", 20), version("d", 0, "1", 30),
    ]  # fmt: skip
    found = pickers._changed_files(versions)
    assert [(path, first.version, last.version) for path, (first, last) in found.items()] == [("b", 0, 1), ("a", 0, 2)]


def check() -> None:
    for rows in (check_models, check_levels, check_sessions, check_runs, check_files):
        rows()


def test_every_mistake_in_the_entries_is_noticed() -> None:
    functions = [
        pickers.model_items, pickers.missing_requirement, pickers._name, pickers._reason, pickers._provider_models,
        pickers._context_window, pickers._prices, pickers.effort_items, pickers._session_item, pickers._run_item,
        pickers._changed_files,
    ]  # fmt: skip
    equivalent = {
        "session.updated_at > 10 ** 11 -> session.updated_at >= 10 ** 11": "a time between both units",
        "run.outcome or '' -> run.outcome": "neither has a mark",
    }
    assert_every_clause_decides(functions, check, equivalent, CLAUSES | {"comparison", "exit", "order"})
