"""Asks of a run that somebody waits for: put to whoever sits at the terminal, refused where there is none.

A terminal is asked on stderr and read a line at a time, while the run's events go on being heard: an ask that is
answered elsewhere, or withdrawn, is closed here too. Who waits without a terminal would wait for ever, so the
tool is refused, with a sentence for the model and one for the user.
"""

import json
import os
import select
import sys

from holdfast.cli.link import Link
from holdfast.cli.speak import Speaker, complain
from holdfast.client.errors import ServerProblem
from holdfast.client.items import Item
from holdfast.domain.asks import GrantAction, PermissionNotification, PermissionRequest, where_answered
from holdfast.domain.events import PermissionNotificationEvent, PermissionRequestEvent, RunCompleteEvent, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run

__all__ = ["Asker", "Terminal", "visible"]

_PATIENCE = 0.1
_MOST_LINES = 500
"""Of a change; nobody reads more."""
_NOBODY = "This run has no terminal, so nobody could be asked. Go on without it, and say what could not be done."
_ANSWERS: dict[str, GrantAction] = {
    "y": "allow",
    "yes": "allow",
    "s": "allow_session",
    "session": "allow_session",
    "a": "allow_always",
    "always": "allow_always",
    "n": "deny",
    "no": "deny",
}


class Terminal:
    """Where a person is asked: stderr and stdin, if both are a terminal. With `opens`, a prompt may have come on stdin:
    then the terminal that this process belongs to is read instead, if stderr goes there and it is our turn there.
    """

    def __init__(self, *, opens: bool = False) -> None:
        self._input = 0
        if opens and os.isatty(2) and not os.isatty(0):
            self._input = _own_terminal()

    @property
    def is_there(self) -> bool:
        return os.isatty(self._input) and os.isatty(2)

    def say(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    def line(self) -> str | None:
        """What was typed, up to its end of line; None if nothing was yet. An end of input is an empty word."""
        try:
            if not select.select([self._input], [], [], 0)[0]:
                return None
            return os.read(self._input, 4096).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def forget(self) -> None:
        """A line that was meant for something else is no answer to what is asked now."""
        while self.line():
            pass


def _own_terminal() -> int:
    """Who reads where it is not their turn is stopped, and would never end."""
    try:
        opened = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        if os.tcgetpgrp(opened) == os.getpgrp():
            return opened
        os.close(opened)
    except OSError:
        pass
    return 0


class Asker:
    """The asks of one run and of the helpers it sends. Without a terminal they are refused, unless somebody works on
    the run elsewhere: then they are only told.
    """

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
        self._open: dict[str, PermissionRequest] = {}
        self._shown = ""

    @property
    def is_asking(self) -> bool:
        """Somebody is being asked: nothing else is drawn, and what they type is looked for."""
        return bool(self._shown)

    @property
    def patience(self) -> float | None:
        """How long may be waited for other things."""
        return _PATIENCE if self._shown else None

    def take(self, item: Item) -> None:
        match item.event:
            case RunEvent(payload=change) if change.payload.parent_run_id in self._runs:
                self._runs.add(change.payload.run_id)
            case PermissionRequestEvent(payload=change) if change.payload.run_id in self._runs:
                self._asked(change.payload)
            case PermissionNotificationEvent(payload=change):
                self._told(change.payload)
            case RunCompleteEvent(payload=change):
                # A run that has ended asks for nothing, whatever was said before.
                for ask in [ask for ask in self._open.values() if ask.run_id == change.payload.run_id]:
                    self._close(ask.id, "Its run has ended.")
            case _:
                pass

    def look(self) -> None:
        """Something may have been missed: ask what is open."""
        pending = self._link.ask(tuple[PermissionRequest, ...], "GET", self._link.path("permissions", "pending"))
        known = {ask.id: ask for ask in pending if self._is_ours(ask.run_id)}
        for name in self._open.keys() - known.keys():
            self._close(name, "It is not open any more.")
        for ask in known.values():
            self._asked(ask)

    def _is_ours(self, run: RunId) -> bool:
        """Also of a helper that was sent before anybody looked."""
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
        """Take what was typed, if anything was."""
        ask = self._open.get(self._shown)
        line = None if ask is None else self._terminal.line()
        if ask is None or line is None:
            return
        word = line.strip()
        if not line:
            self._answer(ask, "deny", _NOBODY)
        elif word.lower() in _ANSWERS:
            self._answer(ask, _ANSWERS[word.lower()])
        elif word:
            self._answer(ask, "deny", word)
        else:
            self._show(ask)

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
        self._terminal.say(f"\n{why}\n" if why else "")
        if self._open:
            self._show(next(iter(self._open.values())))

    def _show(self, ask: PermissionRequest) -> None:
        self._speaker.clear()
        self._speaker.end_line()
        if ask.id != self._shown:
            self._terminal.forget()
        self._shown = ask.id
        always = f"  [a] always, as the rule {visible(', '.join(ask.rules))}" if ask.rules else ""
        self._terminal.say(
            f"\n{_described(ask)}\n{_change(ask)}[y] once  [s] this session{always}  [n] no, or say why not: "
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
        self._close(ask.id, "")


def _described(ask: PermissionRequest) -> str:
    return _what(ask) + (f"  ({ask.why})" if ask.why else "")


def _what(ask: PermissionRequest) -> str:
    """One line."""
    command = ask.params.get("command")
    return f"{ask.tool_name}: {visible(command if isinstance(command, str) else ask.description)}"


def _change(ask: PermissionRequest) -> str:
    """What would be changed, line by line; empty where nothing is."""
    old, new, diff = (ask.params.get(name) for name in ("old_content", "new_content", "diff"))
    if isinstance(new, str):
        # Only who is asked about a change waits for it.
        from difflib import unified_diff

        before = old.splitlines() if isinstance(old, str) else []
        lines = list(unified_diff(before, new.splitlines(), lineterm="", n=2))[2:]
    else:
        lines = diff.splitlines() if isinstance(diff, str) else []
    more = f"  … {len(lines) - _MOST_LINES} more lines\n" if len(lines) > _MOST_LINES else ""
    return "".join(f"  {visible(line)}\n" for line in lines[:_MOST_LINES]) + more


def visible(text: str) -> str:
    """With everything in sight that could hide something, or steer the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
