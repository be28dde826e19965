"""Approvals of a run that a command waits for: shown at the terminal, refused without one.

The user answers with a key or with a command such as `/allow`; any other line is not an answer (`answer_line.py`).
Events of the run are processed meanwhile: an approval that another client answers, or that is withdrawn, is closed here
too. Without a terminal the run would wait forever, so the call is refused, with one message for the model and one for
the user.
"""

import json
from typing import cast

from holdfast.cli.answer_line import AnswerLine, Input, Option
from holdfast.cli.link import Link
from holdfast.cli.speak import Speaker, complain
from holdfast.cli.terminal import Terminal
from holdfast.client.errors import ServerProblem
from holdfast.client.items import Item
from holdfast.domain.asks import GrantAction, PermissionNotification, PermissionRequest, where_answered
from holdfast.domain.events import PermissionNotificationEvent, PermissionRequestEvent, RunCompleteEvent, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run

__all__ = ["ANSWERS", "Asker", "visible"]

_PATIENCE = 0.1
_MOST_LINES = 500
"""Maximum number of lines of a change that are shown."""
_NOBODY = "This run has no terminal, so nobody could be asked. Go on without it, and say what could not be done."
_OPTIONS = (
    Option("allow", "once", "y"),
    Option("allow_session", "this session", "s"),
    # A permanent rule has no letter: it requires the arrows and Enter, or its command.
    Option("allow_always", "always"),
    Option("deny", "no", "n"),
)
_SAID: dict[GrantAction, str] = {
    "allow": "allowed once",
    "allow_session": "allowed for this session",
    "allow_always": "always allowed",
    "deny": "denied",
}
ANSWERS: dict[str, GrantAction] = {
    "/allow": "allow",
    "/session": "allow_session",
    "/always": "allow_always",
    "/deny": "deny",
}


class Asker:
    """Approvals of one run and of its sub-agents. Without a terminal they are refused, unless the run is interactive in
    another client; then they are only reported.
    """

    _TAKES_PROMPTS = False
    """True if lines other than answers are sent as prompts."""

    def __init__(
        self,
        link: Link,
        speaker: Speaker,
        run: RunId,
        terminal: Terminal | None = None,
        *,
        is_somebodys: bool = False,
    ) -> None:
        self._is_somebodys = is_somebodys
        self._told_of: set[str] = set()
        self._link = link
        self._speaker = speaker
        self._runs = {run}
        self._terminal = terminal or Terminal()
        self._input = AnswerLine(self._terminal, speaker, echoes=self._TAKES_PROMPTS)
        self._open: dict[str, PermissionRequest] = {}
        self._shown = ""

    @property
    def is_asking(self) -> bool:
        """True while an approval is shown: nothing else is drawn, and the keyboard is polled."""
        return bool(self._shown)

    @property
    def patience(self) -> float | None:
        """Seconds between polls of the keyboard, or None."""
        return _PATIENCE if self._shown else None

    def take(self, item: Item) -> None:
        """Process an event of the stream."""
        match item.event:
            case RunEvent(payload=change) if change.payload.parent_run_id in self._runs:
                self._runs.add(change.payload.run_id)
            case PermissionRequestEvent(payload=change) if change.payload.run_id in self._runs:
                self._asked(change.payload)
            case PermissionNotificationEvent(payload=change):
                self._told(change.payload)
            case RunCompleteEvent(payload=change):
                # A run that has ended has no open approvals, whatever earlier events reported.
                for ask in [ask for ask in self._open.values() if ask.run_id == change.payload.run_id]:
                    self._close(ask.id, "Its run has ended.")
            case _:
                pass

    def look(self) -> None:
        """Fetch the open approvals, because events may have been missed."""
        pending = self._link.ask(tuple[PermissionRequest, ...], "GET", self._link.path("permissions", "pending"))
        known = {ask.id: ask for ask in pending if self._is_ours(ask.run_id)}
        for name in self._open.keys() - known.keys():
            self._close(name, "It is not open any more.")
        for ask in known.values():
            self._asked(ask)

    def _is_ours(self, run: RunId) -> bool:
        """Return True for this run and its sub-agents, also those that were started before this command."""
        if not run or run in self._runs:
            return bool(run)
        try:
            found = self._link.ask(Run, "GET", self._link.path("runs", run))
        except ServerProblem:
            return False
        if not self._is_ours(found.parent_run_id):
            return False
        self._runs.add(run)
        return True

    def poll(self) -> None:
        """Process typed input, if any."""
        while (done := self._input.poll()) is not None:
            ask = self._open.get(self._shown)
            if done.kind == "end":
                self._ended()
                return
            if ask is None:
                self._idle(done)
            elif done.kind == "option":
                self._answer(ask, cast(GrantAction, done.text))
            else:
                self._typed(ask, done)

    def _idle(self, done: Input) -> None:
        """Handle input while no approval is open."""

    def _ended(self) -> None:
        """Ctrl-D answers nothing; if the terminal is gone the approval is denied."""
        ask = self._open.get(self._shown)
        if self._terminal.is_gone and ask is not None:
            self._answer(ask, "deny", _NOBODY)

    def _typed(self, ask: PermissionRequest, done: Input) -> None:
        """Handle a line: an answer only if it is one of the commands and was begun after the approval appeared."""
        word, _, reason = done.text.partition(" ")
        action = ANSWERS.get(word.lower())
        if action is None:
            self._other_line(done.text)
        elif reason and action != "deny":
            self._terminal.say(f"[Nothing is answered: write {word} alone.]\n")
        elif not done.is_fresh:
            self._terminal.say("[That was typed before this approval appeared: nothing is answered.]\n")
        elif action == "allow_always" and not ask.rules:
            self._terminal.say("[No rule can allow this for always: /allow or /session.]\n")
        else:
            self._answer(ask, action, reason.strip())

    def _other_line(self, _: str) -> None:
        """Handle a line that is not an answer."""
        self._terminal.say(f"[Nothing is answered. {self._how()}]\n")

    def _asked(self, ask: PermissionRequest) -> None:
        if ask.id in self._open:
            return
        if not self._terminal.is_there:
            if self._is_somebodys:
                self._tell(ask)
            else:
                self._refuse(ask)
            return
        self._open[ask.id] = ask
        if not self._shown:
            self._show(ask)

    def _told(self, notice: PermissionNotification) -> None:
        if notice.granted or notice.denied:
            where = where_answered(notice)
            said = "withdrawn" if notice.withdrawn else f"{'allowed' if notice.granted else 'refused'} {where}"
            self._close(notice.id, f"It was {said}.")

    def _close(self, ask: str, why: str) -> None:
        if self._open.pop(ask, None) is None or ask != self._shown:
            return
        self._shown = ""
        self._input.close(f"\n{why}" if why else "")
        if self._open:
            self._show(next(iter(self._open.values())))
        elif not self._TAKES_PROMPTS:
            self._terminal.release()

    def _show(self, ask: PermissionRequest) -> None:
        self._speaker.clear()
        self._speaker.end_line()
        if not self._TAKES_PROMPTS:
            # No input was requested until now, so earlier input is not meant for this command.
            self._terminal.discard_input()
        self._shown = ask.id
        always = f"Always saves the rule {visible(', '.join(ask.rules))}\n" if ask.rules else ""
        self._terminal.say(f"\n{_described(ask)}\n{_change(ask)}{always}[{self._how()}]\n")
        options = [option for option in _OPTIONS if option.value != "allow_always" or ask.rules]
        self._input.open(ask.id, "approval", options)

    def _how(self) -> str:
        others = " Other lines are prompts." if self._TAKES_PROMPTS else ""
        return (
            "Answer with enter and the arrows once no key was pressed for half a second, with tab and then y, s or n, "
            f"or with a line: /allow, /session, /always, /deny why.{others}"
        )

    def _tell(self, ask: PermissionRequest) -> None:
        if ask.id not in self._told_of:
            self._told_of.add(ask.id)
            where = f"answer it where the run was begun, or with holdfast attach {ask.session_id}"
            self._speaker.note(f"the run waits for a permission: {_what(ask)}; {where}.")

    def _refuse(self, ask: PermissionRequest) -> None:
        self._answer(ask, "deny", _NOBODY)
        rules = ", ".join(json.dumps(rule, ensure_ascii=False) for rule in ask.rules)
        hint = f" Allow it with permissions.allow = [{rules}] in the configuration, or" if rules else " To allow it,"
        why = f" {ask.why}" if ask.why else ""
        complain(f"holdfast: refused, for nobody can be asked: {_what(ask)}.{why}{hint} run with --yolo.")

    def _answer(self, ask: PermissionRequest, action: GrantAction, reason: str = "") -> None:
        body = {"permission": {"id": ask.id, "params": ask.params}, "action": action, "reason": reason}
        query = (("client_id", self._link.client_id), ("via", "command"))
        self._speaker.clear()
        try:
            self._link.send("POST", self._link.path("permissions", "grant"), body=body, query=query, can_repeat=True)
        except ServerProblem as problem:
            self._terminal.say(f"{problem}\n")
            if self._open.get(ask.id) is not None:
                self._show(ask)
            return
        self._terminal.say(f"[{_SAID[action]}]\n" if ask.id == self._shown else "")
        self._close(ask.id, "")


def _described(ask: PermissionRequest) -> str:
    return _what(ask) + (f"  ({ask.why})" if ask.why else "")


def _what(ask: PermissionRequest) -> str:
    """Describe the approval in one line."""
    command = ask.params.get("command")
    return f"{ask.tool_name}: {visible(command if isinstance(command, str) else ask.description)}"


def _change(ask: PermissionRequest) -> str:
    """Return the change line by line; empty if there is none."""
    old, new, diff = (ask.params.get(name) for name in ("old_content", "new_content", "diff"))
    if isinstance(new, str):
        # Imported only if an approval with a change is shown.
        from difflib import unified_diff

        before = old.splitlines() if isinstance(old, str) else []
        lines = list(unified_diff(before, new.splitlines(), lineterm="", n=2))[2:]
    else:
        lines = diff.splitlines() if isinstance(diff, str) else []
    more = f"  … {len(lines) - _MOST_LINES} more lines\n" if len(lines) > _MOST_LINES else ""
    return "".join(f"  {visible(line)}\n" for line in lines[:_MOST_LINES]) + more


def visible(text: str) -> str:
    """Escape characters that could hide text or control the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
