"""Sending, cancelling, restoring, queueing and attaching: each action of the prompt with its effects."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.domain.extensions import CommandInfo
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Attachment, AttachmentInfo, Run
from holdfast.protocol.bodies import PromptAccepted, RunChange
from holdfast.tui import attachments, prompt_actions, slash_commands
from holdfast.tui.prompt_actions import AttachmentBar, PromptController
from holdfast.tui.screens.picker import PickerResult
from holdfast.tui.slash_commands import SlashCommands
from holdfast.tui.widgets.queue_panel import QueuePanel
from tui.fake_context import NO, FakeContext
from tui.message_builders import message
from tui.test_block_table import text
from tui.test_picker_actions import ERROR

Json = dict[str, Any]
FILE = Attachment(b"x" * 2048, "a.txt", "a.txt", "text/plain")
OTHER = Attachment(b"y", "b.png", "b.png", "image/png")


class Clock:
    """Time of the modules under test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in (prompt_actions, slash_commands):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class PromptFixture:
    """The prompt controller with its parts."""

    def __init__(self, answers: tuple[object, ...] = (), **results: Any) -> None:  # noqa: ANN401
        self.fake = FakeContext(answers, **results)
        self.commands = SlashCommands(self.fake.context)
        self.bar = AttachmentBar(self.fake.context)
        self.prompts = PromptController(self.fake.context, self.commands, self.bar)

    def log(self) -> list[tuple[object, ...]]:
        return self.fake.entries("attachments.update")

    def items(self) -> list[Attachment]:
        return [*self.bar._items]

    def is_cancel_pending(self) -> bool:
        return self.prompts.is_cancel_pending

    async def submit(self, words: str, *, queues: bool = False) -> list[tuple[object, ...]]:
        await self.prompts.submit(words, queues=queues)
        if any(entry[0] == "start" for entry in self.fake.log):
            await self.fake.finish()
        return self.log()


def sent(run: str = "r") -> PromptAccepted:
    return PromptAccepted(RunId(run), SessionId("s"), "queue", 0)


def prompt(words: str, delivery: str | None = None, *files: Attachment) -> tuple[object, ...]:
    return ("prompt", words, {"delivery": delivery, "attachments": files})


BOTTOM, SEND = ("transcript.action_bottom",), ("start", "_send")


# Sending.


@pytest.mark.parametrize(
    ("words", "queues", "expected"),
    [
        ("hi", False, [BOTTOM, SEND, prompt("hi")]),
        ("hi", True, [BOTTOM, SEND, prompt("hi", "queue")]),
        ("!", False, [BOTTOM, SEND, prompt("!")]),
        ("!  ", False, [BOTTOM, SEND, prompt("!  ")]),
        ("/help", True, [("action", "help")]),
        ("/helpx", False, [BOTTOM, SEND, ("list_commands",), ("composer.restore", "/helpx"),
         ("notice", "There is no command /helpx; ctrl+p lists all commands.", {"severity": "warning"})]),
        ("/deploy", False, [BOTTOM, SEND, ("list_commands",), prompt("/deploy")]),
        ("/deploy now", False, [BOTTOM, SEND, prompt("/deploy now")]),
        ("/etc/passwd", False, [BOTTOM, SEND, prompt("/etc/passwd")]),
        ("! make all ", True,
         [BOTTOM, ("start", "_run_shell", {"group": "shell"}), ("run_shell", "s", "make all", 80)]),
    ],
)  # fmt: skip
async def test_a_submitted_text(words: str, queues: bool, expected: list[object]) -> None:
    fixture = PromptFixture(prompt=sent(), list_commands=(CommandInfo("deploy", "user"),), run_shell=1)
    assert await fixture.submit(words, queues=queues) == expected


async def test_unknown_commands_are_sent_where_they_cannot_be_checked() -> None:
    rows: list[tuple[Json, bool, list[object]]] = [({"list_commands": NO}, True, [("list_commands",)]), ({}, False, [])]
    for results, is_open, asked in rows:
        fixture = PromptFixture(prompt=sent(), **results)
        fixture.fake.connection.is_open = is_open
        assert await fixture.submit("/what") == [BOTTOM, SEND, *asked, prompt("/what")]


async def test_an_unsent_prompt_returns_with_its_attachments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = PromptFixture(prompt=[NO, sent()])
    fixture.fake.connection.directory = str(tmp_path)
    (tmp_path / "c.txt").write_text("c")
    fixture.bar.add(FILE, OTHER)
    files = (FILE, OTHER, Attachment(b"c", "c.txt", "c.txt", "text/plain; charset=utf-8"))
    log = await fixture.submit("see @c.txt @missing")
    mentioned = cast(Any, log[2])[2]["attachments"][2]
    files = (FILE, OTHER, mentioned)
    assert (mentioned.content, mentioned.file_path) == (b"c", "c.txt")
    failed = ("notice", "No.", {"title": "Not sent", "severity": "error", "timeout": 10})
    back = ("composer.restore", "see @c.txt @missing")
    assert log == [BOTTOM, SEND, prompt("see @c.txt @missing", None, *files), back, failed]
    assert fixture.items() == [FILE, OTHER]
    assert await fixture.submit("hi") == [BOTTOM, SEND, prompt("hi", None, FILE, OTHER)]
    assert fixture.items() == []
    monkeypatch.setattr(attachments, "MAX_SIZE", 0)
    fixture.bar.add(FILE)
    assert await fixture.submit("see @c.txt") == [
        BOTTOM, SEND, ("composer.restore", "see @c.txt"),
        ("notice", "The file is larger than 5 MB, the limit for attachments.",
         {"title": "Not sent", "severity": "error", "timeout": 10}),
    ]  # fmt: skip
    assert fixture.items() == [FILE]


@pytest.mark.parametrize(
    ("session", "results", "expected"),
    [
        ("s", {"run_shell": 1}, [("run_shell", "s", "ls", 80)]),
        ("s", {"run_shell": NO}, [("run_shell", "s", "ls", 80), ERROR, ("composer.restore", "!ls")]),
        (None, {"create_session": NO}, [("create_session",), ERROR]),
        (None, {"create_session": SimpleNamespace(id="new"), "run_shell": 1},
         [("create_session",), ("open", "new"), ("run_shell", "new", "ls", 80)]),
    ],
)  # fmt: skip
async def test_a_shell_command(session: Any, results: Json, expected: list[object]) -> None:  # noqa: ANN401
    fixture = PromptFixture(**results)
    connection = fixture.fake.connection
    connection.session = session
    connection.shell_commands = ["first"]
    seen: list[list[str]] = []
    fixture.fake.request_frame = lambda: seen.append([*connection.shell_commands])  # type: ignore[method-assign]
    log = await fixture.submit("!ls")
    assert log[2:] == expected
    assert seen == ([] if results.get("create_session") is NO else [["first", "ls"], ["first"]])
    assert connection.shell_commands == ["first"]


# Cancelling and restoring.


def run(name: str, **more: Any) -> Run:  # noqa: ANN401 - any field
    return Run(
        RunId(name), SessionId("s"), "waiting", "queue", 0, **{"prompt": f"do {name}", "client_id": "me", **more}
    )


TIMER, FIND, FOCUS = ("timer", 2.05), ("transcript.find", ""), ("composer.focus",)


async def test_escape_cancels_on_the_second_press_in_time(clock: Clock) -> None:
    fixture = PromptFixture()
    fixture.prompts.escape()
    assert fixture.log() == [FIND, FOCUS]
    fixture.fake.connection.active = [run("a")]
    for has_focus, back in ((True, []), (False, [FIND, FOCUS])):
        fixture.fake.composer.has_focus = has_focus
        fixture.prompts.escape()
        assert fixture.log() == [*back, TIMER]
        assert fixture.is_cancel_pending()
        clock.now += 2
        assert not fixture.is_cancel_pending()
        fixture.prompts.escape()
        assert fixture.log() == [*back, TIMER]
        clock.now += 1.9
        fixture.prompts.escape()
        await fixture.fake.finish()
        assert fixture.log() == [*back, ("start", "_cancel"), ("cancelled", "shell"), ("cancel",)]
        assert not fixture.is_cancel_pending()
    fixture.fake.connection.active, fixture.fake.connection.shell_commands = [], ["make", "ls"]
    fixture.prompts.escape()
    fixture.prompts.escape()
    await fixture.fake.finish()
    stopped = [("notice", "Stopped: $ make"), ("notice", "Stopped: $ ls")]
    assert fixture.log()[-4:] == [("start", "_cancel"), *stopped, ("cancelled", "shell")]


async def test_a_cancel_restores_own_queued_prompts(clock: Clock) -> None:
    for result, restored in ((None, [("composer.restore", "do b\n\ndo d")]), (NO, [ERROR])):
        fixture = PromptFixture(cancel=result)
        connection = fixture.fake.connection
        connection.active, connection.queue = [run("a")], [run("b"), run("c", client_id="you"), run("d", client_id="")]
        fixture.prompts.escape()
        fixture.prompts.escape()
        await fixture.fake.finish()
        assert fixture.log()[2:] == [("cancelled", "shell"), ("cancel",), *restored]
        # Prompts that were restored here are not reported as cancelled elsewhere.
        connection.view.runs = {
            item.run_id: msgspec.structs.replace(item, outcome="cancelled") for item in connection.queue
        }
        fixture.prompts.report_cancelled([item.run_id for item in connection.queue])
        assert fixture.log() == []


def test_prompts_cancelled_elsewhere_are_reported() -> None:
    own = run("a", outcome="cancelled")
    rows: list[tuple[Json, bool]] = [
        ({}, True), ({"client_id": ""}, False), ({"client_id": "you"}, False), ({"outcome": "completed"}, False),
        ({"started_at": 5}, False), ({"folded_into": RunId("b")}, False),
    ]  # fmt: skip
    one = "A queued prompt of yours was cancelled elsewhere: /back restores it."
    for fields, is_reported in rows:
        fixture = PromptFixture()
        fixture.fake.connection.view.runs = {RunId("a"): msgspec.structs.replace(own, **fields)}
        fixture.prompts.report_cancelled([RunId("a"), RunId("unknown")])
        assert fixture.log() == ([("notice", one, {"timeout": 15})] if is_reported else []), fields
        fixture.prompts.restore_cancelled()
        nothing = ("notice", "No queued prompt of yours was cancelled.")
        assert fixture.log() == [("composer.restore", "do a") if is_reported else nothing]
        fixture.prompts.restore_cancelled()
        assert fixture.log() == [nothing]
    fixture = PromptFixture()
    names = [RunId("a"), RunId("b"), RunId("c")]
    fixture.fake.connection.view.runs = {name: run(name, outcome="cancelled") for name in names}
    fixture.prompts.report_cancelled(names[:2])
    fixture.prompts.report_cancelled(names[2:])
    two = "2 queued prompts of yours were cancelled elsewhere: /back restores them."
    assert fixture.log() == [("notice", two, {"timeout": 15}), ("notice", one, {"timeout": 15})]
    fixture.prompts.restore_cancelled()
    assert fixture.log() == [("composer.restore", "do a\n\ndo b\n\ndo c")]


async def test_a_restored_prompt_has_its_attachments_and_names_the_others() -> None:
    fixture = PromptFixture(prompt=[sent("a")])
    fixture.bar.add(FILE)
    await fixture.submit("do a")
    infos = tuple(AttachmentInfo(name, "text/plain", 1) for name in ("a.txt", "c.txt", "d.txt"))
    fixture.prompts._restore([run("a", prompt="see @x/c.txt", attachments=infos), run("b")])
    missing = ("notice", "Attach again: d.txt", {"severity": "warning"})
    assert fixture.log() == [("composer.restore", "see @x/c.txt\n\ndo b"), missing]
    assert fixture.items() == [FILE]
    fixture.prompts._restore([run("b")])
    assert fixture.log() == [("composer.restore", "do b")]


async def test_attachments_of_the_newest_prompts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_actions, "_MAX_REMEMBERED", 2)
    fixture = PromptFixture(prompt=[sent(str(at)) for at in range(4)])
    for at in range(4):
        await fixture.submit(f"do {at}")
    assert [*fixture.prompts._sent_attachments] == ["1", "2", "3"]


# The queue.


@pytest.mark.parametrize(
    ("action", "position", "waiting", "error", "expected"),
    [
        ("edit", 0, 2, None, [("cancel_run", "a"), ("composer.restore", "do a")]),
        ("edit", 0, 2, NO, [("cancel_run", "a"), ERROR]),
        ("remove", 0, 2, None, [("cancel_run", "a")]),
        ("remove", 0, 1, None, [("cancel_run", "a"), FOCUS]),
        ("remove", 0, 0, NO, [("cancel_run", "a"), ERROR, FOCUS]),
        ("up", 0, 2, None, [("patch_run", "a", RunChange(position=0))]),
        ("up", 2, 2, None, [("patch_run", "a", RunChange(position=1))]),
        ("down", 0, 2, None, [("patch_run", "a", RunChange(position=1))]),
        ("down", 1, 2, NO, [("patch_run", "a", RunChange(position=2)), ERROR]),
        ("now", 1, 2, None, [("patch_run", "a", RunChange(delivery="steer"))]),
        ("later", 1, 2, NO, [("patch_run", "a", RunChange(delivery="queue")), ERROR]),
    ],
)
async def test_actions_of_the_queue(action: Any, position: int, waiting: int, error: object, expected: object) -> None:  # noqa: ANN401
    fixture = PromptFixture(cancel_run=error, patch_run=error)
    fixture.fake.connection.queue = [run(str(at)) for at in range(waiting)]
    await fixture.prompts.change_queue(QueuePanel.ActionRequested(action, run("a"), position))
    assert fixture.log() == expected
    fixture.fake.connection.view.runs = {RunId("a"): run("a", outcome="cancelled")}
    fixture.prompts.report_cancelled([RunId("a")])
    assert bool(fixture.log()) == (action not in ("edit", "remove"))


def test_focus_of_the_queue() -> None:
    fixture = PromptFixture()
    fixture.prompts.focus_queue()
    fixture.fake.queue.display = True
    fixture.prompts.focus_queue()
    assert fixture.log() == [("notice", "No prompt is queued."), ("queue.focus",)]


# Other ways to write.


@pytest.mark.parametrize(
    ("environment", "result", "command", "expected"),
    [
        ({"VISUAL": "a -b", "EDITOR": "c"}, 0, ["a", "-b"], [("composer.set_text", "new\n\nx")]),
        ({"EDITOR": "c"}, 1, ["c"], []),
        ({"VISUAL": "", "EDITOR": ""}, 0, ["vi"], [("composer.set_text", "new\n\nx")]),
        ({"EDITOR": "c"}, OSError("none"), ["c"], [("notice", "c cannot be started: none. Set EDITOR.",
                                                    {"severity": "error"})]),
        ({"EDITOR": "c 'd"}, 0, [], [("notice", "c 'd cannot be started: No closing quotation. Set EDITOR.",
                                      {"severity": "error"})]),
    ],
)  # fmt: skip
def test_external_editor(
    environment: Json, result: Any, command: list[str], expected: list[object], monkeypatch: pytest.MonkeyPatch  # noqa: ANN401
) -> None:  # fmt: skip
    fixture = PromptFixture()
    fixture.fake.composer.text = "old"
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    files: list[str] = []

    def edit(arguments: list[str], *, check: bool) -> object:
        files.append(arguments[-1])
        assert (arguments[:-1], check) == (command, False)
        with open(arguments[-1], "r+", encoding="utf-8") as file:
            assert file.read() == "old"
            file.seek(0)
            file.write("new\n\nx\n\n")
        if isinstance(result, Exception):
            raise result
        return SimpleNamespace(returncode=result)

    monkeypatch.setattr(subprocess, "run", edit)
    fixture.prompts.edit_externally()
    assert fixture.fake.entries("suspended", "resumed") == [*expected, FOCUS]
    assert not any(os.path.exists(name) for name in files)
    fixture.fake.can_suspend = False
    fixture.prompts.edit_externally()
    log = fixture.log()
    assert "cannot be started" in str(log[0][1])
    assert log[1:] == [FOCUS]


async def test_earlier_prompts() -> None:
    fixture = PromptFixture((PickerResult("1"), None))
    fixture.fake.composer.sent_prompts = ["one", "two  x", "one", "y" * 300]
    for expected in ([("composer.set_text", "one"), FOCUS], [FOCUS]):
        await fixture.prompts.recall()
        assert fixture.log() == [("dialog", "Picker", "Earlier prompts"), *expected]
    items = [(item.value, item.title) for item in fixture.fake.dialogs[0]._choices]
    assert items == [("0", "y" * 200), ("1", "one"), ("2", "two x")]


async def test_prompts_of_other_sessions_precede_the_own_ones() -> None:
    found = [message("user", text(words)) for words in ("newest ", " ", "oldest")]
    for is_mounted in (True, False):
        fixture = PromptFixture(list_all_user_messages=tuple(found))
        fixture.fake.composer.sent_prompts = ["own"]
        fixture.fake.is_mounted = is_mounted
        await fixture.prompts.load_history()
        loaded = [("composer.set_sent_prompts", ["oldest", "newest", "own"])] if is_mounted else []
        assert fixture.log() == [("list_all_user_messages",), *loaded]
    many = PromptFixture(list_all_user_messages=tuple(message("user", text(str(at))) for at in range(501)))
    await many.prompts.load_history()
    (loaded_texts,) = [entry[1] for entry in many.log() if entry[0] == "composer.set_sent_prompts"]
    assert loaded_texts == [str(at) for at in reversed(range(500))]
    failed = PromptFixture(list_all_user_messages=NO)
    await failed.prompts.load_history()
    assert failed.log() == [("list_all_user_messages",)]


# Attachments.


async def test_the_line_of_attachments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = PromptFixture()
    bar, composer, line = fixture.bar, fixture.fake.composer, fixture.fake.line("attachments")

    def shown() -> tuple[object, object, str]:
        return composer.has_attachments, line.display, str(fixture.fake.log[-1][1])

    bar.remove_last()
    assert fixture.fake.log == []
    bar.add(FILE)
    assert shown() == (True, True, "⊞ a.txt (2 KB)   backspace removes the last")
    bar.add(OTHER)
    assert shown()[2] == "⊞ a.txt (2 KB)   ⊞ b.png (1 B)   backspace removes the last"
    bar.remove_last()
    assert fixture.items() == [FILE]
    assert bar.clear() == (FILE,)
    assert (shown(), bar.clear()) == ((False, False, ""), ())
    for size, expected in ((0, "0 B"), (1023, "1023 B"), (1024, "1 KB"), (1024 * 1024 - 1, "1023 KB"),
                           (1024 * 1024, "1.0 MB"), (3 * 512 * 1024, "1.5 MB")):  # fmt: skip
        assert prompt_actions._format_size(size) == expected
    fixture.log()
    bar.add_paste("long", is_path=False)
    bar.add_paste(str(tmp_path / "missing.png"), is_path=True)
    bar.add_paste("more", is_path=False)
    assert [(item.file_name, item.content) for item in bar.clear()] == [
        ("paste-1.txt", b"long"),
        ("paste-2.txt", b"more"),
    ]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    bar.add_paste(str(tmp_path / "a.png"), is_path=True)
    for image, names in ((b"i", ["image-3.png"]), (b"j", ["image-4.png"]), (None, [])):
        monkeypatch.setattr(prompt_actions, "clipboard_image", lambda image=image: image)
        bar.clear()
        fixture.log()
        await bar.paste_image()
        assert [item.file_name for item in bar._items] == names
        assert fixture.log() == ([] if names else [("composer.action_paste",)])
    monkeypatch.setattr(attachments, "MAX_SIZE", 1)
    bar.add_paste(str(tmp_path / "a.png"), is_path=True)
    too_large = "The file is larger than 5 MB, the limit for attachments."
    assert fixture.log() == [("notice", too_large, {"severity": "error"})]


def test_clipboard_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program that is installed, succeeds and prints something."""
    rows: list[tuple[dict[str, object], bytes | None]] = [
        ({}, None),
        ({"xclip": b"x"}, b"x"),
        ({"wl-paste": b"w", "xclip": b"x"}, b"w"),
        ({"wl-paste": b"", "xclip": b"x"}, b"x"),
        ({"wl-paste": OSError(), "pngpaste": b"p"}, b"p"),
        ({"xclip": subprocess.CalledProcessError(1, "x"), "pngpaste": b"p"}, b"p"),
        ({"xclip": subprocess.TimeoutExpired("x", 5)}, None),
    ]
    for installed, expected in rows:

        def run_program(command: tuple[str, ...], installed: Json = installed, **options: object) -> object:
            assert options == {"capture_output": True, "timeout": 5, "check": True}
            if isinstance(result := installed[command[0]], Exception):
                raise result
            return SimpleNamespace(stdout=result)

        monkeypatch.setattr("shutil.which", lambda name, installed=installed: name if name in installed else None)
        monkeypatch.setattr(subprocess, "run", run_program)
        assert attachments.clipboard_image() == expected, installed


def test_other_errors_of_a_paste_are_not_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, name: str) -> None:
        raise ValueError(path + name)

    monkeypatch.setattr(prompt_actions, "read_attachment", fail)
    with pytest.raises(ValueError, match="aa"):
        PromptFixture().bar.add_paste("a", is_path=True)
