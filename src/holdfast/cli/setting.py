"""What a prompt may need before it is sent: the models that were chosen, the session that was used last."""

from typing import Literal

from holdfast.cli.link import Link
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import ConfigModel, ModelChoice

__all__ = ["choose_models", "latest_session"]


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
            choice = ConfigModel(kind, _choice(name), scope=1)
            link.send("POST", link.path("config", "model"), body=choice, can_repeat=True)
    if large or small:
        link.send("POST", link.path("agent", "update"), can_repeat=True)


def _choice(name: str) -> ModelChoice:
    """A name alone is for the server to find: it knows who has it, and who can be used."""
    provider, slash, model = name.partition("/")
    return ModelChoice(model, provider) if slash and provider and model else ModelChoice(name, "")
