"""What a prompt needs before it is sent: the models that were chosen, the session it belongs to."""

from typing import Literal

import msgspec

from holdfast.cli.link import Link
from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModel, ModelChoice, NewSession

__all__ = ["choose_models", "latest_session", "session_for", "title_of"]

_LONGEST_TITLE = 50


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Provider(msgspec.Struct, frozen=True):
    id: str
    models: tuple[_Model, ...] = ()


def title_of(text: str) -> str:
    """The first words of a prompt."""
    line = " ".join(text[:400].split())
    if len(line) <= _LONGEST_TITLE:
        return line or "New session"
    head = line[:_LONGEST_TITLE]
    return (head.rpartition(" ")[0] or head) + "…"


def session_for(link: Link, text: str, chosen: str | None, *, continues: bool) -> SessionId:
    if chosen:
        return SessionId(chosen)
    if continues and (latest := latest_session(link)) is not None:
        return latest.id
    made = link.ask(Session, "POST", link.path("sessions"), body=NewSession(title_of(text)))
    return made.id


def latest_session(link: Link) -> Session | None:
    """The one that was used last; those that agents open for themselves do not count."""
    sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
    own = [session for session in sessions if not session.parent_session_id]
    return max(own, key=lambda session: session.updated_at, default=None)


def choose_models(link: Link, large: str | None, small: str | None) -> None:
    """Kept in the workspace's configuration, like a choice made on a screen."""
    kind: Literal["large", "small"]
    for kind, name in (("large", large), ("small", small)):
        if name:
            choice = ConfigModel(kind, _choice(link, name), scope=1)
            link.send("POST", link.path("config", "model"), body=choice, can_repeat=True)
    if large or small:
        link.send("POST", link.path("agent", "update"), can_repeat=True)


def _choice(link: Link, name: str) -> ModelChoice:
    provider, slash, model = name.partition("/")
    if slash and provider and model:
        return ModelChoice(model, provider)
    providers = link.ask(tuple[_Provider, ...], "GET", link.path("providers"))
    found = [item.id for item in providers if any(known.id == name for known in item.models)]
    if len(found) != 1:
        known = ", ".join(f"{item.id}/{model.id}" for item in providers for model in item.models)
        raise BadRequest(f"Name the model as PROVIDER/MODEL. Known are: {known or 'none'}.")
    return ModelChoice(name, found[0])
