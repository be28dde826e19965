"""`holdfast attach`: a session as plain text, from its beginning, until Ctrl-C.

Output is appended and never redrawn, for screen readers and pipes. At a terminal the user can also send prompts.
"""

from collections.abc import Iterable, Iterator

import click

from holdfast.cli.common import Failure, sentences, where_options
from holdfast.cli.console.approvals import ANSWERS, ApprovalPrompt, QuestionPrompt
from holdfast.cli.console.input_line import Input
from holdfast.cli.console.run_output import RunOutput, complain
from holdfast.cli.console.terminal import Terminal
from holdfast.cli.console.transcript import as_text, asked_of, ending_of, said_by
from holdfast.cli.run_client.run_events import TextOnce
from holdfast.cli.run_client.run_follow import session_of
from holdfast.cli.run_client.run_lookup import latest_session, session_named
from holdfast.cli.server_connection import ServerConnection, new_id
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.events import CursorFilter, StreamEvent, decode_item
from holdfast.client.locate import locate
from holdfast.client.sync_client import SyncEventStream
from holdfast.domain.events import (
    ConfigChangedEvent,
    GapEvent,
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunEvent,
    SessionEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Message, Part, ToolCallPart, ToolResultPart, text_of
from holdfast.http11.sse import SseEvent
from holdfast.protocol.bodies import AgentMessage, Skip, SnapshotBody

__all__ = ["command"]

_QUIET = 60.0


class _Screen(RunOutput):
    """Prints a conversation as it grows."""

    def __init__(self) -> None:
        super().__init__("stream", is_quiet=True)
        self._pieces = TextOnce(self)
        self._shown: set[MessageId] = set()
        self._ended: set[MessageId] = set()
        self._told: set[ToolCallId] = set()
        self.typed: list[str] = []
        """Prompts that are already visible, because the user typed them here."""
        self._is_auto_approve = False

    def doing(self, what: str) -> None:
        """Do nothing: a tool is printed when its arguments are known."""

    def _tools(self, parts: Iterable[Part]) -> None:
        """Print tool calls, the last output lines of commands, and errors."""
        for part in parts:
            match part:
                case ToolCallPart(data=call) if call.finished and call.id not in self._told:
                    self._told.add(call.id)
                    self.line_of(asked_of(call), f"tool {call.name}")
                case ToolResultPart(data=result) if result.is_error:
                    self.line_of(result.content.strip(), f"{result.name} failed")
                case ToolResultPart(data=result) if result.name == "bash":
                    self.end_line()
                    self.write("".join(f"  {line}\n" for line in said_by(result)))
                case _:
                    pass

    def message(self, message: Message) -> None:
        """Print the parts of a message that have not been printed."""
        if message.role == "user" and message.id not in self._shown:
            self.end_line()
            if (text := text_of(message)) in self.typed:
                self.typed.remove(text)
                self.write("\n")
            else:
                self.write(f"\n{as_text([message])}\n\n")
        is_new = message.id not in self._shown
        self._shown.add(message.id)
        self._pieces.message(message)
        if is_new or message.role != "tool":
            self._tools(message.parts)
        if message.finish is not None and message.id not in self._ended:
            self._ended.add(message.id)
            self.end_line()
            if message.role == "assistant" and (ending := ending_of(message)):
                self.write(f"{ending}\n")

    def take(self, item: StreamEvent) -> None:
        """Print an event of the stream."""
        match item.event:
            case MessageEvent(change=change) if change.type != "deleted":
                self.message(change.object)
            case MessagePartEvent(payload=part):
                self._pieces.part(part)
                self._tools([part.content])
            case MessageDeltaEvent(payload=delta):
                self._pieces.delta(delta)
            case _:
                pass

    def ask(self, item: StreamEvent) -> None:
        """Print approvals and questions that cannot be answered here."""
        match item.event:
            case PermissionRequestEvent(change=ask):
                self.line_of(ask.object.description, f"{ask.object.tool_name} asks for permission")
            case PermissionNotificationEvent(change=notice) if notice.object.granted or notice.object.denied:
                refused = (
                    "Permission is not asked for any more." if notice.object.withdrawn else "Permission was refused."
                )
                self.line_of("Permission was given." if notice.object.granted else refused)
            case QuestionRequestEvent(change=asked):
                self.line_of(" ".join(f"{item.question}" for item in asked.object.questions), "The model asks")
            case QuestionNotificationEvent():
                self.line_of("The question is not open any more.")
            case _:
                pass

    def show_auto_approve(self, is_on: bool) -> None:
        """Print the state at the start, and when it changes."""
        if is_on != self._is_auto_approve:
            self._is_auto_approve = is_on
            self.line_of("Auto-approve is on: tools act without asking" if is_on else "Auto-approve is off: tools ask")

    def line_of(self, text: str, title: str = "") -> None:
        """Print a notice in brackets."""
        self.end_line()
        self.write(f"[{': '.join(word for word in (title, text) if word)}]\n")


class _Hands(ApprovalPrompt):
    """The user at the terminal: answers requests of the session, and sends every other line as a prompt."""

    _TAKES_PROMPTS = True

    def __init__(self, link: ServerConnection, screen: _Screen, session: SessionId) -> None:
        super().__init__(link, screen, RunId(""))
        self._screen = screen
        self._session = session
        self._input.start()
        self._inquirer = QuestionPrompt(link, screen, self._terminal, self._input, session, lambda: not self.is_asking)

    @property
    def patience(self) -> float | None:
        """Seconds between polls of the keyboard while a request is shown, or None."""
        return 0.1 if self._input.is_open else None

    def begin(self, runs: Iterator[RunId]) -> None:
        """Show the open requests of these runs."""
        self._runs.update(runs)
        self.look()
        self._inquirer.look()

    def take(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        if isinstance(item.event, RunEvent) and item.event.change.object.session_id == self._session:
            self._runs.add(item.event.change.object.run_id)
        super().take(item)
        self._inquirer.take(item)

    def _idle(self, done: Input) -> None:
        if self._inquirer.is_asking and self._inquirer.take_input(done):
            return
        word = done.text.partition(" ")[0]
        if word in ANSWERS or word in ("/answer", "/skip"):
            self._terminal.say(f"[Nothing waits for {word}.]\n")
        else:
            self._send(done.text)

    def _other_line(self, text: str) -> None:
        self._send(text)

    def _ended(self) -> None:
        raise SystemExit(0)

    def _close(self, ask: str, why: str) -> None:
        was_shown = ask == self._shown
        super()._close(ask, why)
        if was_shown and not self.is_asking:
            self._inquirer.again()

    def leave(self) -> None:
        """Restore the terminal."""
        self._speaker.clear()
        self._terminal.release()

    def _send(self, text: str) -> None:
        try:
            if text == "/cancel":
                self._link.send("POST", self._link.path("agent", "sessions", self._session, "cancel"), can_repeat=True)
                return
            run = RunId(new_id())
            message = AgentMessage(self._session, text, run, client_id=self._link.client_id, interactive=True)
            self._screen.typed.append(text)
            self._link.send("POST", self._link.path("agent"), body=message, can_repeat=True)
        except (ServerProblem, ConnectionLost, TimedOut, Unreachable) as problem:
            complain(f"holdfast: not sent: {problem}")


@click.command("attach")
@click.argument("session", metavar="[SESSION]", required=False)
@where_options
def command(*, session: str | None, **where: str | None) -> None:
    """Follow a session as plain text, until Ctrl-C: the conversation so far, then new messages.

    Without a session it is the one used last. At a terminal, every line you write is sent as a prompt, and /cancel
    stops what runs. Approvals and questions are shown here; a line never answers one unless it begins with /allow,
    /session, /always, /deny, /answer or /skip. With an empty line the arrows and enter answer, half a second after
    the last key. A broken connection is taken up where it broke. Leaving changes nothing.

    \b
      holdfast attach
      holdfast attach 3f6c              the beginning of an id is enough
      holdfast attach > talk.txt        also into a file or a pipe
    """
    with sentences():
        link = ServerConnection(locate(where["host"], where["data_dir"]), where["cwd"] or ".")
        link.enter()
        chosen = session_named(link, session or "")
        if not chosen:
            latest = latest_session(link)
            if latest is None:
                raise Failure('There are no sessions here yet: begin one with holdfast run "…".')
            chosen = latest.id
        link.send("GET", link.path("sessions", chosen))
        _follow(link, chosen)


def _follow(link: ServerConnection, session: SessionId) -> None:
    screen = _Screen()
    hands = _Hands(link, screen, session) if Terminal().is_there else None
    try:
        _follow_with(link, session, screen, hands)
    finally:
        if hands is not None:
            hands.leave()


def _follow_with(link: ServerConnection, session: SessionId, screen: _Screen, hands: _Hands | None) -> None:
    follower = CursorFilter(_catch_up(link, session, screen, hands))
    if hands is not None:
        complain("[A line and enter: send it. /cancel: stop what runs. Ctrl-C: leave.]")
    while True:
        try:
            with link.stream(follower.since) as stream:
                # Read after the stream was opened: a change in between would be missed.
                screen.show_auto_approve(_auto_approves(link))
                for raw in _heard(stream, hands):
                    item = decode_item(raw)
                    if not follower.accept(item):
                        continue
                    if isinstance(item.event, GapEvent):
                        _catch_up(link, session, screen, hands)
                    elif isinstance(item.event, ConfigChangedEvent):
                        screen.show_auto_approve(_auto_approves(link))
                    else:
                        _show(item, session, screen, hands)
        except (ConnectionLost, TimedOut, Unreachable):
            pass
        link.enter()


def _auto_approves(link: ServerConnection) -> bool:
    return link.ask(Skip, "GET", link.path("permissions", "skip")).skip


def _heard(stream: SyncEventStream, hands: _Hands | None) -> Iterator[SseEvent]:
    """Yield events; typed input is processed between them."""
    if hands is None:
        yield from stream
        return
    while not stream.is_over:
        hands.poll()
        yield from stream.take(hands.patience or _QUIET, wake=0)


def _show(item: StreamEvent, session: SessionId, screen: _Screen, hands: _Hands | None) -> None:
    if hands is not None:
        hands.take(item)
    if session_of(item) != session:
        return
    if hands is None:
        screen.ask(item)
    screen.take(item)
    if isinstance(item.event, SessionEvent) and item.event.change.type == "deleted":
        raise Failure("The session was deleted.")


def _catch_up(link: ServerConnection, session: SessionId, screen: _Screen, hands: _Hands | None) -> int:
    """Print the messages that have not been printed. Returns the cursor up to which everything is printed."""
    snapshot = link.ask(SnapshotBody, "GET", link.path("snapshot"), query=(("session_id", session),))
    for message in snapshot.messages:
        screen.message(message)
    if hands is not None:
        hands.begin(run.run_id for run in snapshot.runs if run.session_id == session)
    return snapshot.cursor
