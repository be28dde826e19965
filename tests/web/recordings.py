"""Recorded streams, and the view after each step, for the Python and the TypeScript fold.

A recording is a list of steps. A step is an event with its number, or a loaded snapshot. The expected view is stored
beside it, once for a view that keeps all messages and once for one that keeps those of watched sessions.
`tests/web/record.py` makes the recordings; the page's own tests read the same files.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.events import decode_event
from holdfast.client.view import View, ViewSettings
from holdfast.domain.ids import SessionId
from holdfast.http11.sse import SseEvent
from holdfast.protocol.bodies import SnapshotBody

__all__ = ["FOLD", "Recording", "folded", "recordings"]

FOLD = Path(__file__).parent / "fold"

Steps = list[dict[str, Any]]


class Recording(msgspec.Struct):
    """By the kind of view, `all` or `watched`: the final view, and after each step eight letters of its digest, so that
    the first difference is found.
    """

    steps: Steps
    shown: dict[str, Any]
    digests: dict[str, str]


def recordings() -> list[Path]:
    return sorted(FOLD.glob("*.json"))


class Fold:
    """A view, and the sessions that were named to it."""

    def __init__(self, *, keeps_all: bool) -> None:
        self._view = View(ViewSettings(keeps_all=keeps_all))
        self._sessions: set[str] = set()
        self._changed: list[bool] = []

    def take(self, step: dict[str, Any]) -> None:
        if "snapshot" in step:
            session = SessionId(step["session"]) if step["session"] else None
            self._view.load(msgspec.convert(step["snapshot"], SnapshotBody), session)
            return
        item = decode_event(SseEvent(json.dumps(step["event"]).encode(), step["number"]))
        self._changed.append(self._view.apply(item))
        named = step["event"]["payload"]
        named = named.get("payload", named) if isinstance(named, dict) else {}
        self._sessions.add(named.get("session_id") or "")

    def shown(self) -> dict[str, Any]:
        """Return the view as plain JSON. `changed` contains for each event whether it may have changed the view."""
        view = self._view
        found = {name: view.messages(SessionId(name)) for name in sorted(self._sessions)}
        shown = {
            "cursor": view.cursor,
            "is_stale": view.is_stale,
            "workspace": view.workspace,
            "sessions": list(view.sessions.values()),
            "runs": list(view.runs.values()),
            "permissions": list(view.permissions.values()),
            "questions": list(view.questions.values()),
            "outputs": view.outputs,
            "presence": view.presence,
            "notices": list(view.notices),
            "messages": {name: messages for name, messages in found.items() if messages},
            "changed": self._changed,
        }
        plain: dict[str, Any] = json.loads(msgspec.json.encode(shown), parse_float=_number)
        return plain


def _number(text: str) -> float:
    """JavaScript has one type of number: integers have no decimal point."""
    value = float(text)
    return int(value) if value.is_integer() else value


def folded(steps: Steps, *, keeps_all: bool) -> tuple[dict[str, Any], str]:
    """Return the final view and the digests of the view after each step."""
    fold = Fold(keeps_all=keeps_all)
    digests = ""
    for step in steps:
        fold.take(step)
        plain = json.dumps(fold.shown(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digests += hashlib.sha256(plain.encode()).hexdigest()[:8]
    return fold.shown(), digests
