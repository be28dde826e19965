"""`holdfast attach`: a session as plain text, from its beginning and on, until Ctrl-C."""

import click

from holdfast.cli.common import Failure, sentences, where_options
from holdfast.cli.conduct import session_of
from holdfast.cli.link import Link
from holdfast.cli.setting import latest_session
from holdfast.cli.speak import Speaker
from holdfast.cli.transcript import as_text, ending_of
from holdfast.cli.watch import Pieces
from holdfast.client.errors import ConnectionLost, TimedOut, Unreachable
from holdfast.client.items import Follower, Item, decode_item
from holdfast.client.locate import locate
from holdfast.domain.events import GapEvent, MessageDeltaEvent, MessageEvent, MessagePartEvent, SessionEvent
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message
from holdfast.protocol.bodies import SnapshotBody

__all__ = ["command"]


class _Screen(Speaker):
    """Prints a conversation as it grows."""

    def __init__(self) -> None:
        super().__init__("stream", is_quiet=True)
        self._pieces = Pieces(self)
        self._shown: set[MessageId] = set()
        self._ended: set[MessageId] = set()

    def doing(self, what: str) -> None:
        if what.startswith("tool "):
            self.end_line()
            self.write(f"[{what}]\n")

    def message(self, message: Message) -> None:
        if message.role == "user" and message.id not in self._shown:
            self.end_line()
            self.write(f"\n{as_text([message])}\n\n")
        self._shown.add(message.id)
        self._pieces.message(message)
        if message.finish is not None and message.id not in self._ended:
            self._ended.add(message.id)
            self.end_line()
            if message.role == "assistant" and (ending := ending_of(message)):
                self.write(f"{ending}\n")

    def take(self, item: Item) -> None:
        match item.event:
            case MessageEvent(payload=change) if change.type != "deleted":
                self.message(change.payload)
            case MessagePartEvent(payload=part):
                self._pieces.part(part)
            case MessageDeltaEvent(payload=delta):
                self._pieces.delta(delta)
            case _:
                pass


@click.command("attach")
@click.argument("session", metavar="SESSION", required=False)
@where_options
def command(*, session: str | None, **where: str | None) -> None:
    """Follow a session as plain text, until Ctrl-C: what was said, then what is being said.

    Without a session it is the one used last. A broken connection is taken up where it broke. Leaving changes
    nothing.

    \b
      holdfast attach
      holdfast attach 3f6c…
    """
    with sentences():
        link = Link(locate(where["host"], where["data_dir"]), where["cwd"] or ".")
        link.enter()
        chosen = SessionId(session or "")
        if not chosen:
            latest = latest_session(link)
            if latest is None:
                raise Failure('There are no sessions here yet: begin one with holdfast run "…".')
            chosen = latest.id
        link.send("GET", link.path("sessions", chosen))
        _follow(link, chosen)


def _follow(link: Link, session: SessionId) -> None:
    screen = _Screen()
    follower = Follower(_catch_up(link, session, screen))
    while True:
        try:
            with link.stream(follower.since) as stream:
                for raw in stream:
                    item = decode_item(raw)
                    if not follower.accept(item):
                        continue
                    if isinstance(item.event, GapEvent):
                        _catch_up(link, session, screen)
                    elif session_of(item) == session:
                        screen.take(item)
                        if isinstance(item.event, SessionEvent) and item.event.payload.type == "deleted":
                            raise Failure("The session was deleted.")
        except (ConnectionLost, TimedOut, Unreachable):
            pass
        link.enter()


def _catch_up(link: Link, session: SessionId, screen: _Screen) -> int:
    """Show what is there and was not shown yet. The number up to which that is all."""
    snapshot = link.ask(SnapshotBody, "GET", link.path("snapshot"), query=(("session_id", session),))
    for message in snapshot.messages:
        screen.message(message)
    return snapshot.cursor
