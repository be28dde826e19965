"""What a stock terminal UI makes of events, and what it cannot show: the rules a server has to keep."""

from typing import Any

from stock.decode import decode_event
from stock.wire import Confused

__all__ = ["Screen", "label_of"]


def label_of(kind: str, change: str, thing: dict[str, Any]) -> str:
    """An event in a few words, as stories write it."""
    words = [kind, change]
    if kind == "message":
        words.append(thing["role"])
        ends = [part["data"]["reason"] for part in thing["parts"] or () if part["type"] == "finish"]
        words += ends if thing["role"] == "assistant" else []
    elif kind == "agent_event":
        words.append(thing["type"])
    elif kind == "run_complete" and thing.get("cancelled"):
        words.append("cancelled")
    elif kind == "permission_notification":
        words.append("granted" if thing["granted"] else "denied" if thing["denied"] else "open")
    return " ".join(words)


class Screen:
    """The messages on display. `see` raises if an event comes that could not be shown rightly."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.messages: dict[str, dict[str, Any]] = {}
        self.session: dict[str, Any] = {}
        self.shown = ""
        """The session on display; what happens in others is decoded, and passed over."""
        self.dialog: dict[str, Any] | None = None
        """The permission that is asked for now; a second one would take its place for good."""
        self.form: dict[str, Any] | None = None
        """The questions that are asked now. Any notice closes them, whichever batch it is about."""
        self._created: set[str] = set()
        self._calls: set[str] = set()
        self._is_session_told = False

    def load(self, messages: list[dict[str, Any]]) -> None:
        """The conversation was fetched whole; what events brought before stays if it is newer."""
        for message in messages:
            self.messages[message["id"]] = message
            self._calls |= _calls(message)

    def see(self, event: Any) -> str:  # noqa: ANN401 - any JSON
        kind, change, thing = decode_event(event)
        label = label_of(kind, change, thing)
        self._ask(kind, thing)
        is_ask = kind.startswith(("permission", "question"))
        if (
            not is_ask
            and self.shown
            and thing.get("id" if kind == "session" else "session_id", self.shown) != self.shown
        ):
            return f"elsewhere: {label}"
        self.labels.append(label)
        if kind == "message":
            self._message(change, thing)
        elif kind == "session":
            self.session = thing
            self._is_session_told = True
        elif kind == "run_complete":
            if not self._is_session_told and thing["message_id"]:
                raise Confused("a turn ends without a session event: its title and its usage stay old")
            self._is_session_told = False
        return label

    def _ask(self, kind: str, thing: dict[str, Any]) -> None:
        """Dialogs open whichever session is on display."""
        if kind == "permission_request":
            if self.dialog is not None and self.dialog["id"] != thing["id"]:
                raise Confused("a second permission takes the place of the first, which never comes back")
            if not isinstance(thing.get("params"), dict):
                raise Confused("a permission without parameters: the dialog shows none")
            self.dialog = thing
        elif kind == "permission_notification" and (thing["granted"] or thing["denied"]):
            if self.dialog is not None and self.dialog["tool_call_id"] == thing["tool_call_id"]:
                self.dialog = None
        elif kind == "question_batch_request":
            if self.form is not None:
                raise Confused("a second form takes the place of the first")
            self.form = thing
        elif kind == "question_batch_notification":
            if self.form is not None and self.form["id"] != thing["batch_id"]:
                raise Confused("a notice about another batch closes the form that is shown")
            self.form = None

    def _message(self, change: str, message: dict[str, Any]) -> None:
        name = message["id"]
        if change == "created":
            if name in self._created:
                raise Confused("a message is created twice: the second one is not shown")
            self._created.add(name)
        elif change == "updated" and name not in self.messages:
            raise Confused("a message is updated that nobody has seen: it is not shown")
        missing = _results(message) - self._calls
        if missing:
            raise Confused(f"results come before their calls: {missing}")
        before = self.messages.get(name)
        if before is not None and _calls(before) and not _has_text(before) and _has_text(message):
            raise Confused("text that comes after the calls of its message is not shown")
        self._calls |= _calls(message)
        if change == "deleted":
            self.messages.pop(name, None)
        else:
            self.messages[name] = message

    def text(self, role: str) -> list[str]:
        """The texts of the messages of a role, as they stand on the screen."""
        found = [message for message in self.messages.values() if message["role"] == role]
        return ["".join(part["data"]["text"] for part in item["parts"] if part["type"] == "text") for item in found]

    def ends(self) -> list[str]:
        """How the assistant's messages ended."""
        parts = [part for item in self.messages.values() if item["role"] == "assistant" for part in item["parts"]]
        return [part["data"]["reason"] for part in parts if part["type"] == "finish"]


def _calls(message: dict[str, Any]) -> set[str]:
    return {part["data"]["id"] for part in message["parts"] or () if part["type"] == "tool_call"}


def _results(message: dict[str, Any]) -> set[str]:
    return {part["data"]["tool_call_id"] for part in message["parts"] or () if part["type"] == "tool_result"}


def _has_text(message: dict[str, Any]) -> bool:
    return any(part["type"] in ("text", "reasoning") for part in message["parts"] or ())
