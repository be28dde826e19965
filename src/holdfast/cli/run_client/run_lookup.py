"""Directories of detached runs, one file per run, so that a run is found from any directory."""

import os
from collections.abc import Iterable
from typing import Literal

from holdfast.cli.server_connection import ServerConnection
from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModel, ModelChoice

__all__ = [
    "choose_models",
    "directory_of",
    "in_full",
    "latest_session",
    "noted",
    "remember",
    "run_named",
    "session_named",
]


_MOST = 500
"""Maximum number of files; older ones are removed. A file is kept after its answer was fetched, so it can be fetched
again.
"""


def remember(data_dir: str, run: str, directory: str) -> None:
    """Record the directory of a run. A failed write is ignored: the run is still found from its own directory."""
    place = os.path.join(data_dir, "detached")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        with open(os.path.join(place, run), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(directory)
        notes = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(place))
        for _, path in notes[:-_MOST]:
            os.unlink(path)
    except OSError:
        return


def directory_of(data_dir: str, run: str) -> str | None:
    """Return the recorded directory of a run."""
    try:
        with open(os.path.join(data_dir, "detached", run), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def noted(data_dir: str) -> list[str]:
    """Return the recorded runs."""
    try:
        return os.listdir(os.path.join(data_dir, "detached"))
    except OSError:
        return []


# Preparations of a prompt: model selection and the session that was used last.


def latest_session(link: ServerConnection) -> Session | None:
    """Return the session that was used last; sessions of sub-agents do not count."""
    sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
    own = [session for session in sessions if not session.parent_session_id]
    return max(own, key=lambda session: session.updated_at, default=None)


def choose_models(link: ServerConnection, large: str | None, small: str | None) -> None:
    """Store the selected models in the workspace's configuration, as other clients do."""
    kind: Literal["large", "small"]
    for kind, name in (("large", large), ("small", small)):
        if name:
            choice = ConfigModel(kind, _choice(name), scope=1)
            link.send("POST", link.path("config", "model"), body=choice, can_repeat=True)
    if large or small:
        link.send("POST", link.path("agent", "update"), can_repeat=True)


def _choice(name: str) -> ModelChoice:
    """Split provider and model. A name without a provider is resolved by the server."""
    provider, slash, model = name.partition("/")
    return ModelChoice(model, provider) if slash and provider and model else ModelChoice(name, "")


# Abbreviated ids: a unique prefix of a generated id is sufficient.

_SHORTEST = 4
_LONGEST = 32
"""Generated ids have this many hexadecimal digits; a complete one is not looked up."""
_DIGITS = frozenset("0123456789abcdef")
_SHOWN = 5
_MOST_RUNS = 1000


def session_named(link: ServerConnection, text: str) -> SessionId:
    """Resolve a session id in the workspace of the link. An unknown id is returned unchanged, and the server refuses
    it.
    """
    if not _SHORTEST <= len(text) < _LONGEST:
        return SessionId(text)
    sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
    return SessionId(in_full(text, (session.id for session in sessions)))


def run_named(link: ServerConnection, text: str, more: Iterable[str] = ()) -> RunId:
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
