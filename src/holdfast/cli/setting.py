"""What a prompt may need before it is sent: the models that were chosen, the session that was used last."""

from typing import Literal

import msgspec

from holdfast.cli.link import Link
from holdfast.domain.errors import BadRequest
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModel, ModelChoice

__all__ = ["choose_models", "latest_session"]


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Provider(msgspec.Struct, frozen=True):
    id: str
    models: tuple[_Model, ...] = ()


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
