"""Random typing into the real terminal app while approvals and questions appear: none may be answered by it.

The app runs without a terminal and without a server: requests are inserted into its view, and answers and prompts are
recorded instead of being sent. Time is virtual for the keyboard.
"""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual import events, on
from textual.pilot import Pilot

from holdfast.client.key_focus import SETTLE
from holdfast.client.server_launcher import locate
from holdfast.tui import app
from holdfast.tui.app import HoldfastApp
from holdfast.tui.server_connection import ServerConnection
from holdfast.tui.widgets.composer import Composer

__all__ = ["SimulatedUser", "TypedApp", "try_typed_text"]

_LETTERS = "asdwrtfynjk eßÄ.,?" + "12"
_QUESTION = {
    "type": "single_choice",
    "question": "Which?",
    "description": "",
    "choices": [{"id": "a", "label": "A"}, {"id": "b", "label": "B"}],
}


class RecordingConnection(ServerConnection):
    """A connection without a server, which records the answers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of the base class
        super().__init__(*arguments, **options)
        self.answers: list[dict[str, Any]] = []

    async def open(self) -> None:
        """Stay closed."""
        await asyncio.Event().wait()

    async def answer_permission(self, body: dict[str, Any]) -> None:
        """Record the answer."""
        self.answers.append(body)

    async def answer_question(self, request_id: str, body: dict[str, Any]) -> None:
        """Record the answer."""
        self.answers.append(body)


class TypedApp(HoldfastApp):
    """The app without a server. It records answers and prompts; its clock is virtual."""

    CSS_PATH = str(Path(app.__file__).with_name("holdfast.tcss"))

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.prompts: list[str] = []
        super().__init__(
            locate(None, "/nonexistent"),
            "/nonexistent",
            connection_type=RecordingConnection,
            clock=lambda: self.seconds,
        )

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The answers so far."""
        assert isinstance(self.connection, RecordingConnection)
        return self.connection.answers

    @on(Composer.Sent)
    def _record(self, event: Composer.Sent) -> None:
        # Instead of the app's own handler.
        event.prevent_default()
        self.prompts.append(event.text)


class SimulatedUser:
    """Simulates a user who does not intend to answer, until `answer` is called."""

    def __init__(self, typed: TypedApp, pilot: Pilot[int], seed: int) -> None:
        self._app = typed
        self._pilot = pilot
        self._random = random.Random(seed)
        self._requests = 0
        self.typed = ""

    async def wait(self, milliseconds: int) -> None:
        """Let time pass; the keyboard timer fires as often as it would."""
        while milliseconds > 0:
            step = min(milliseconds, 100)
            milliseconds -= step
            self._app.seconds += step / 1000
            self._app.approvals.tick_keyboard()
            await self._flush()

    async def press(self, key: str, character: str | None = None) -> None:
        self._app.post_message(events.Key(key, character))
        await self._flush()

    async def _flush(self) -> None:
        """Wait until app and editor have processed all posted events, and the resulting ones."""
        for _ in range(2):
            done = asyncio.Event()
            self._app.call_later(self._app.context.composer.call_later, self._app.call_later, done.set)
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
        """Show another request, of either kind; the previous one was answered elsewhere."""
        view = self._app.connection.view
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
        self._app.approvals.draw_requests()
        async with asyncio.timeout(20):
            while self._app.approvals.keyboard.request != name:
                await self._pilot.pause()

    async def word(self) -> None:
        """Type letters with pauses of any length, usually followed by Enter within the settling time."""
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
        """Check that nothing is answered, and that every letter is in a prompt or in the composer."""
        assert not self._app.answers, f"typed text answered: {self._app.answers}"
        kept = "".join((*self._app.prompts, self._app.context.composer.text))
        digits = self._app.approvals.keyboard.digits
        assert _letters(kept + digits) == _letters(self.typed), f"typed {self.typed!r}, kept {kept!r}"

    async def answer(self) -> None:
        """Answer deliberately, in one of the two ways."""
        await self.appear()
        if self._random.random() < 0.5:
            await self.press("tab")
            await self._pilot.pause()
        else:
            self._app.context.composer.text = ""
            await self.wait(SETTLE + 100)
            # A key counts from its delivery by the terminal: it must follow the drawing of the active request.
            self._app.seconds += 0.1
            await self.press("right")
        await self.press("enter")
        await self.wait(200)
        await self._pilot.pause()
        assert len(self._app.answers) == 1, f"a deliberate answer was lost: {self._app.approvals.keyboard}"


def _letters(text: str) -> str:
    return "".join(text.split())


async def _type(seed: int, words: int) -> None:
    typed = TypedApp()
    async with typed.run_test(size=(80, 24)) as pilot:
        user = SimulatedUser(typed, pilot, seed)
        await user.appear()
        for _ in range(words):
            await user.word()
            user.check()
        await user.answer()


def try_typed_text(seed: int, words: int = 6) -> None:
    """Raise if random text answers a request, or if a deliberate answer does not."""
    asyncio.run(_type(seed, words))
