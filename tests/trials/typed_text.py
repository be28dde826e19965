"""Random typing into the real terminal app while approvals and questions appear: nothing may be answered by it.

The app runs without a terminal and without a server: requests are put into its view, and answers and prompts are
recorded instead of being sent. Time is virtual for the keyboard.
"""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual import events
from textual.pilot import Pilot

from holdfast.client.answer_focus import SETTLE
from holdfast.client.locate import locate
from holdfast.tui import app
from holdfast.tui.app import HoldfastApp
from holdfast.tui.widgets.approval_panel import RequestPanel

__all__ = ["TypedApp", "Typist", "try_typed_text"]

_LETTERS = "asdwrtfynjk eßÄ.,?" + "12"
_QUESTION = {
    "type": "single_choice",
    "question": "Which?",
    "description": "",
    "choices": [{"id": "a", "label": "A"}, {"id": "b", "label": "B"}],
}


class TypedApp(HoldfastApp):
    """Records what would be sent."""

    CSS_PATH = str(Path(app.__file__).with_name("holdfast.tcss"))

    def __init__(self) -> None:
        super().__init__(locate(None, "/nonexistent"), "/nonexistent")
        self.seconds = 1_000.0
        self.clock = lambda: self.seconds
        self.answers: list[dict[str, Any]] = []
        self.prompts: list[str] = []

    def _open(self) -> None:  # type: ignore[override]
        """There is no server."""

    def _prompt(self, text: str, **_: object) -> None:  # type: ignore[override]
        self.prompts.append(text)

    async def _send_answer(self, panel: RequestPanel, body: dict[str, Any], *_: object) -> None:
        self.answers.append(body)


class Typist:
    """Somebody at the keyboard who never means to answer, until `answer`."""

    def __init__(self, typed: TypedApp, pilot: Pilot[int], seed: int) -> None:
        self._app = typed
        self._pilot = pilot
        self._random = random.Random(seed)
        self._requests = 0
        self.typed = ""

    async def wait(self, milliseconds: int) -> None:
        """Let time pass; the timer of the keyboard runs as often as it would."""
        while milliseconds > 0:
            step = min(milliseconds, 100)
            milliseconds -= step
            self._app.seconds += step / 1000
            self._app.tick_keyboard()
            await self._flush()

    async def press(self, key: str, character: str | None = None) -> None:
        self._app.post_message(events.Key(key, character))
        await self._flush()

    async def _flush(self) -> None:
        """Until what was posted has been processed, by the app and the editor, and what came of it by both again."""
        for _ in range(2):
            done = asyncio.Event()
            self._app.call_later(self._app.editor.call_later, self._app.call_later, done.set)
            await done.wait()

    async def letter(self) -> None:
        letter = self._random.choice(_LETTERS)
        if self._random.random() < 0.1:
            letter *= self._random.randint(2, 5)
            self._app.post_message(events.Paste(letter))
            await self._flush()
        else:
            await self.press("space" if letter == " " else letter, letter)
        self.typed += letter

    async def appear(self) -> None:
        """Another request, of either kind; the one before it was answered elsewhere."""
        view = self._app.link.view
        view.permissions.clear()
        view.questions.clear()
        self._requests += 1
        name = f"request {self._requests}"
        if self._random.random() < 0.6:
            call: Mapping[str, Any] = {"command": "make install"}
            view.permissions[name] = {"id": name, "tool_name": "bash", "params": call, "rules": ["bash(make *)"]}
        else:
            view.questions[name] = {
                "id": name,
                "session_id": "s",
                "tool_call_id": "c",
                "questions": [{"id": "q", **_QUESTION}],
            }
        self._app.draw_asks()
        async with asyncio.timeout(20):
            while self._app.keyboard.request != name:
                await self._pilot.pause()

    async def word(self) -> None:
        """Letters with pauses of any length, and usually Enter less than the settling time behind the last."""
        for _ in range(self._random.randint(1, 6)):
            await self.letter()
            if self._random.random() < 0.2:
                await self.appear()
            await self.wait(self._random.choice((0, 30, 90, 300, 600, 2_000)))
        if self._random.random() < 0.7:
            # The last key before Enter is a letter: a digit may be the answer to a question.
            await self.press("x", "x")
            self.typed += "x"
            await self.wait(self._random.randint(0, SETTLE - 1))
            for _ in range(self._random.choice((1, 1, 4))):
                await self.press("enter")
                await self.wait(30)

    def check(self) -> None:
        """Nothing is answered, and every letter is in a prompt or in the composer."""
        assert not self._app.answers, f"typed text answered: {self._app.answers}"
        kept = "".join((*self._app.prompts, self._app.editor.text))
        digits = self._app.keyboard.digits
        assert _letters(kept + digits) == _letters(self.typed), f"typed {self.typed!r}, kept {kept!r}"

    async def answer(self) -> None:
        """Deliberately, in one of the two ways."""
        await self.appear()
        if self._random.random() < 0.5:
            await self.press("tab")
            await self._pilot.pause()
        else:
            self._app.editor.text = ""
            await self.wait(SETTLE + 100)
            # A key counts from its delivery by the terminal: that has to be after the request was drawn as active.
            self._app.seconds += 0.1
            await self.press("right")
        await self.press("enter")
        await self.wait(200)
        await self._pilot.pause()
        assert len(self._app.answers) == 1, f"a deliberate answer was lost: {self._app.keyboard}"


def _letters(text: str) -> str:
    return "".join(text.split())


async def _type(seed: int, words: int) -> None:
    typed = TypedApp()
    async with typed.run_test(size=(80, 24)) as pilot:
        typist = Typist(typed, pilot, seed)
        await typist.appear()
        for _ in range(words):
            await typist.word()
            typist.check()
        await typist.answer()


def try_typed_text(seed: int, words: int = 6) -> None:
    """Raises if text that a seed makes up answers a request, or if an answer does not."""
    asyncio.run(_type(seed, words))
