"""Asks of tools and models: shown here and on every other screen, answered once."""

import os
import time

import msgspec
from textual import work

from holdfast.domain.asks import PermissionNotification, QuestionRequest
from holdfast.tui.alerts import alert
from holdfast.tui.screens.permission import PermissionScreen
from holdfast.tui.screens.question import QuestionScreen
from holdfast.tui.stage import Stage

__all__ = ["Asking"]

STILL_WRITING = 1.5
DEAF = 0.7
_DONE = {"completed": "It is done", "failed": "It failed", "interrupted": "It was interrupted"}


class Asking(Stage):
    """Dialogs for what waits for somebody, and a word to those who look elsewhere."""

    def draw_asks(self) -> None:
        """Show the first open ask; one that was answered elsewhere closes here."""
        view = self.link.view
        shown = self.screen
        if isinstance(shown, PermissionScreen | QuestionScreen):
            if shown.ask_id not in view.permissions and shown.ask_id not in view.questions:
                shown.dismiss(None)
                self.notify(self._answered(shown.ask_id))
        elif len(self.screen_stack) == 1:
            if view.permissions:
                self._ask_permission(next(iter(view.permissions)))
            elif view.questions:
                self._ask_questions(next(iter(view.questions)))

    def _answered(self, ask: str) -> str:
        """By whom, as far as anybody knows."""
        answer = self.link.answers.get(ask)
        if answer is None or answer.withdrawn:
            return "Nobody has to answer that any more: its run has ended."
        who = f"somebody on another screen ({answer.by[:8]})" if answer.by else "somebody on another screen"
        if isinstance(answer, PermissionNotification):
            return f"{'Allowed' if answer.granted else 'Denied'} by {who}."
        return f"{'Dismissed' if answer.cancelled else 'Answered'} by {who}."

    @work(exclusive=True, group="asks")
    async def _ask_permission(self, ask: str) -> None:
        is_writing = time.monotonic() - self.editor.typed_at < STILL_WRITING
        more = len(self.link.view.permissions) - 1
        request = self.link.view.permissions[ask]
        self.tell_away(f"{request.get('tool_name', 'A tool')} asks for permission")
        screen = PermissionScreen(request, self.look, more=more, deaf=DEAF if is_writing else 0.0)
        answer = await self.push_screen_wait(screen)
        if answer is not None:
            self.link.view.permissions.pop(ask, None)
            await self.say(self.link.client.grant(self.link.workspace, answer))
        self.note_change()

    @work(exclusive=True, group="asks")
    async def _ask_questions(self, ask: str) -> None:
        request = msgspec.convert(self.link.view.questions[ask], QuestionRequest)
        self.tell_away("The model has a question")
        answer = await self.push_screen_wait(QuestionScreen(request))
        if answer is not None:
            self.link.view.questions.pop(ask, None)
            if answer.pop("cancelled", False):
                await self.say(self.link.client.cancel_question(self.link.workspace, ask))
            else:
                await self.say(self.link.client.answer_question(self.link.workspace, msgspec.to_builtins(answer)))
        self.note_change()

    # Those who look elsewhere.

    def on_app_focus(self) -> None:
        self.is_away = False

    def on_app_blur(self) -> None:
        self.is_away = True

    def tell_ends(self) -> None:
        """Say that runs have ended, if nobody looks and nothing goes on after them."""
        ended, self.link.ended = self.link.ended, []
        for name in ended:
            run = self.link.view.runs.get(name)
            if run is None or run.parent_run_id or run.folded_into or run.outcome in (None, "cancelled"):
                continue
            session = self.link.view.sessions.get(run.session_id)
            self.tell_away(f"{_DONE.get(run.outcome, 'It ended')}: {session.title if session else run.prompt[:60]}")

    def tell_away(self, text: str) -> None:
        if self.is_away and self._driver is not None:
            sequence = alert(str(self.options.get("notifications") or "auto"), text, os.environ)
            if sequence:
                self._driver.write(sequence)
                self._driver.flush()
