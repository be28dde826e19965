"""Ids as people type them: the first characters of one that we made are enough, where only one begins so.

A name that somebody chose is never guessed: a script that asks for job-1 does not mean job-10.
"""

from collections.abc import Iterable

from holdfast.cli.link import Link
from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session

__all__ = ["in_full", "run_named", "session_named"]

_SHORTEST = 4
_LONGEST = 32
"""Ids that we make have this many hexadecimal digits: such a one is not looked for."""
_DIGITS = frozenset("0123456789abcdef")
_SHOWN = 5
_MOST_RUNS = 1000


def session_named(link: Link, text: str) -> SessionId:
    """In the workspace of the link. What nobody knows stays as it is: the server says what is wrong with it."""
    if not _SHORTEST <= len(text) < _LONGEST:
        return SessionId(text)
    sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
    return SessionId(in_full(text, (session.id for session in sessions)))


def run_named(link: Link, text: str, more: Iterable[str] = ()) -> RunId:
    """The same for runs. `more` are ids that are known otherwise."""
    if not _SHORTEST <= len(text) < _LONGEST:
        return RunId(text)
    runs = link.ask(tuple[Run, ...], "GET", link.path("runs"), query=(("limit", _MOST_RUNS),))
    return RunId(in_full(text, [*(run.run_id for run in runs), *more]))


def in_full(text: str, known: Iterable[str]) -> str:
    """The one id that begins so. Raises `BadRequest` if there are several."""
    known = set(known)
    found = sorted(name for name in known if name.startswith(text) and len(name) == _LONGEST and set(name) <= _DIGITS)
    if text in known or not found:
        return text
    if len(found) > 1:
        more = ", …" if len(found) > _SHOWN else ""
        raise BadRequest(f"{text} can mean {', '.join(found[:_SHOWN])}{more}: give more of it.")
    return found[0]
