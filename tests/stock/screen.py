"""The effect of events on a stock terminal UI, and events it cannot display: rules that a server must obey."""

from typing import Any

from stock.decode import decode_event
from stock.wire import ClientFailure

__all__ = ["Screen", "label_of"]


def label_of(kind: str, change: str, thing: dict[str, Any]) -> str:
    """Describe an event in a few words, as stories write it."""
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
    """The displayed messages. `see` raises for an event that could not be displayed correctly."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.messages: dict[str, dict[str, Any]] = {}
        self.session: dict[str, Any] = {}
        self.shown = ""
        """The displayed session; events of others are decoded and skipped."""
        self.dialog: dict[str, Any] | None = None
        """The current permission request; a second one would replace it permanently."""
        self.form: dict[str, Any] | None = None
        """The current questions. Any notification closes them, whatever batch it names."""
        self._created: set[str] = set()
        self._calls: set[str] = set()
        self._is_session_told = False
        self.has_crashed = False
        """Set by a test that kills a node: the recovery ends a turn and changes nothing else of its session."""

    def load(self, messages: list[dict[str, Any]]) -> None:
        """Load the whole conversation; newer messages from events stay."""
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
            if not (self._is_session_told or self.has_crashed) and thing["message_id"]:
                raise ClientFailure("a turn ends without a session event: its title and its usage stay old")
            self._is_session_told = False
        return label

    def _ask(self, kind: str, thing: dict[str, Any]) -> None:
        """Dialogs open whichever session is displayed."""
        if kind == "permission_request":
            if self.dialog is not None and self.dialog["id"] != thing["id"]:
                raise ClientFailure("a second permission takes the place of the first, which never comes back")
            if not isinstance(thing.get("params"), dict):
                raise ClientFailure("a permission without parameters: the dialog shows none")
            self.dialog = thing
        elif kind == "permission_notification" and (thing["granted"] or thing["denied"]):
            if self.dialog is not None and self.dialog["tool_call_id"] == thing["tool_call_id"]:
                self.dialog = None
        elif kind == "question_batch_request":
            if self.form is not None:
                raise ClientFailure("a second form takes the place of the first")
            self.form = thing
        elif kind == "question_batch_notification":
            if self.form is not None and self.form["id"] != thing["batch_id"]:
                raise ClientFailure("a notice about another batch closes the form that is shown")
            self.form = None

    def _message(self, change: str, message: dict[str, Any]) -> None:
        name = message["id"]
        if change == "created":
            if name in self._created:
                raise ClientFailure("a message is created twice: the second one is not shown")
            self._created.add(name)
        elif change == "updated" and name not in self.messages:
            raise ClientFailure("a message is updated that nobody has seen: it is not shown")
        missing = _results(message) - self._calls
        if missing:
            raise ClientFailure(f"results come before their calls: {missing}")
        before = self.messages.get(name)
        if before is not None and _calls(before) and not _has_text(before) and _has_text(message):
            raise ClientFailure("text that comes after the calls of its message is not shown")
        self._calls |= _calls(message)
        if change == "deleted":
            self.messages.pop(name, None)
        else:
            self.messages[name] = message

    def text(self, role: str) -> list[str]:
        """Return the displayed texts of the messages of a role."""
        found = [message for message in self.messages.values() if message["role"] == role]
        return ["".join(part["data"]["text"] for part in item["parts"] if part["type"] == "text") for item in found]

    def ends(self) -> list[str]:
        """Return the finish reasons of the assistant's messages."""
        parts = [part for item in self.messages.values() if item["role"] == "assistant" for part in item["parts"]]
        return [part["data"]["reason"] for part in parts if part["type"] == "finish"]


def _calls(message: dict[str, Any]) -> set[str]:
    return {part["data"]["id"] for part in message["parts"] or () if part["type"] == "tool_call"}


def _results(message: dict[str, Any]) -> set[str]:
    return {part["data"]["tool_call_id"] for part in message["parts"] or () if part["type"] == "tool_result"}


def _has_text(message: dict[str, Any]) -> bool:
    return any(part["type"] in ("text", "reasoning") for part in message["parts"] or ())
