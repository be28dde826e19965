"""`holdfast attach`: prints a session as plain text, from its beginning, until Ctrl-C.

Output is appended and never redrawn, for screen readers and pipes. At a terminal the user can also send prompts.
"""

from collections.abc import Iterable, Iterator

import click

from holdfast.cli.common import CommandError, location_options, report_errors
from holdfast.cli.console.approvals import ANSWERS, ApprovalPrompt, QuestionPrompt
from holdfast.cli.console.input_line import Input
from holdfast.cli.console.run_output import RunOutput, print_stderr
from holdfast.cli.console.terminal_keys import Terminal
from holdfast.cli.console.transcript import as_text, finish_notice, last_output_lines, main_argument
from holdfast.cli.run_client.run_events import AnswerText
from holdfast.cli.run_client.run_follow import event_session
from holdfast.cli.run_client.run_lookup import latest_session, resolve_session
from holdfast.cli.server_connection import CHECK_INTERVAL, ServerConnection, new_id
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.events import CursorFilter, StreamEvent, decode_event
from holdfast.client.server_launcher import locate
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
from holdfast.protocol.bodies import AgentMessage, SkipPermissions, SnapshotBody

__all__ = ["command"]

_MAX_WAIT = 60.0


class _Screen(RunOutput):
    """Prints a conversation as it grows."""

    def __init__(self) -> None:
        super().__init__("stream", is_quiet=True)
        self._answers = AnswerText(self)
        self._shown: set[MessageId] = set()
        self._handle_end: set[MessageId] = set()
        self._printed_calls: set[ToolCallId] = set()
        self.typed: list[str] = []
        """Prompts that are already visible, because the user typed them here."""
        self._is_auto_approve = False

    def set_activity(self, what: str) -> None:
        """Do nothing: a tool is printed when its arguments are known."""

    def _print_tools(self, parts: Iterable[Part]) -> None:
        """Print tool calls, the last output lines of commands, and errors."""
        for part in parts:
            match part:
                case ToolCallPart(data=call) if call.finished and call.id not in self._printed_calls:
                    self._printed_calls.add(call.id)
                    self.print_bracketed(main_argument(call), f"tool {call.name}")
                case ToolResultPart(data=result) if result.is_error:
                    self.print_bracketed(result.content.strip(), f"{result.name} failed")
                case ToolResultPart(data=result) if result.name == "bash":
                    self.end_line()
                    self.write("".join(f"  {line}\n" for line in last_output_lines(result)))
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
        self._answers.add_message(message)
        if is_new or message.role != "tool":
            self._print_tools(message.parts)
        if message.finish is not None and message.id not in self._handle_end:
            self._handle_end.add(message.id)
            self.end_line()
            if message.role == "assistant" and (ending := finish_notice(message)):
                self.write(f"{ending}\n")

    def process(self, item: StreamEvent) -> None:
        """Print an event of the stream."""
        match item.event:
            case MessageEvent(change=change) if change.type != "deleted":
                self.message(change.object)
            case MessagePartEvent(payload=part):
                self._answers.add_part(part)
                self._print_tools([part.content])
            case MessageDeltaEvent(payload=delta):
                self._answers.add_delta(delta)
            case _:
                pass

    def show_request(self, item: StreamEvent) -> None:
        """Print approvals and questions that cannot be answered here."""
        match item.event:
            case PermissionRequestEvent(change=ask):
                self.print_bracketed(ask.object.description, f"{ask.object.tool_name} requests permission")
            case PermissionNotificationEvent(change=notice) if notice.object.granted or notice.object.denied:
                refused = (
                    "The permission request was withdrawn." if notice.object.withdrawn else "Permission was refused."
                )
                self.print_bracketed("Permission was granted." if notice.object.granted else refused)
            case QuestionRequestEvent(change=asked):
                self.print_bracketed(" ".join(f"{item.question}" for item in asked.object.questions), "Question")
            case QuestionNotificationEvent():
                self.print_bracketed("The question is closed.")
            case _:
                pass

    def show_auto_approve(self, is_on: bool) -> None:
        """Print the state at the start, and when it changes."""
        if is_on != self._is_auto_approve:
            self._is_auto_approve = is_on
            self.print_bracketed(
                "Auto-approve is on: tools act without approval"
                if is_on
                else "Auto-approve is off: tools need approval"
            )

    def print_bracketed(self, text: str, title: str = "") -> None:
        """Print a notice in brackets."""
        self.end_line()
        self.write(f"[{': '.join(word for word in (title, text) if word)}]\n")


class _AttachedTerminal(ApprovalPrompt):
    """The user at the terminal: answers requests of the session, and sends every other line as a prompt."""

    _SENDS_PROMPTS = True

    def __init__(self, connection: ServerConnection, screen: _Screen, session: SessionId) -> None:
        super().__init__(connection, screen, RunId(""))
        self._screen = screen
        self._session = session
        self._input.start()
        self._questions = QuestionPrompt(
            connection, screen, self._terminal, self._input, session, lambda: not self.is_open
        )

    @property
    def poll_interval(self) -> float | None:
        """Seconds between polls of the keyboard while a request is shown, or None."""
        return 0.1 if self._input.is_open else None

    def begin(self, runs: Iterator[RunId]) -> None:
        """Show the open requests of these runs."""
        self._runs.update(runs)
        self.refresh()
        self._questions.refresh()

    def process(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        if isinstance(item.event, RunEvent) and item.event.change.object.session_id == self._session:
            self._runs.add(item.event.change.object.run_id)
        super().process(item)
        self._questions.process(item)

    def _idle(self, entry: Input) -> None:
        if self._questions.is_open and self._questions.handle_input(entry):
            return
        word = entry.text.partition(" ")[0]
        if word in ANSWERS or word in ("/answer", "/skip"):
            self._terminal.write(f"[There is no open request for {word}.]\n")
        else:
            self._send(entry.text)

    def _other_line(self, text: str) -> None:
        self._send(text)

    def _handle_end(self) -> None:
        raise SystemExit(0)

    def _close(self, ask: str, why: str) -> None:
        was_shown = ask == self._shown
        super()._close(ask, why)
        if was_shown and not self.is_open:
            self._questions.show_again()

    def leave(self) -> None:
        """Restore the terminal."""
        self._output.clear()
        self._terminal.release()

    def _send(self, text: str) -> None:
        try:
            if text == "/cancel":
                self._connection.send(
                    "POST", self._connection.path("agent", "sessions", self._session, "cancel"), can_repeat=True
                )
                return
            run = RunId(new_id())
            message = AgentMessage(self._session, text, run, client_id=self._connection.client_id, interactive=True)
            self._screen.typed.append(text)
            self._connection.send("POST", self._connection.path("agent"), body=message, can_repeat=True)
        except (ServerProblem, ConnectionLost, TimedOut, Unreachable) as problem:
            print_stderr(f"holdfast: not sent: {problem}")


@click.command("attach")
@click.argument("session", metavar="[SESSION]", required=False)
@location_options
def command(*, session: str | None, **location: str | None) -> None:
    """Follow a session as plain text, until Ctrl-C: the conversation so far, then new messages.

    The default is the session used last. At a terminal, every line is sent as a prompt, and /cancel cancels active
    runs. Approvals and questions are shown here; a line answers one only if it begins with /allow, /session, /always,
    /deny, /answer or /skip. While the line is empty, the arrows and Enter answer, half a second after the last key.
    A broken connection is resumed. Exiting does not affect the session.

    \b
      holdfast attach
      holdfast attach 3f6c              a prefix of an id is sufficient
      holdfast attach > talk.txt        to a file or a pipe
    """
    with report_errors():
        connection = ServerConnection(locate(location["host"], location["data_dir"]), location["cwd"] or ".")
        connection.open()
        chosen = resolve_session(connection, session or "")
        if not chosen:
            latest = latest_session(connection)
            if latest is None:
                raise CommandError('There are no sessions here yet: start one with holdfast run "…".')
            chosen = latest.id
        connection.send("GET", connection.path("sessions", chosen))
        _follow(connection, chosen)


def _follow(connection: ServerConnection, session: SessionId) -> None:
    screen = _Screen()
    terminal = _AttachedTerminal(connection, screen, session) if Terminal().is_usable else None
    try:
        _follow_with(connection, session, screen, terminal)
    finally:
        if terminal is not None:
            terminal.leave()


def _follow_with(
    connection: ServerConnection, session: SessionId, screen: _Screen, terminal: _AttachedTerminal | None
) -> None:
    follower = CursorFilter(_catch_up(connection, session, screen, terminal))
    if terminal is not None:
        print_stderr("[Enter a line to send it as a prompt. /cancel: cancel active runs. Ctrl-C: exit.]")
    while True:
        try:
            with connection.stream(follower.since) as stream:
                # Read after the stream was opened: a change in between would be missed.
                screen.show_auto_approve(_auto_approves(connection))
                for raw in _read_events(connection, stream, terminal):
                    item = decode_event(raw)
                    if not follower.accept(item):
                        continue
                    if isinstance(item.event, GapEvent):
                        _catch_up(connection, session, screen, terminal)
                    elif isinstance(item.event, ConfigChangedEvent):
                        screen.show_auto_approve(_auto_approves(connection))
                    else:
                        _show(item, session, screen, terminal)
        except (ConnectionLost, TimedOut, Unreachable):
            pass
        connection.open()


def _auto_approves(connection: ServerConnection) -> bool:
    return connection.request(SkipPermissions, "GET", connection.path("permissions", "skip")).skip


def _read_events(
    connection: ServerConnection, stream: SyncEventStream, terminal: _AttachedTerminal | None
) -> Iterator[SseEvent]:
    """Yield events; typed input is processed between them, and with several hosts the server is checked."""
    if terminal is None and not connection.has_alternatives:
        yield from stream
        return
    limit = CHECK_INTERVAL if connection.has_alternatives else _MAX_WAIT
    while not stream.is_over:
        if terminal is not None:
            terminal.poll()
        wait = (terminal.poll_interval if terminal is not None else None) or limit
        yield from stream.receive(wait, wake=0 if terminal is not None else None)
        connection.check_stream(stream)


def _show(item: StreamEvent, session: SessionId, screen: _Screen, terminal: _AttachedTerminal | None) -> None:
    if terminal is not None:
        terminal.process(item)
    if event_session(item) != session:
        return
    if terminal is None:
        screen.show_request(item)
    screen.process(item)
    if isinstance(item.event, SessionEvent) and item.event.change.type == "deleted":
        raise CommandError("The session was deleted.")


def _catch_up(
    connection: ServerConnection, session: SessionId, screen: _Screen, terminal: _AttachedTerminal | None
) -> int:
    """Print the messages that have not been printed. Returns the cursor up to which everything is printed."""
    snapshot = connection.request(SnapshotBody, "GET", connection.path("snapshot"), query=(("session_id", session),))
    for message in snapshot.messages:
        screen.message(message)
    if terminal is not None:
        terminal.begin(run.run_id for run in snapshot.runs if run.session_id == session)
    return snapshot.cursor
