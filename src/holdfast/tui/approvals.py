"""Approvals and questions in the terminal app: shown above the composer and on every other screen, answered once."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from textual import events, on, work
from textual._time import get_time
from textual.timer import Timer
from textual.widgets import TextArea

from holdfast.client import answer_focus
from holdfast.client.answer_focus import ARROWS, Route
from holdfast.client.view import Ask
from holdfast.domain.approvals import PermissionNotification, QuestionRequest, where_answered
from holdfast.domain.ids import SessionId
from holdfast.tui.base_app import Stage
from holdfast.tui.widgets.approval_panel import ApprovalPanel, Choice, PanelState, RequestPanel
from holdfast.tui.widgets.question_panel import QuestionPanel

__all__ = ["Asking", "alert", "desktop_command"]


# Notifications for a user who looks at another window: through the terminal, the desktop, or the bell.

_OSC_777 = ("rxvt", "foot", "vte", "contour")
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty", "WarpTerminal", "kitty", "vscode")


def alert(style: str, text: str, environment: Mapping[str, str]) -> str:
    """Return the sequence to write to the terminal; empty if disabled. `auto` uses terminals that are known to support
    it.
    """
    if style == "disabled":
        return ""
    words = _words(text)
    if style == "bell":
        return "\a"
    sequence = _sequence(words, environment, is_forced=style in ("osc", "native"))
    if sequence != "\a" and environment.get("TMUX"):
        # tmux forwards the sequence if allow-passthrough is set; it always supports the bell.
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\\a"
    return sequence


def desktop_command(
    text: str, environment: Mapping[str, str], find: Callable[[str], str | None]
) -> tuple[str, ...] | None:
    """Return the command of a local program that shows a notification, if there is one and the session is local."""
    words = _words(text)
    if environment.get("SSH_CONNECTION"):
        # On the remote machine the notification would not be seen; the terminal forwards its own sequence.
        return None
    if (program := find("terminal-notifier")) is not None:
        return (program, "-title", "Holdfast", "-message", words)
    if (program := find("osascript")) is not None:
        script = ("on run argv", 'display notification (item 1 of argv) with title "Holdfast"', "end run")
        return (program, *(word for line in script for word in ("-e", line)), words)
    has_desktop = any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS"))
    if has_desktop and (program := find("notify-send")) is not None:
        return (program, "--app-name=Holdfast", "--", "Holdfast", words)
    return None


def _words(text: str) -> str:
    return "".join(character if character.isprintable() and character != ";" else " " for character in text)[:200]


def _sequence(words: str, environment: Mapping[str, str], *, is_forced: bool) -> str:
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if any(name in term for name in _OSC_777) or environment.get("VTE_VERSION"):
        return f"\x1b]777;notify;Holdfast;{words}\x1b\\"
    if is_forced or program in _OSC_9 or "kitty" in term or "ghostty" in term or environment.get("WT_SESSION"):
        return f"\x1b]9;{words}\x1b\\"
    return "\a"


# Approvals and questions in the terminal app: shown above the composer and on every other screen, answered once.

_DONE = {"completed": "It is done", "failed": "It failed", "interrupted": "It was interrupted"}
_NAMED = ARROWS | {"enter", "tab", "escape"}


def _name_of(event: events.Key | events.Paste) -> str:
    """Return the key's name in `answer_focus`."""
    if isinstance(event, events.Paste):
        return "text"
    if event.key in _NAMED:
        return event.key
    if event.character is not None and event.is_printable:
        return event.character if event.character in "123456789" else "text"
    return "other"


class Asking(Stage):
    """Shows open requests above the composer, and routes the keyboard between the two."""

    clock: Callable[[], float] = staticmethod(time.monotonic)
    panel: RequestPanel | None = None
    _timer: Timer | None = None
    _click_moved_focus = False

    # Showing requests.

    def draw_asks(self) -> None:
        """Show the first open request; close one that another client has answered."""
        view, panel = self.link.view, self.panel
        if panel is not None and panel.request_id not in view.permissions and panel.request_id not in view.questions:
            self._close_panel()
            if not panel.is_answered:
                self.notify(self._answered(panel.request_id))
        if self.panel is None and (view.permissions or view.questions):
            self._open_panel(self._first_panel())
        self.sync_keyboard()

    def _first_panel(self) -> RequestPanel:
        view = self.link.view
        if view.permissions:
            request = next(iter(view.permissions.values()))
            self.tell_away(f"{request.get('tool_name', 'A tool')} asks for permission")
            more = len(view.permissions) - 1
            return ApprovalPanel(request, self.look, more=more, session=self._elsewhere(request))
        self.tell_away("The model has a question")
        return QuestionPanel(msgspec.convert(next(iter(view.questions.values())), QuestionRequest))

    def _open_panel(self, panel: RequestPanel) -> None:
        self.panel = panel
        panel.may_focus = lambda: self._click_focuses(panel)
        self.base.mount(panel, before="#completer")
        # It counts as shown once it is drawn.
        panel.call_after_refresh(self._appear, panel)

    def _appear(self, panel: RequestPanel) -> None:
        if self.panel is panel:
            self.keyboard = answer_focus.appear(self.keyboard, panel.request_id, panel.KIND, self._now())
            self.sync_keyboard()

    def _close_panel(self) -> None:
        panel, self.panel = self.panel, None
        self.keyboard = answer_focus.disappear(self.keyboard)
        if panel is not None:
            had_focus = panel.has_focus or panel.has_focus_within
            self.base.remove_class("whole-request")
            panel.remove()
            self.note_change()
            if had_focus:
                self.base.set_focus(self.editor)

    @on(RequestPanel.Answered)
    def _take_answer(self, event: RequestPanel.Answered) -> None:
        panel, view = event.panel, self.link.view
        if panel is not self.panel:
            return
        waiting = view.permissions if isinstance(panel, ApprovalPanel) else view.questions
        request = waiting.pop(panel.request_id, None)
        self._close_panel()
        self.run_worker(self._send_answer(panel, event.body, waiting, request))

    async def _send_answer(
        self, panel: RequestPanel, body: dict[str, Any], waiting: dict[str, Ask], request: Ask | None
    ) -> None:
        """Send the answer. A request whose answer was not accepted is shown again."""
        client, workspace = self.link.client, self.link.workspace
        if isinstance(panel, ApprovalPanel):
            is_accepted = await self.say(client.grant(workspace, body))
        elif body.get("cancelled"):
            is_accepted = await self.say(client.cancel_question(workspace, panel.request_id))
        else:
            is_accepted = await self.say(client.answer_question(workspace, msgspec.to_builtins(body)))
        if not is_accepted and request is not None:
            waiting.setdefault(panel.request_id, request)
        self.note_change()

    @on(RequestPanel.Resized)
    def _resized(self) -> None:
        self.note_change()

    # The keyboard.

    async def on_event(self, event: events.Event) -> None:
        """Route keys before Textual does; an event that was forwarded has been routed already."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded and self._route(event):
            return
        await super().on_event(event)

    def _route(self, event: events.Key | events.Paste) -> bool:
        """Route a key. Returns True if it has been handled."""
        if not self.is_shown:
            return False
        if isinstance(event, events.Paste) and self.base.focused is self.panel:
            # Pasted text is never a shortcut.
            self.base.set_focus(self.editor)
        self.sync_keyboard()
        # The time at which the terminal delivered the key, however late it is processed.
        at = self._now() - max(0, int((get_time() - event.time) * 1000))
        key = _name_of(event)
        if (
            len(self.screen_stack) > 1
            or not (self.editor.has_focus or self.keyboard.is_focused)
            or self._completes(key)
        ):
            # Not for the composer, but still a key press.
            self.keyboard, _ = answer_focus.press(self.keyboard, "other", at)
            self._draw_panel()
            return False
        self.keyboard, route = answer_focus.press(self.keyboard, key, at)
        is_done = self._follow(route, key)
        self._draw_panel()
        return is_done

    def _completes(self, key: str) -> bool:
        return key == "tab" and self.editor.completes

    def _follow(self, route: Route, key: str) -> bool:
        panel = self.panel
        if panel is None:
            return False
        if route.restore:
            panel.forget_digits()
            self.editor.insert(route.restore)
        match route.target:
            case "request" if not self.keyboard.is_focused:
                panel.act(key)
                return True
            case "focus":
                self.base.set_focus(panel)
                return True
            case "blur":
                self._leave_panel(panel, key)
                return True
            case "hold":
                return True
            case _:
                return False

    def _leave_panel(self, panel: RequestPanel, key: str) -> None:
        """Move the focus: Escape in a field to the choices, otherwise to the composer; Tab to the conversation."""
        if panel.close_field() and key == "escape":
            self.keyboard = answer_focus.focus(self.keyboard)
            self.base.set_focus(panel)
        elif key == "tab" and self.transcript.display:
            self.base.set_focus(self.transcript)
        else:
            self.base.set_focus(self.editor)

    def sync_keyboard(self) -> None:
        """Report changes without a key press (focus, composer, dialogs), and schedule the next tick."""
        if not self.is_shown:
            return
        now, panel, focused = self._now(), self.panel, self.base.focused
        is_inside = panel is not None and focused is not None and panel in focused.ancestors_with_self
        if is_inside and not self.keyboard.is_focused:
            self.keyboard = answer_focus.focus(self.keyboard)
        elif not is_inside:
            self.keyboard = answer_focus.blur(self.keyboard, now)
        self.keyboard = answer_focus.edit(self.keyboard, is_empty=self._is_idle(), at=now)
        self._draw_panel()

    def note_resume(self) -> None:
        """Record that the app was suspended: Enter ended a command line, and the key may still be held."""
        self._note_key("enter")

    def _note_key(self, key: str) -> None:
        """Record a key press that another program received."""
        self.keyboard, _ = answer_focus.press(self.keyboard, key, self._now())
        self._draw_panel()

    @on(TextArea.Changed)
    def _note_text(self) -> None:
        self.sync_keyboard()

    def _is_idle(self) -> bool:
        """Return True if the composer has the focus and is empty."""
        has_text = bool(self.editor.text) or self.editor.has_attachments
        return self.editor.has_focus and not has_text and len(self.screen_stack) == 1

    def _draw_panel(self) -> None:
        if self.panel is None:
            return
        if self.panel.show_state(self._panel_state()):
            self.note_change()
        if self._timer is not None:
            self._timer.stop()
        wait = answer_focus.remaining(self.keyboard, self._now())
        # A Textual timer whose time is over before it is set never fires.
        self._timer = None if wait is None else self.set_timer(max(0.01, wait / 1000), self.tick_keyboard)

    def _panel_state(self) -> PanelState:
        if self.keyboard.is_focused:
            return "focused"
        if self.keyboard.is_settled:
            return "active"
        if self.editor.text or self.editor.has_attachments:
            return "writing"
        return "waiting" if self.editor.has_focus else "away"

    def tick_keyboard(self) -> None:
        """Update the panel after pending keys, on the path they take: a letter may still be on its way to the
        composer.
        """
        if self.is_shown:  # The timer may fire while the app is closing.
            self.editor.call_later(self.call_later, self._settle)

    def _settle(self) -> None:
        if not self.is_shown:
            return
        self.sync_keyboard()
        self.keyboard, is_due = answer_focus.release(self.keyboard, self._now())
        if is_due and self.panel is not None:
            self.panel.act("enter")
        self.keyboard = answer_focus.tick(self.keyboard, self._now())
        self._draw_panel()

    def _now(self) -> int:
        return int(self.clock() * 1000)

    @on(Choice.Clicked)
    def _clicked(self, event: Choice.Clicked) -> None:
        if self.panel is not None and event.choice in self.panel.query(Choice):
            self.keyboard, route = answer_focus.click(self.keyboard, self._now())
            if route.target == "request" and not self._click_moved_focus:
                self.panel.clicked(event.choice)

    def _click_focuses(self, panel: RequestPanel) -> bool:
        """Return True if a mouse button pressed on the panel moves the focus there."""
        _, route = answer_focus.click(self.keyboard, self._now())
        self._click_moved_focus = self.panel is panel and route.target == "focus"
        return self._click_moved_focus

    # Requests that another client has answered.

    def _answered(self, ask: str) -> str:
        """Return a message about which client has answered, if known."""
        answer = self.link.answers.get(ask)
        if answer is None or answer.withdrawn:
            return "Nobody has to answer that any more: its run has ended."
        where = where_answered(answer)
        if isinstance(answer, PermissionNotification):
            return f"{'Allowed' if answer.granted else 'Denied'} {where}."
        return f"{'Dismissed' if answer.cancelled else 'Answered'} {where}."

    def _elsewhere(self, ask: Ask) -> str:
        """Return the title of the requesting session, if neither it nor its parent is shown."""
        session = SessionId(str(ask.get("session_id") or ""))
        if not session or session == self.link.session or self.link.index.sender(session) is not None:
            return ""
        known = self.link.view.sessions.get(session)
        return known.title if known is not None else ""

    # Notifications while the user looks at another window.

    def on_app_focus(self) -> None:
        """Record that the window has the focus."""
        self.is_away = False
        self._note_key("other")

    def on_app_blur(self) -> None:
        """Record that the window has lost the focus."""
        self.is_away = True

    def tell_ends(self) -> None:
        """Notify of runs that have ended, if the window does not have the focus."""
        ended, self.link.ended = self.link.ended, []
        for name in ended:
            run = self.link.view.runs.get(name)
            if run is None or run.parent_run_id or run.folded_into or run.outcome in (None, "cancelled"):
                continue
            session = self.link.view.sessions.get(run.session_id)
            self.tell_away(f"{_DONE.get(run.outcome, 'It ended')}: {session.title if session else run.prompt[:60]}")

    def tell_away(self, text: str) -> None:
        """Notify if the window does not have the focus."""
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
        """Run a notification program; use the terminal if it fails."""
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            self.call_from_thread(self.write_terminal, alert("native", text, os.environ))

    def write_terminal(self, sequence: str) -> None:
        """Write a sequence to the terminal."""
        if self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()
