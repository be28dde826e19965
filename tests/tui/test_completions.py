"""Commands, completions and notifications: each kind with its requests and effects."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.domain.extensions import CommandArgument, CommandInfo
from holdfast.domain.ids import RunId
from holdfast.tui import notifications
from holdfast.tui.notifications import AwayNotifier
from holdfast.tui.prompt_actions import CompletionController
from holdfast.tui.screens.picker import PickerResult
from holdfast.tui.slash_commands import COMMANDS
from tui.fake_context import NO, FakeContext
from tui.test_prompt_actions import FOCUS, Clock, PromptFixture, clock, run

__all__ = ["clock"]

Json = dict[str, Any]

# Completions and commands.

ARGUMENTS = (CommandArgument("env", required=True), CommandArgument("note"))
EXTENSIONS = (
    CommandInfo("deploy", "user", "Deploy it. Then more", arguments=ARGUMENTS),
    CommandInfo("ask", "mcp", hint="<question>"),
    CommandInfo("zap", "project", "\nFirst line.\nSecond"),
    CommandInfo("help", "project"),
)


@pytest.mark.parametrize(
    ("name", "answers", "expected"),
    [
        *[(command.name, (), [("action", command.action)]) for command in COMMANDS],
        ("zap", (), [("submit", "/zap")]),
        ("ask", (), [("composer.set_text", "/ask "), FOCUS]),
        ("gone", (), [("composer.set_text", "/gone "), FOCUS]),
        ("deploy", (None,), [("start", "_fill_in"), ("dialog", "Form", ""), FOCUS]),
        ("deploy", ({"env": "a b", "note": ""},),
         [("start", "_fill_in"), ("dialog", "Form", ""), FOCUS, ("submit", "/deploy 'env=a b'")]),
    ],
)  # fmt: skip
async def test_each_command(name: str, answers: tuple[object, ...], expected: list[object], clock: Clock) -> None:
    fixture = PromptFixture(answers, list_commands=EXTENSIONS)
    await fixture.commands.refresh()
    assert fixture.log() == [("list_commands",)]
    await fixture.commands.run(name)
    if answers:
        await fixture.fake.finish()
    assert fixture.log() == expected


async def test_list_of_commands(clock: Clock) -> None:
    fixture = PromptFixture((PickerResult("/zap"), None), list_commands=EXTENSIONS)
    await fixture.commands.choose()
    palette = ("dialog", "Picker", "Commands")
    assert fixture.log() == [("list_commands",), palette, ("submit", "/zap")]
    clock.now += 5
    await fixture.commands.choose()
    assert fixture.log() == [palette], "the list is reused for a while"
    items = [(item.value, item.title, item.detail) for item in fixture.fake.dialogs[0]._choices]
    own = [(f"/{item.name}", item.title, f"/{item.name}  {item.key}".rstrip()) for item in COMMANDS]
    assert items == [*own, ("/deploy", "/deploy", "Deploy it · user"), ("/ask", "/ask", "<question> · mcp"),
                     ("/zap", "/zap", "First line · project")]  # fmt: skip


async def test_commands_of_extensions_are_fetched_again(clock: Clock) -> None:
    fixture = PromptFixture(list_commands=[EXTENSIONS, NO, EXTENSIONS])
    for wait, asks, count in ((0.0, True, 1), (5.0, False, 1), (0.1, True, 0), (5.1, True, 1)):
        clock.now += wait
        await fixture.commands.refresh()
        assert fixture.log() == ([("list_commands",)] if asks else [])
        assert len(fixture.commands.completions("deploy")) == count
    fixture.fake.connection.is_open = False
    clock.now += 9
    await fixture.commands.refresh()
    assert fixture.log() == []
    names = [name for name, _ in fixture.commands.completions("E")]
    assert names[:2] == ["/effort", "/extensions"]
    assert len(names) == 10
    assert len(fixture.commands.completions("")) == 10
    assert fixture.commands.completions("zap") == [("/zap", "First line · project")]
    rows = (("/help", True), ("help", False), ("/zap", False), ("/help ", False))
    assert [fixture.commands.is_own(words) for words, _ in rows] == [expected for _, expected in rows]


async def test_completions(clock: Clock) -> None:
    files = [SimpleNamespace(files=["src/app.py", "src/other.py"]), NO, SimpleNamespace(files=["new.py"])]
    fixture = PromptFixture(list_commands=EXTENSIONS, list_files=files)
    controller = CompletionController(fixture.fake.context, fixture.commands)
    fake = fixture.fake

    async def offered(kind: str, letters: str) -> list[tuple[object, ...]]:
        controller.complete(kind, letters)
        if kind:
            await fake.finish()
        return fake.entries("start", "cancelled")

    assert await offered("", "") == [("completer.offer", ())]
    assert not fake.composer.completes
    assert fake.frames == 1
    zap = [("/zap", "First line · project")]
    first: tuple[object, ...] = ("completer.offer", [])
    assert await offered("command", "zap") == [first, ("list_commands",), ("completer.offer", zap)]
    assert fake.composer.completes
    app = ("completer.offer", [("src/app.py", "")])
    assert await offered("file", "app") == [("list_files",), app]
    clock.now += 20
    assert await offered("file", "app") == [app]
    clock.now += 0.1
    assert await offered("file", "app") == [("list_files",), app], "a failed request keeps the files"
    clock.now += 0.1
    assert await offered("file", "app") == [app]
    fake.connection.is_open = False
    clock.now += 21
    assert await offered("file", "app") == [app]
    fake.connection.is_open = True
    clock.now += 21
    assert await offered("file", "new") == [("list_files",), ("completer.offer", [("new.py", "")])]
    for kind, work in (("command", "_offer_commands"), ("file", "_offer_files")):
        controller.complete(kind, "")
        await fake.finish()
        group = {"group": "completion", "is_exclusive": True}
        assert fake.entries()[:2] == [("cancelled", "completion"), ("start", work, group)]


async def test_keys_of_the_list_of_completions() -> None:
    fixture = PromptFixture()
    fake = fixture.fake
    controller = CompletionController(fake.context, fixture.commands)
    rows = {"up": "action_cursor_up", "down": "action_cursor_down", "enter": "pick", "tab": "pick"}
    for key, method in rows.items():
        controller.press(key)
        assert fake.entries() == [(f"completer.{method}",)]
    fake.composer.completes = True
    controller.press("escape")
    assert (fake.entries(), fake.composer.completes) == ([("completer.offer", ())], False)
    for value, more in (("src/a", []), ("/help", [("action", "help")])):
        fake.composer.completes = True
        await controller.accept(value)
        assert (fake.entries(), fake.composer.completes) == ([("composer.complete", value), *more], False)


# Notifications.


def test_ended_runs_are_reported_to_an_absent_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "terminal_sequence", lambda style, words, _: f"{style}:{words}")
    rows: list[tuple[Json, str]] = [
        ({"outcome": "completed"}, "Completed: do it"), ({"outcome": "failed"}, "Failed: do it"),
        ({"outcome": "interrupted"}, "Interrupted: do it"), ({"outcome": "cancelled"}, ""), ({}, ""),
        ({"outcome": "completed", "parent_run_id": RunId("p")}, ""),
        ({"outcome": "completed", "folded_into": RunId("p")}, ""),
        ({"outcome": "failed", "prompt": "x" * 61}, f"Failed: {'x' * 60}"),
    ]  # fmt: skip
    for fields, expected in rows:
        for is_away in (True, False):
            fake = FakeContext()
            notifier = AwayNotifier(fake.context)
            notifier.is_away = is_away
            fake.connection.view.runs = {RunId("a"): run("a", **{"prompt": "do it", **fields})}
            fake.connection.ended_runs = ["a", "unknown"]
            notifier.report_ended_runs()
            assert fake.entries() == ([("terminal", f"auto:{expected}")] if expected and is_away else [])
            assert fake.connection.ended_runs == []


def test_ways_to_notify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "terminal_sequence", lambda style, words, _: "" if style == "off" else style)
    monkeypatch.setattr(
        notifications, "desktop_command", lambda words, *_: ("show", words) if words != "none" else None
    )
    calls: list[object] = []

    def show(command: tuple[str, ...], **_: object) -> None:
        calls.append(command)
        if command[1] == "fails":
            raise subprocess.CalledProcessError(1, "show")

    monkeypatch.setattr(subprocess, "run", show)
    rows: list[tuple[str, str, list[object]]] = [
        ("bell", "x", [("terminal", "bell")]), ("off", "x", []), ("native", "x", [("thread",)]),
        ("native", "fails", [("thread",), ("terminal", "native")]), ("native", "none", [("terminal", "native")]),
        ("", "x", [("terminal", "auto")]),
    ]  # fmt: skip
    for style, words, expected in rows:
        fake = FakeContext()
        fake.config = {"options": {"notifications": style}}
        notifier = AwayNotifier(fake.context)
        notifier.is_away = True
        notifier.notify(words)
        assert fake.entries() == expected, (style, words)
    assert calls == [("show", "x"), ("show", "fails")]
