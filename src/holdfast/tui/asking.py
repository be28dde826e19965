"""Asks of tools and models: shown here and on every other screen, answered once."""

import os
import shutil
import subprocess
import time

import msgspec
from textual import work

from holdfast.client.view import Ask
from holdfast.domain.asks import PermissionNotification, QuestionRequest, where_answered
from holdfast.domain.ids import SessionId
from holdfast.tui.alerts import alert, desktop_command
from holdfast.tui.screens.permission import PermissionScreen
from holdfast.tui.screens.question import QuestionScreen
from holdfast.tui.stage import Stage

__all__ = ["Asking"]

STILL_WRITING = 1.5
DEAF = 0.7
_DONE = {"completed": "It is done", "failed": "It failed", "interrupted": "It was interrupted"}


class Asking(Stage):
    """Dialogs for what waits for somebody, and a word to those who look elsewhere."""

    _is_asking = False

    def draw_asks(self) -> None:
        """Show the first open ask; one that was answered elsewhere closes here."""
        view = self.link.view
        shown = self.screen
        if isinstance(shown, PermissionScreen | QuestionScreen):
            if shown.ask_id not in view.permissions and shown.ask_id not in view.questions:
                shown.dismiss(None)
                self.notify(self._answered(shown.ask_id))
        elif len(self.screen_stack) == 1 and not self._is_asking and (view.permissions or view.questions):
            # Noted at once: the dialog itself opens a moment later, and must not be opened twice.
            self._is_asking = True
            self._ask_next()

    @work
    async def _ask_next(self) -> None:
        view = self.link.view
        try:
            if view.permissions:
                await self._ask_permission(next(iter(view.permissions)))
            elif view.questions:
                await self._ask_questions(next(iter(view.questions)))
        finally:
            self._is_asking = False
            self.note_change()

    def _answered(self, ask: str) -> str:
        """By whom, as far as anybody knows."""
        answer = self.link.answers.get(ask)
        if answer is None or answer.withdrawn:
            return "Nobody has to answer that any more: its run has ended."
        where = where_answered(answer)
        if isinstance(answer, PermissionNotification):
            return f"{'Allowed' if answer.granted else 'Denied'} {where}."
        return f"{'Dismissed' if answer.cancelled else 'Answered'} {where}."

    async def _ask_permission(self, ask: str) -> None:
        is_writing = time.monotonic() - self.editor.typed_at < STILL_WRITING
        more = len(self.link.view.permissions) - 1
        request = self.link.view.permissions[ask]
        self.tell_away(f"{request.get('tool_name', 'A tool')} asks for permission")
        deaf = DEAF if is_writing else 0.0
        screen = PermissionScreen(request, self.look, more=more, deaf=deaf, session=self._elsewhere(request))
        answer = await self.push_screen_wait(screen)
        if answer is not None:
            self.link.view.permissions.pop(ask, None)
            if not await self.say(self.link.client.grant(self.link.workspace, answer)):
                self.link.view.permissions.setdefault(ask, request)

    def _elsewhere(self, ask: Ask) -> str:
        """The title of the session that asks, if it is none that is shown here: neither it nor a helper's."""
        session = SessionId(str(ask.get("session_id") or ""))
        if not session or session == self.link.session or self.link.index.sender(session) is not None:
            return ""
        known = self.link.view.sessions.get(session)
        return known.title if known is not None else ""

    async def _ask_questions(self, ask: str) -> None:
        batch = self.link.view.questions[ask]
        request = msgspec.convert(batch, QuestionRequest)
        self.tell_away("The model has a question")
        answer = await self.push_screen_wait(QuestionScreen(request))
        if answer is not None:
            self.link.view.questions.pop(ask, None)
            if answer.pop("cancelled", False):
                is_told = await self.say(self.link.client.cancel_question(self.link.workspace, ask))
            else:
                told = self.link.client.answer_question(self.link.workspace, msgspec.to_builtins(answer))
                is_told = await self.say(told)
            if not is_told:
                self.link.view.questions.setdefault(ask, batch)

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
        if not self.is_away:
            return
        style = str(self.options.get("notifications") or "auto")
        command = desktop_command(text, os.environ, shutil.which) if style == "native" else None
        if command is not None:
            self._show_on_desktop(command, text)
        elif sequence := alert(style, text, os.environ):
            self.write_terminal(sequence)

    @work(thread=True)
    def _show_on_desktop(self, command: tuple[str, ...], text: str) -> None:
        """Where the program fails, the terminal is asked after all."""
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            self.call_from_thread(self.write_terminal, alert("native", text, os.environ))

    def write_terminal(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()
