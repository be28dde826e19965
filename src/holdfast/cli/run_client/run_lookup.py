"""Finding sessions and runs: ids from prefixes, the latest session, and the directories of detached runs.

The directory of a detached run is recorded in a file per run in the data directory, so that the run is found from any
directory.
"""

import os
from collections.abc import Iterable
from typing import Literal

from holdfast.cli.server_connection import ServerConnection
from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel

__all__ = [
    "expand_id",
    "latest_session",
    "record_directory",
    "recorded_directory",
    "recorded_runs",
    "resolve_run",
    "resolve_session",
    "select_models",
]


_MAX_RECORDED = 500
"""Maximum number of files; older ones are removed. A file is kept after its answer was fetched, so it can be fetched
again.
"""


def record_directory(data_dir: str, run: str, directory: str) -> None:
    """Record the directory of a run. A failed write is ignored: the run is still found from its own directory."""
    directory_path = os.path.join(data_dir, "detached")
    try:
        os.makedirs(directory_path, mode=0o700, exist_ok=True)
        with open(os.path.join(directory_path, run), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(directory)
        notes = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(directory_path))
        for _, path in notes[:-_MAX_RECORDED]:
            os.unlink(path)
    except OSError:
        return


def recorded_directory(data_dir: str, run: str) -> str | None:
    """Return the recorded directory of a run."""
    try:
        with open(os.path.join(data_dir, "detached", run), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def recorded_runs(data_dir: str) -> list[str]:
    """Return the recorded runs."""
    try:
        return os.listdir(os.path.join(data_dir, "detached"))
    except OSError:
        return []


def latest_session(connection: ServerConnection) -> Session | None:
    """Return the session that was used last; sessions of sub-agents do not count."""
    sessions = connection.request(tuple[Session, ...], "GET", connection.path("sessions"))
    own = [session for session in sessions if not session.parent_session_id]
    return max(own, key=lambda session: session.updated_at, default=None)


def select_models(connection: ServerConnection, large: str | None, small: str | None) -> None:
    """Store the selected models in the workspace's configuration, as other clients do."""
    kind: Literal["large", "small"]
    for kind, name in (("large", large), ("small", small)):
        if name:
            choice = ConfigModelRequest(kind, _parse_model(name), scope=1)
            connection.send("POST", connection.path("config", "model"), body=choice, can_repeat=True)
    if large or small:
        connection.send("POST", connection.path("agent", "update"), can_repeat=True)


def _parse_model(name: str) -> SelectedModel:
    """Split provider and model. A name without a provider is resolved by the server."""
    provider, slash, model = name.partition("/")
    return SelectedModel(model, provider) if slash and provider and model else SelectedModel(name, "")


_MIN_PREFIX = 4
_ID_LENGTH = 32
"""Generated ids have this many hexadecimal digits; a complete one is not looked up."""
_DIGITS = frozenset("0123456789abcdef")
_MAX_LISTED = 5
_MAX_RUNS = 1000


def resolve_session(connection: ServerConnection, text: str) -> SessionId:
    """Resolve a session id or its prefix. An unknown id is returned unchanged, and the server refuses it."""
    if not _MIN_PREFIX <= len(text) < _ID_LENGTH:
        return SessionId(text)
    sessions = connection.request(tuple[Session, ...], "GET", connection.path("sessions"))
    return SessionId(expand_id(text, (session.id for session in sessions)))


def resolve_run(connection: ServerConnection, text: str, more: Iterable[str] = ()) -> RunId:
    """Resolve a run id or its prefix. `more` contains ids of other workspaces."""
    if not _MIN_PREFIX <= len(text) < _ID_LENGTH:
        return RunId(text)
    runs = connection.request(tuple[Run, ...], "GET", connection.path("runs"), query=(("limit", _MAX_RUNS),))
    return RunId(expand_id(text, [*(run.run_id for run in runs), *more]))


def expand_id(text: str, known: Iterable[str]) -> str:
    """Return the one id with this prefix. Raises `BadRequest` if there are several."""
    known = set(known)
    # Names that a user chose, such as run ids of scripts, are never expanded.
    found = sorted(name for name in known if name.startswith(text) and len(name) == _ID_LENGTH and set(name) <= _DIGITS)
    if text in known or not found:
        return text
    if len(found) > 1:
        more = ", …" if len(found) > _MAX_LISTED else ""
        raise BadRequest(f"{text} is ambiguous: {', '.join(found[:_MAX_LISTED])}{more}. Give a longer prefix.")
    return found[0]
