"""Abbreviated ids: a unique prefix of a generated id is sufficient.

A name that the user chose is never completed: a script that requests job-1 does not mean job-10.
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
"""Generated ids have this many hexadecimal digits; a complete one is not looked up."""
_DIGITS = frozenset("0123456789abcdef")
_SHOWN = 5
_MOST_RUNS = 1000


def session_named(link: Link, text: str) -> SessionId:
    """Resolve a session id in the workspace of the link. An unknown id is returned unchanged, and the server refuses
    it.
    """
    if not _SHORTEST <= len(text) < _LONGEST:
        return SessionId(text)
    sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
    return SessionId(in_full(text, (session.id for session in sessions)))


def run_named(link: Link, text: str, more: Iterable[str] = ()) -> RunId:
    """Resolve a run id. `more` contains ids that are known from elsewhere."""
    if not _SHORTEST <= len(text) < _LONGEST:
        return RunId(text)
    runs = link.ask(tuple[Run, ...], "GET", link.path("runs"), query=(("limit", _MOST_RUNS),))
    return RunId(in_full(text, [*(run.run_id for run in runs), *more]))


def in_full(text: str, known: Iterable[str]) -> str:
    """Return the one id with this prefix. Raises `BadRequest` if there are several."""
    known = set(known)
    found = sorted(name for name in known if name.startswith(text) and len(name) == _LONGEST and set(name) <= _DIGITS)
    if text in known or not found:
        return text
    if len(found) > 1:
        more = ", …" if len(found) > _SHOWN else ""
        raise BadRequest(f"{text} can mean {', '.join(found[:_SHOWN])}{more}: give more of it.")
    return found[0]
