"""Decides whether a key press belongs to the composer or to an open approval or question. Pure.

A request for an answer appears while the user may be in the middle of a sentence. Two earlier designs failed: a modal
dialog received the rest of the sentence as shortcuts, and ignoring keys for a fixed time after the appearance only
moved the accident. Here the composer owns the keyboard, and a request receives keys in two cases only:

* **settled**: the composer is empty, and neither the appearance of the request nor any key press lies within the last
  `SETTLE` milliseconds. Arrows and Enter then act, for questions number keys as well. Every other key belongs to the
  composer and restarts the wait.
* **focused**: Tab (or a click) moved the focus to the request. All keys act on it until the focus leaves.

Three details matter. A request settles only in `tick`, after which the caller draws it as active: a key that was
pressed before that moment, but is processed later, does not act (`settled_at`). A held Enter repeats after a delay
that may be longer than `SETTLE`, so an Enter that directly follows another one within `REPEAT` is kept back for
`REPEAT_INTERVAL` and dropped if a third one follows (`KeyRoute("hold")`, `release`); callers that see repetition
(browsers) pass `is_repeat` and a `repeat` of 0 instead. A number key may be the beginning of a text ("2 more things"):
when a letter follows, `KeyRoute.restore` returns the digits for the composer.

All times are milliseconds of one monotonic clock. `web/src/dialogs/focus.ts` is the twin of this module; both pass
`tests/client/answer_focus.json`.
"""

from typing import Literal, NamedTuple

__all__ = [
    "ARROWS",
    "REPEAT",
    "REPEAT_INTERVAL",
    "SETTLE",
    "Focus",
    "KeyRoute",
    "Kind",
    "appear",
    "blur",
    "click",
    "disappear",
    "edit",
    "focus",
    "press",
    "release",
    "remaining",
    "tick",
]

SETTLE = 500
"""Milliseconds without an appearance or a key press before a request accepts keys."""
REPEAT = 1_100
"""Terminals do not report key repetition, which begins after up to a second."""
REPEAT_INTERVAL = 150
"""Longest time between two repetitions of a held key."""

ARROWS = frozenset({"up", "down", "left", "right"})
_DIGITS = frozenset("123456789")

Kind = Literal["approval", "question"]
Target = Literal["composer", "request", "focus", "blur", "hold"]


class KeyRoute(NamedTuple):
    """Receiver of a key. `focus` and `blur`: the key moves the focus and does nothing else. `hold`: `release`
    determines later whether it acts.
    """

    target: Target
    restore: str = ""
    """Digits taken as choices that turned out to be text; the composer inserts them before the key."""


class Focus(NamedTuple):
    """State of one keyboard. `request` is the id of the shown request, or empty."""

    request: str = ""
    kind: Kind = "approval"
    is_empty: bool = True
    """True if the composer has the focus and holds neither text nor attachments."""
    is_focused: bool = False
    is_settled: bool = False
    settled_at: int = 0
    appeared_at: int = 0
    quiet_since: int = 0
    """Later of the appearance and the last key press."""
    last_key: str = ""
    last_key_at: int = -1_000_000
    digits: str = ""
    held_at: int | None = None
    """Time of an Enter that may be the repetition of the one before."""
    repeat: int = REPEAT

    @property
    def is_active(self) -> bool:
        """True if the choices are drawn as available."""
        return self.is_focused or self.is_settled


def appear(state: Focus, request: str, kind: Kind, at: int) -> Focus:
    """Show a request. Nothing of an earlier request carries over, neither focus nor settled time."""
    if request == state.request:
        return state
    return disappear(state)._replace(
        request=request, kind=kind, appeared_at=at, quiet_since=max(at, state.last_key_at, state.quiet_since)
    )


def disappear(state: Focus) -> Focus:
    """Remove the request."""
    return state._replace(request="", is_focused=False, is_settled=False, digits="", held_at=None)


def edit(state: Focus, *, is_empty: bool, at: int) -> Focus:
    """Report whether the composer is empty and has the focus; called after every change."""
    if is_empty == state.is_empty:
        return state
    if is_empty:
        return state._replace(is_empty=True, quiet_since=max(state.quiet_since, at))
    return state._replace(is_empty=False, is_settled=False, digits="", held_at=None)


def focus(state: Focus) -> Focus:
    """Move the focus to the request."""
    return state._replace(is_focused=bool(state.request), is_settled=False, digits="", held_at=None)


def blur(state: Focus, at: int) -> Focus:
    """Move the focus away from the request; it has to settle again."""
    if not state.is_focused:
        return state
    return state._replace(is_focused=False, is_settled=False, quiet_since=max(state.quiet_since, at))


def press(state: Focus, key: str, at: int, *, is_repeat: bool = False) -> tuple[Focus, KeyRoute]:
    """Route a key: an arrow, `enter`, `tab`, `escape`, a digit, `text` for other characters and pastes, or `other`."""
    follows_enter = key == state.last_key == "enter"
    is_repeat = is_repeat or (follows_enter and state.held_at is not None and at - state.held_at < REPEAT_INTERVAL)
    after = state._replace(last_key=key, last_key_at=max(at, state.last_key_at), held_at=None)
    if not state.request:
        return after, KeyRoute("composer")
    if state.is_focused:
        if key in ("tab", "escape"):
            return blur(after, at), KeyRoute("blur")
        return after, KeyRoute("request")
    if key == "tab":
        return focus(after), KeyRoute("focus")
    if _accepts_key(state, key) and at >= state.settled_at and not is_repeat:
        if follows_enter and at - state.last_key_at < state.repeat:
            return after._replace(held_at=at), KeyRoute("hold")
        return after._replace(digits=state.digits + key if key in _DIGITS else ""), KeyRoute("request")
    is_empty = state.is_empty and key != "text" and key not in _DIGITS
    after = after._replace(is_empty=is_empty, is_settled=False, quiet_since=max(state.quiet_since, at), digits="")
    return after, KeyRoute("composer", state.digits if key == "text" else "")


def _accepts_key(state: Focus, key: str) -> bool:
    """Return whether a settled request accepts the key."""
    is_choice = key == "enter" or key in ARROWS or (state.kind == "question" and key in _DIGITS)
    return state.is_settled and is_choice


def release(state: Focus, at: int) -> tuple[Focus, bool]:
    """Return whether the Enter that was kept back acts now, because no other key followed it."""
    if state.held_at is None or at - state.held_at < REPEAT_INTERVAL:
        return state, False
    return state._replace(held_at=None, last_key=""), True


def click(state: Focus, at: int) -> tuple[Focus, KeyRoute]:
    """Route a click on a choice. A click on inactive choices only moves the focus, and not right after they appeared
    under the pointer.
    """
    if state.is_active:
        return state, KeyRoute("request")
    if state.request and at - state.appeared_at >= SETTLE:
        return focus(state), KeyRoute("focus")
    return state, KeyRoute("composer")


def tick(state: Focus, at: int) -> Focus:
    """Let the request settle if its time has come. The caller reports the composer's state first, and draws after."""
    if state.held_at is not None or remaining(state, at) != 0:
        return state
    return state._replace(is_settled=True, settled_at=at, digits="")


def remaining(state: Focus, at: int) -> int | None:
    """Milliseconds until `release` or `tick` has something to do; None if time alone changes nothing."""
    if state.held_at is not None:
        return max(0, state.held_at + REPEAT_INTERVAL - at)
    if not state.request or state.is_active or not state.is_empty:
        return None
    return max(0, state.quiet_since + SETTLE - at)
