"""Keys of the composer, of completions and of the queue, and the owner of each key: all rows share one small app."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult

from holdfast.client.key_focus import Focus
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.tui.app import HoldfastApp
from holdfast.tui.app_context import AppContext
from holdfast.tui.approvals import ApprovalController
from holdfast.tui.key_hints import NEWLINE_KEYS, QUEUE_KEYS
from holdfast.tui.widgets import composer as composer_module
from holdfast.tui.widgets.composer import Completer, Composer
from holdfast.tui.widgets.queue_panel import QueuePanel
from tui.fake_context import FakeContext, Recorder
from tui.test_drawing import run


class SmallApp(App[None]):
    """The widgets under test, without a connection."""

    def compose(self) -> ComposeResult:
        yield QueuePanel(id="queue")
        yield Completer(id="completer")
        yield Composer(id="composer")


def _fields(message: object) -> tuple[object, ...]:
    values = [value for name, value in vars(message).items() if not name.startswith("_") and name not in ("time",)]
    return (type(message).__name__, *[getattr(value, "run_id", value) for value in values])


def _record(widget: Any, patch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:  # noqa: ANN401
    posted: list[tuple[object, ...]] = []
    own = type(widget).__qualname__

    def post(message: object) -> bool:
        if type(message).__qualname__.startswith(own):
            posted.append(_fields(message))
        return True

    patch.setattr(widget, "post_message", post)
    return posted


SENT = ["one", "two"]
COMPOSER: list[tuple[dict[str, Any], str, list[tuple[object, ...]], str]] = [
    # State, key, messages, text afterwards.
    ({"text": " hi "}, "enter", [("Sent", "hi", False)], ""),
    ({"text": "hi"}, QUEUE_KEYS[0], [("Sent", "hi", True)], ""),
    ({"text": "hi"}, QUEUE_KEYS[-1], [("Sent", "hi", True)], ""),
    ({"text": " "}, "enter", [], " "),
    ({"files": True}, "enter", [("Sent", "", False)], ""),
    ({"text": "hi"}, NEWLINE_KEYS[0], [], "hi\n"),
    ({"text": "hi"}, NEWLINE_KEYS[-1], [], "hi\n"),
    ({"text": "hi"}, "ctrl+v", [("ImageRequested",)], "hi"),
    ({}, "backspace", [("Emptied",)], ""),
    ({"text": "hi"}, "backspace", [], "h"),
    ({"completes": True, "text": "/h"}, "enter", [("CompletionKey", "enter")], "/h"),
    ({"completes": True, "text": "/h"}, "up", [("CompletionKey", "up")], "/h"),
    ({"completes": True, "text": "/h"}, "down", [("CompletionKey", "down")], "/h"),
    ({"completes": True, "text": "/h"}, "escape", [("CompletionKey", "escape")], "/h"),
    ({"text": "draft"}, "up", [], "two"),
    ({"text": "draft", "ups": 1}, "up", [], "one"),
    ({"text": "draft", "ups": 2}, "up", [], "one"),
    ({"text": "draft", "ups": 2}, "down", [], "two"),
    ({"text": "draft", "ups": 1}, "down", [], "draft"),
    ({"text": "draft"}, "down", [], "draft"),
    ({"text": "a\nb"}, "up", [], "a\nb"),
]


async def _check_composer(app: SmallApp, patch: pytest.MonkeyPatch) -> None:
    composer = app.query_one(Composer)
    posted = _record(composer, patch)
    for state, key, messages, after in COMPOSER:
        composer.set_sent_prompts([*SENT])
        composer.completes = False
        composer.set_text(state.get("text", ""))
        composer.has_attachments = state.get("files", False)
        for _ in range(state.get("ups", 0)):
            await composer._on_key(events.Key("up", None))
        composer.completes = state.get("completes", False)
        posted.clear()
        await composer._on_key(events.Key(key, None))
        seen = [item for item in posted if item[0] not in ("Changed", "SelectionChanged", "Completing")]
        if key == "backspace" and state:
            composer.action_delete_left()
        assert (seen, composer.text) == (messages, after), (state, key)
        if messages and messages[0][0] == "Sent" and messages[0][1]:
            assert composer.sent_prompts == [*SENT, messages[0][1]]
    for before, restored, after in (("", "x", "x"), ("  ", "x", "x"), ("y", "x", "x\n\ny")):
        composer.set_text(before)
        composer.restore(restored)
        assert composer.text == after
    for before, value, after in (("see @a", "src/a.py", "see src/a.py "), ("@", "a b", '"a b" '), ("/he", "/help", "")):
        composer.set_text(before)
        composer.complete(value)
        assert composer.text.replace("@", "") == after
    for before, kind in (
        ("/", ("command", "")), ("/he", ("command", "he")), ("/he x", ("", "")), ("a\n/he", ("", "")),
        ("see @sr", ("file", "sr")), ("@", ("file", "")), ("a@b", ("", "")), ("", ("", "")),
    ):  # fmt: skip
        composer.set_text(before)
        posted.clear()
        composer.on_text_area_changed()
        assert posted == [("Completing", *kind)], before
        assert not composer.has_class("shell")
    composer.set_text("!ls")
    composer.on_text_area_changed()
    assert composer.has_class("shell")
    patch.setattr(composer_module, "pasted_path", lambda text: "/i.png" if text == "i" else None)
    long, wide = "x\n" * 10, "x" * 1000
    for pasted, expected in (("short", []), ("i", [("Pasted", "/i.png", True)]), (long, []),
                             (long + "x", [("Pasted", long + "x", False)]), (wide, []),
                             (wide + "x", [("Pasted", wide + "x", False)])):  # fmt: skip
        event = events.Paste(pasted)
        posted.clear()
        await composer._on_paste(event)
        assert posted == expected
        assert event._no_default_action == bool(expected)


async def _check_completer(app: SmallApp, patch: pytest.MonkeyPatch) -> None:
    completer = app.query_one(Completer)
    posted = _record(completer, patch)
    completer.pick()
    completer.offer([("/a", "first"), ("/long", "")])
    assert (completer.display, completer.highlighted) == (True, 0)
    assert [str(cast(Text, option.prompt)) for option in completer.options] == ["/a     first", "/long  "]
    completer.action_cursor_down()
    completer.pick()
    assert [item for item in posted if item[0] == "Picked"] == [("Picked", "/long")]
    assert (completer.display, completer.option_count) == (False, 0)
    completer.pick()
    assert len([item for item in posted if item[0] == "Picked"]) == 1


async def _check_queue(app: SmallApp, patch: pytest.MonkeyPatch) -> None:
    queue = app.query_one(QueuePanel)
    posted = _record(queue, patch)
    queue.action_request("edit")
    queue.action_move(1)
    assert (posted, queue.display) == ([], False)

    def shown() -> list[str]:
        return str(queue.render()).split("\n")

    runs = [run(str(at), "waiting", client_id="me" if at else "you") for at in range(7)]
    queue.show(runs[:1], "you")
    assert shown() == ["⋯ do 0"]
    queue.show(runs[:5], "me")
    assert shown() == ["⋯ do 0  from another client", *[f"⋯ do {at}" for at in range(1, 5)]]
    queue.show(runs, "me")
    for moves, marked, first in ((0, 0, 0), (2, 2, 0), (1, 3, 1), (9, 6, 2), (-1, 5, 2), (-9, 0, 0)):
        queue.action_move(moves)
        posted.clear()
        queue.action_request("now")
        assert posted == [("ActionRequested", "now", str(marked), marked)]
        lines = shown()
        assert [line.split()[2] for line in lines[:5]] == [str(at) for at in range(first, first + 5)]
        assert lines[5:] == ["  7 prompts are queued"]
    for y, marked in ((0, 0), (4, 4), (5, 4)):
        queue.on_click(cast(Any, SimpleNamespace(y=y)))
        assert queue._position() == marked
        queue.action_move(-9 if y == 0 else 0)
    posted.clear()
    queue.action_leave()
    assert posted == [("Left",)]
    queue.show((), "me")
    assert (queue.display, shown()) == (False, [""])
    queue.show([msgspec.structs.replace(run("s", "waiting", prompt=" "), delivery="steer")], "me")
    assert shown() == ["↳ (attachments)"]


async def test_keys_of_the_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    app = SmallApp()
    async with app.run_test():
        for check in (_check_composer, _check_completer, _check_queue):
            with monkeypatch.context() as patch:
                await check(app, patch)


# The owner of a key.


def test_owner_of_each_key() -> None:
    """Only arrows and Enter of a settled request belong to it; Tab moves there unless it accepts a completion."""
    rows: list[tuple[dict[str, Any], str, bool, str]] = [
        # State, key, handled, effect on the panel or the focus.
        ({}, "x", False, ""), ({}, "tab", True, "focus"), ({"completes": True}, "tab", False, ""),
        ({"dialog": True}, "tab", False, ""), ({"elsewhere": True}, "tab", False, ""),
        ({"none": True}, "tab", False, ""), ({}, "enter", False, ""), ({"settled": True}, "enter", True, "enter"),
        ({"settled": True}, "left", True, "left"), ({"settled": True}, "x", False, ""),
        ({"settled": True, "dialog": True}, "enter", False, ""),
        ({"settled": True, "elsewhere": True}, "enter", False, ""),
        ({"settled": True, "unmounted": True}, "enter", False, ""),
    ]  # fmt: skip
    for state, key, is_handled, effect in rows:
        fake: Any = FakeContext()
        fake.has_dialog, fake.is_mounted = state.get("dialog", False), not state.get("unmounted")
        fake.composer.has_focus, fake.composer.completes = not state.get("elsewhere"), state.get("completes", False)
        fake.main_screen = Recorder(fake.log, "screen", focused=None)
        acted: list[str] = []
        controller = ApprovalController(fake.context, cast(Any, None), lambda: 100.0)
        fake.set_timer = lambda *_: SimpleNamespace(stop=lambda: None)
        if not state.get("none"):
            controller.panel = cast(Any, SimpleNamespace(act=acted.append, show_state=lambda _: False))
            controller.keyboard = Focus(request="r", is_settled=state.get("settled", False))
        event = events.Key(key, key if len(key) == 1 else None)
        assert controller.route_key(event) == is_handled, (state, key)
        focused = ["focus"] if any(entry[0] == "screen.set_focus" for entry in fake.log) else []
        assert acted + focused == [effect] * bool(effect), (state, key)
        if not state.get("unmounted"):
            assert controller.keyboard.last_key_at > 0, "every key press restarts the wait"


def test_focus_moves() -> None:
    app = HoldfastApp(ServerLocation(ServerAddress(path="/none"), "", can_be_started=False), "/p")
    rows: list[tuple[bool, bool, bool, int | None, list[tuple[object, ...]]]] = [
        (True, True, True, None, [("completer.pick",)]),
        (True, False, True, None, [("screen.set_focus", "composer"), ("transcript.find", "")]),
        (False, False, True, None, [("screen.set_focus", "composer"), ("transcript.find", "")]),
        (False, True, True, None, [("screen.set_focus", "transcript")]),
        (False, True, False, None, [("actions.focus",)]),
        (False, True, False, 2, [("actions.focus",)]),
    ]
    for completes, has_focus, has_session, highlighted, expected in rows:
        fake: Any = FakeContext()
        actions = Recorder(fake.log, "actions", highlighted=highlighted)
        screen = Recorder(fake.log, "screen", query_one=lambda *_, actions=actions: actions)
        fake.main_screen, fake.composer.completes, fake.composer.has_focus = screen, completes, has_focus
        fake.transcript.display = has_session
        app.context = cast(AppContext, fake)
        app.action_switch()
        log = [tuple(item._name if isinstance(item, Recorder) else item for item in entry) for entry in fake.entries()]
        assert log == expected
        if expected == [("actions.focus",)]:
            assert actions.highlighted == (highlighted or 0)
    app.approvals.keyboard = Focus()
    fake.transcript.size = SimpleNamespace(height=20)
    for height, by, y in ((20, 1, 18), (20, -1, -18), (2, 1, 1), (3, 1, 1)):
        fake.transcript.size.height = height
        app.action_page(by)
        assert fake.entries() == [("transcript.scroll_relative", {"y": y, "animate": False})]
