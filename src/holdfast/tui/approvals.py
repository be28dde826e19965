"""Approvals and questions: shown above the composer, answered once.

One request is shown at a time. Its panel is not a dialog: the composer keeps the keyboard, and the state machine in
`client/key_focus.py` decides for every key whether the panel or the composer receives it. `ApprovalController` feeds
that machine with keys, focus changes and time, and carries out its decisions.

The order of events matters here, because a letter that is still on its way to the composer must prevent the panel from
accepting keys. Keys are therefore routed in `HoldfastApp.on_event`, before Textual dispatches them; a key counts from
the time at which the terminal delivered it; and timers act behind the keys that are pending (`call_after_keys`).
"""

from collections.abc import Callable
from typing import Any

import msgspec
from textual import events
from textual._time import get_time
from textual.timer import Timer

from holdfast.client import key_focus
from holdfast.client.key_focus import ARROWS, Focus, KeyRoute
from holdfast.client.view import RequestBody
from holdfast.domain.approvals import PermissionNotification, QuestionRequest, where_answered
from holdfast.domain.ids import SessionId
from holdfast.tui.app_context import AppContext
from holdfast.tui.notifications import AwayNotifier
from holdfast.tui.widgets.approval_panel import AnswerChoice, ApprovalPanel, PanelState, RequestPanel
from holdfast.tui.widgets.question_panel import QuestionPanel

__all__ = ["ApprovalController"]

_NAMED_KEYS = ARROWS | {"enter", "tab", "escape"}


class ApprovalController:
    """Shows open requests above the composer, and routes keys between the two. `clock` returns seconds."""

    def __init__(self, context: AppContext, notifier: AwayNotifier, clock: Callable[[], float]) -> None:
        self._context = context
        self._notifier = notifier
        self._clock = clock
        self.keyboard = Focus()
        """Decides whether keys belong to the composer or to the open request."""
        self.panel: RequestPanel | None = None
        """The request that is shown."""
        self._timer: Timer | None = None
        self._click_moved_focus = False

    # Showing requests.

    def draw_requests(self) -> None:
        """Show the first open request; close one that another client has answered."""
        view, panel = self._context.connection.view, self.panel
        if panel is not None and panel.request_id not in view.permissions and panel.request_id not in view.questions:
            self._close_panel()
            if not panel.is_answered:
                self._context.notify(self._describe_outcome(panel.request_id))
        if self.panel is None and (view.permissions or view.questions):
            self._open_panel(self._first_panel())
        self.sync_keyboard()

    def _first_panel(self) -> RequestPanel:
        view = self._context.connection.view
        if view.permissions:
            request = next(iter(view.permissions.values()))
            self._notifier.notify(f"{request.get('tool_name', 'A tool')} requests permission")
            return ApprovalPanel(
                request,
                self._context.palette,
                more=len(view.permissions) - 1,
                session=self._other_session_title(request),
                may_focus=self._click_focuses,
            )
        self._notifier.notify("The model has a question")
        questions = msgspec.convert(next(iter(view.questions.values())), QuestionRequest)
        return QuestionPanel(questions, may_focus=self._click_focuses)

    def _open_panel(self, panel: RequestPanel) -> None:
        self.panel = panel
        self._context.main_screen.mount(panel, before="#completer")
        # The time before a request accepts keys begins when the user can see it, not when it is mounted.
        panel.call_after_refresh(self._show_panel, panel)

    def _show_panel(self, panel: RequestPanel) -> None:
        if self.panel is panel:
            self.keyboard = key_focus.appear(self.keyboard, panel.request_id, panel.KIND, self._now())
            self.sync_keyboard()

    def _close_panel(self) -> None:
        panel, self.panel = self.panel, None
        self.keyboard = key_focus.disappear(self.keyboard)
        if panel is not None:
            had_focus = panel.has_focus or panel.has_focus_within
            self._context.main_screen.remove_class("whole-request")
            panel.remove()
            self._context.request_frame()
            if had_focus:
                self._context.main_screen.set_focus(self._context.composer)

    def answer(self, panel: RequestPanel, body: dict[str, Any]) -> None:
        """Close the panel and send the user's answer."""
        if panel is not self.panel:
            return
        view = self._context.connection.view
        open_requests = view.permissions if isinstance(panel, ApprovalPanel) else view.questions
        # The request is removed before the server confirms it, so that it is not shown again meanwhile.
        request = open_requests.pop(panel.request_id, None)
        self._close_panel()
        self._context.start(self._send_answer, panel, body, open_requests, request)

    async def _send_answer(
        self,
        panel: RequestPanel,
        body: dict[str, Any],
        open_requests: dict[str, RequestBody],
        request: RequestBody | None,
    ) -> None:
        """Send the answer. A request whose answer was not accepted is shown again."""
        connection = self._context.connection
        if isinstance(panel, ApprovalPanel):
            is_accepted = await self._context.send(connection.answer_permission(body))
        else:
            is_accepted = await self._context.send(connection.answer_question(panel.request_id, body))
        if not is_accepted and request is not None:
            open_requests.setdefault(panel.request_id, request)
        self._context.request_frame()

    def _describe_outcome(self, request_id: str) -> str:
        """Return a message about which client has answered, if known."""
        outcome = self._context.connection.outcomes.get(request_id)
        if outcome is None or outcome.withdrawn:
            return "The request is closed: its run has ended."
        where = where_answered(outcome)
        if isinstance(outcome, PermissionNotification):
            return f"{'Allowed' if outcome.granted else 'Denied'} {where}."
        return f"{'Dismissed' if outcome.cancelled else 'Answered'} {where}."

    def _other_session_title(self, request: RequestBody) -> str:
        """Return the title of the requesting session, if neither it nor its parent is shown."""
        connection = self._context.connection
        session = SessionId(str(request.get("session_id") or ""))
        if not session or session == connection.session or connection.index.starting_message(session) is not None:
            return ""
        known = connection.view.sessions.get(session)
        return known.title if known is not None else ""

    # The keyboard.

    def route_key(self, event: events.Key | events.Paste) -> bool:
        """Route a key or a paste. Returns True if it has been handled."""
        context = self._context
        if not context.is_mounted:
            return False
        if isinstance(event, events.Paste) and context.main_screen.focused is self.panel:
            # Pasted text is never a shortcut.
            context.main_screen.set_focus(context.composer)
        self.sync_keyboard()
        # The time at which the terminal delivered the key, however late it is processed.
        at = self._now() - max(0, int((get_time() - event.time) * 1000))
        key = _key_name(event)
        is_completion = key == "tab" and context.composer.completes
        if context.has_dialog or not (context.composer.has_focus or self.keyboard.is_focused) or is_completion:
            # Not for the composer, but still a key press.
            self.keyboard, _ = key_focus.press(self.keyboard, "other", at)
            self._draw_panel()
            return False
        self.keyboard, route = key_focus.press(self.keyboard, key, at)
        is_handled = self._follow(route, key)
        self._draw_panel()
        return is_handled

    def _follow(self, route: KeyRoute, key: str) -> bool:
        """Carry out a decision of the state machine. Returns True if the key has been handled."""
        panel = self.panel
        if panel is None:
            return False
        if route.restore:
            panel.forget_digits()
            self._context.composer.insert(route.restore)
        match route.target:
            case "request" if not self.keyboard.is_focused:
                panel.act(key)
                return True
            case "focus":
                self._context.main_screen.set_focus(panel)
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
        screen = self._context.main_screen
        if panel.close_field() and key == "escape":
            self.keyboard = key_focus.focus(self.keyboard)
            screen.set_focus(panel)
        elif key == "tab" and self._context.transcript.display:
            screen.set_focus(self._context.transcript)
        else:
            screen.set_focus(self._context.composer)

    def sync_keyboard(self) -> None:
        """Report changes without a key press (focus, composer, dialogs), and schedule the next tick."""
        if not self._context.is_mounted:
            return
        now, panel, focused = self._now(), self.panel, self._context.main_screen.focused
        is_inside = panel is not None and focused is not None and panel in focused.ancestors_with_self
        if is_inside and not self.keyboard.is_focused:
            self.keyboard = key_focus.focus(self.keyboard)
        elif not is_inside:
            self.keyboard = key_focus.blur(self.keyboard, now)
        self.keyboard = key_focus.edit(self.keyboard, is_empty=self._is_composer_idle(), at=now)
        self._draw_panel()

    def record_key(self, key: str) -> None:
        """Record a key press that another program received: it may be the beginning of a key that is still held."""
        self.keyboard, _ = key_focus.press(self.keyboard, key, self._now())
        self._draw_panel()

    def _is_composer_idle(self) -> bool:
        """Return True if the composer has the focus and is empty."""
        composer = self._context.composer
        return composer.has_focus and not (composer.text or composer.has_attachments) and not self._context.has_dialog

    def _draw_panel(self) -> None:
        if self.panel is None:
            return
        if self.panel.show_state(self._panel_state()):
            self._context.request_frame()
        if self._timer is not None:
            self._timer.stop()
        wait = key_focus.remaining(self.keyboard, self._now())
        # A Textual timer whose time is over before it is set never fires.
        self._timer = None if wait is None else self._context.set_timer(max(0.01, wait / 1000), self.tick_keyboard)

    def _panel_state(self) -> PanelState:
        composer = self._context.composer
        if self.keyboard.is_focused:
            return "focused"
        if self.keyboard.is_settled:
            return "active"
        if composer.text or composer.has_attachments:
            return "writing"
        return "waiting" if composer.has_focus else "away"

    def tick_keyboard(self) -> None:
        """Let time act on the request, after the keys that are pending."""
        if self._context.is_mounted:  # The timer may fire while the app is closing.
            self._context.call_after_keys(self._settle_focus)

    def _settle_focus(self) -> None:
        if not self._context.is_mounted:
            return
        self.sync_keyboard()
        self.keyboard, is_due = key_focus.release(self.keyboard, self._now())
        if is_due and self.panel is not None:
            self.panel.act("enter")
        self.keyboard = key_focus.tick(self.keyboard, self._now())
        self._draw_panel()

    def _now(self) -> int:
        return int(self._clock() * 1000)

    # The mouse.

    def click(self, choice: AnswerChoice) -> None:
        """Handle a click on an answer."""
        if self.panel is not None and choice in self.panel.query(AnswerChoice):
            self.keyboard, route = key_focus.click(self.keyboard, self._now())
            if route.target == "request" and not self._click_moved_focus:
                self.panel.clicked(choice)

    def _click_focuses(self, panel: RequestPanel) -> bool:
        """Return True if a mouse button pressed on the panel moves the focus there."""
        _, route = key_focus.click(self.keyboard, self._now())
        self._click_moved_focus = self.panel is panel and route.target == "focus"
        return self._click_moved_focus


def _key_name(event: events.Key | events.Paste) -> str:
    """Return the key's name in `answer_focus`."""
    if isinstance(event, events.Paste):
        return "text"
    if event.key in _NAMED_KEYS:
        return event.key
    if event.character is not None and event.is_printable:
        return event.character if event.character in "123456789" else "text"
    return "other"
