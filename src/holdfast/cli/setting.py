"""Preparations of a prompt: model selection and the session that was used last."""

from typing import Literal

from holdfast.cli.link import Link
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModel, ModelChoice

__all__ = ["choose_models", "latest_session"]


def latest_session(link: Link) -> Session | None:
    """Return the session that was used last; sessions of sub-agents do not count."""
    sessions = link.ask(tuple[Session, ...], "GET", link.path("sessions"))
    own = [session for session in sessions if not session.parent_session_id]
    return max(own, key=lambda session: session.updated_at, default=None)


def choose_models(link: Link, large: str | None, small: str | None) -> None:
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
