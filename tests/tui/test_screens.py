"""The main screens, compared line by line with stored texts, and with the images of the documentation.

`HOLDFAST_SCREENS=write` stores them again; review the differences.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.widgets import Input, TextArea

from holdfast.providers.scripted_model import Act, Call, Say, ScriptedModel, Step, Think
from holdfast.tui import block_render, redraw
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.screens.picker import Picker
from holdfast.tui.widgets.approval_panel import ApprovalPanel
from holdfast.tui.widgets.question_panel import QuestionPanel
from tui.app_driver import AppDriver, open_app, running_server

STORED = Path(__file__).parent / "screens"
SHOWN = ("welcome", "permission", "answer", "question")
"""Screens that are images of the documentation."""
IMAGES = Path(__file__).parents[2] / "docs/images"
ANSWER = """Here is what I found.

## The parser

It lives in `src/app.py` and has **two** passes:

1. tokenise
2. build the tree

```python
def parse(text: str) -> Tree:
    return build(tokenise(text))
```

| file | lines |
|---|---|
| app.py | 7 |
"""
TODOS = [
    {"content": "Read the parser", "status": "completed", "active_form": "Reading"},
    {"content": "Change it", "status": "in_progress", "active_form": "Changing"},
]
QUESTION = {
    "type": "single_choice",
    "question": "Which database?",
    "label": "Database",
    "description": "It is **hard** to change later.",
    "choices": [{"id": "s", "label": "SQLite", "description": "one file"}, {"id": "p", "label": "PostgreSQL"}],
}
SOURCE = "def parse(text):\n    tokens = tokenise(text)\n    return build(tokens)\n\n\ndef other():\n    pass\n"


def act(name: str, **arguments: object) -> Call:
    return Call(name, json.dumps(arguments))


def steps() -> Sequence[Step]:
    edit = act("edit", file_path="src/app.py", old_string="    return build(tokens)\n", new_string="    return tree\n")
    first: tuple[Act, ...] = (Think("Where is it?"), Say("I will look."), act("view", file_path="src/app.py"))
    return [
        Step((*first, act("view", file_path="missing.py"))),
        Step((act("todos", todos=TODOS),)),
        Step((edit,)),
        Step((Say(ANSWER),)),
        Step((act("question", questions=[QUESTION]),)),
        Step((Say("As you like."),)),
    ]


def compare(screen: AppDriver, name: str) -> None:
    """Compare a screen with its stored text and image."""
    check(STORED / f"{name}.txt", screen.picture())
    size, _, what = name.partition("-")
    if size == "middle" and what in SHOWN:
        check(IMAGES / f"terminal-{what}.svg", image(screen))


def check(path: Path, seen: str) -> None:
    if os.environ.get("HOLDFAST_SCREENS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(seen, encoding="utf-8")
    assert path.exists(), f"{path} is missing: HOLDFAST_SCREENS=write stores it."
    assert seen == path.read_text(encoding="utf-8")


def image(screen: AppDriver) -> str:
    """Return the screen as an image, without parts that differ between runs and without external fonts."""
    svg = screen.app.export_screenshot(title="holdfast")
    # As long as the directory of a test, so that the layout does not change.
    svg = svg.replace(screen.app.connection.directory, "/home/anneke/src/project")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"[\u2800-\u28ff]", "⠋", re.sub(r"terminal-\d+-", "terminal-", svg))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


async def settled(screen: AppDriver) -> None:
    """Wait until the layout is stable."""
    before = ""
    while before != (now := screen.picture()):
        before = now
        await screen.pilot.pause(0.15)


@pytest.mark.parametrize(("name", "size"), [("small", (80, 24)), ("middle", (110, 36)), ("wide", (160, 45))])
async def test_the_main_screens(name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_render, "format_time", lambda _: "12:34")
    for room in (block_render, redraw):
        monkeypatch.setattr(room, "format_duration", lambda _: "3 s")
    for writing in (TextArea, Input):
        monkeypatch.setattr(writing, "cursor_blink", False)
    monkeypatch.setattr(redraw, "format_usage", lambda *_, **__: "800 tokens (0 %)")
    async with running_server(ScriptedModel(steps())) as (_, server):
        project = Path(server.directory.project())
        (project / "src").mkdir()
        (project / "src" / "app.py").write_text(SOURCE)
        async with open_app(server, size=size) as screen:
            await settled(screen)
            compare(screen, f"{name}-welcome")
            await screen.submit("How does the parser work?\nMind @src/app.py.")
            await screen.wait_for_panel(ApprovalPanel)
            await screen.settle_request()
            await screen.wait_until(lambda: "letters begin a prompt" in screen.picture(), "hints of the request")
            await settled(screen)
            compare(screen, f"{name}-permission")
            await screen.pilot.press("tab", "a")
            await screen.wait_for_text("◇")
            await screen.wait_until(lambda: not screen.app.connection.runs(), "the end")
            await settled(screen)
            compare(screen, f"{name}-answer")
            await screen.pilot.press("tab", "g")
            await settled(screen)
            compare(screen, f"{name}-beginning")
            await screen.pilot.press("ctrl+p")
            await screen.wait_for_dialog(Picker)
            await settled(screen)
            compare(screen, f"{name}-commands")
            await screen.pilot.press("escape")
            await screen.wait_for_no_dialog()
            await screen.pilot.press("ctrl+g")
            await screen.wait_for_dialog(HelpScreen)
            await settled(screen)
            compare(screen, f"{name}-help")
            await screen.pilot.press("escape")
            await screen.wait_for_no_dialog()
            await screen.pilot.press("tab")
            await screen.submit("ask me")
            await screen.wait_for_panel(QuestionPanel)
            await screen.settle_request()
            await screen.wait_until(lambda: "letters begin a prompt" in screen.picture(), "hints of the request")
            await settled(screen)
            compare(screen, f"{name}-question")
