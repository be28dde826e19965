"""A workspace with random events, and its snapshot after each of them."""

from collections.abc import Callable
from random import Random

import msgspec

from holdfast.client.events import StreamEvent
from holdfast.domain.approvals import PermissionNotification, PermissionRequest
from holdfast.domain.events import (
    Change,
    DurableEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.message_merge import grow, text_length
from holdfast.domain.messages import Finish, FinishPart, Message, Part, Reasoning, ReasoningPart, Text, TextPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody

__all__ = ["Harness"]

_SESSIONS = [SessionId("s1"), SessionId("s2")]


class Harness:
    """The simplest possible bookkeeping: immutable messages, grown one event at a time."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.received_events: list[StreamEvent] = []
        self.number = 0
        self.sessions: dict[SessionId, Session] = {}
        self.messages: dict[MessageId, Message] = {}
        self.runs: dict[RunId, Run] = {}
        self.permissions: dict[str, dict[str, object]] = {}
        self._count = 0

    def step(self) -> None:
        acts: list[Callable[[], None]] = [
            self._session,
            self._message,
            self._message,
            self._change_message,
            self._grow,
            self._grow,
            self._grow,
            self._run,
            self._change_run,
            self._ask,
            self._delete,
        ]
        self._chance.choice(acts)()

    def snapshot(self, session: SessionId | None) -> SnapshotBody:
        return SnapshotBody(
            cursor=self.number,
            epoch=1,
            workspace=WorkspaceBody(WorkspaceId("w"), "/w"),
            sessions=tuple(self.sessions.values()),
            messages=tuple(message for message in self.messages.values() if message.session_id == session),
            runs=tuple(reversed(self.runs.values())),
            permissions=tuple(self.permissions.values()),
        )

    def _publish(self, event: DurableEvent) -> None:
        # After an unclean start the numbers jump.
        self.number += self._chance.choice([1, 1, 1, 10_000])
        self.received_events.append(StreamEvent(event, self.number))

    def _name(self) -> str:
        self._count += 1
        return str(self._count)

    def _session(self) -> None:
        name = self._chance.choice(_SESSIONS)
        kind = "updated" if name in self.sessions else "created"
        title = self._words()
        fresh = Session(name, SessionId(""), title, 0, 0, 0, MessageId(""), 0.0, 1, 1, False, 0)
        session = self.sessions[name] = msgspec.structs.replace(self.sessions.get(name, fresh), title=title)
        self._publish(SessionEvent(Change("updated" if kind == "updated" else "created", session)))

    def _message(self) -> None:
        session = self._chance.choice(_SESSIONS)
        if session not in self.sessions:
            return
        name = self._name()
        message = Message(self._parts(), MessageId("m" + name), "assistant", session, "", "", 1, int(name))
        self.messages[message.id] = message
        self._counts(session, 1, int(name))
        self._publish(MessageEvent(Change("created", message)))

    def _counts(self, name: SessionId, more: int, at: int = 0) -> None:
        """Update the counts without a session event, as every store does."""
        session = self.sessions[name]
        self.sessions[name] = msgspec.structs.replace(
            session, message_count=session.message_count + more, updated_at=max(session.updated_at, at)
        )

    def _parts(self) -> tuple[Part, ...]:
        return tuple(_part(self._chance.randint(0, 2), self._words()) for _ in range(self._chance.randint(0, 3)))

    def _words(self) -> str:
        return "".join(self._chance.choices("abü\U0001f600 ", k=self._chance.randint(0, 4)))

    def _change_message(self) -> None:
        if self.messages:
            message = self._chance.choice(list(self.messages.values()))
            message = self.messages[message.id] = msgspec.structs.replace(message, parts=self._parts())
            self._publish(MessageEvent(Change("updated", message)))

    def _grow(self) -> None:
        """Add growth of all kinds: fitting, overlapping, with a hole, of parts that do not grow, whole parts."""
        if not self.messages:
            return
        message = self._chance.choice(list(self.messages.values()))
        part = self._chance.randint(0, len(message.parts) + 1)
        growth: MessageDelta | MessagePart
        if self._chance.random() < 0.5:
            length = (text_length(message.parts[part]) if part < len(message.parts) else None) or 0
            offset = max(0, length + self._chance.choice([0, 0, 0, -2, 2]))
            growth = MessageDelta(message.session_id, message.id, part, offset, self._words())
            self.received_events.append(StreamEvent(MessageDeltaEvent(growth)))
        else:
            content = _part(self._chance.randint(0, 2), self._words())
            growth = MessagePart(message.session_id, message.id, part, content)
            self.received_events.append(StreamEvent(MessagePartEvent(growth)))
        self.messages[message.id] = grow(message, [growth])

    def _run(self) -> None:
        session = self._chance.choice(_SESSIONS)
        if session in self.sessions:
            run = Run(
                RunId("r" + self._name()), session, "waiting", "queue", 1, prompt="please", number=self.number + 1
            )
            self.runs[run.run_id] = run
            self._publish(RunEvent(Change("created", run)))

    def _change_run(self) -> None:
        open_runs = [run for run in self.runs.values() if run.state != "ended"]
        if not open_runs:
            return
        run = self._chance.choice(open_runs)
        if self._chance.random() < 0.5:
            run = self.runs[run.run_id] = msgspec.structs.replace(run, state="active", step=run.step + 1)
            self._publish(RunEvent(Change("updated", msgspec.structs.replace(run, prompt=""))))
            return
        self.runs[run.run_id] = msgspec.structs.replace(run, state="ended", outcome="failed", error="no")
        end = RunComplete(run.session_id, MessageId(""), run.run_id, "failed", "some text", "no")
        self._publish(RunCompleteEvent(Change("updated", end)))

    def _ask(self) -> None:
        if self.permissions and self._chance.random() < 0.5:
            name = self._chance.choice(list(self.permissions))
            call = self.permissions.pop(name)["tool_call_id"]
            notice = PermissionNotification(ToolCallId(str(call)), granted=True, denied=False)
            self._publish(PermissionNotificationEvent(Change("created", notice)))
            return
        session = self._chance.choice(_SESSIONS)
        if session in self.sessions:
            name = self._name()
            ask = PermissionRequest(
                name, session, ToolCallId("c" + name), "bash", "run", "execute", {"command": "ls"}, "/"
            )
            self.permissions[name] = msgspec.to_builtins(ask)
            self._publish(PermissionRequestEvent(Change("created", ask)))

    def _delete(self) -> None:
        if self.messages and self._chance.random() < 0.5:
            message = self.messages.pop(self._chance.choice(list(self.messages)))
            self._counts(message.session_id, -1)
            self._publish(MessageEvent(Change("deleted", message)))
        elif self.sessions and self._chance.randint(0, 3) == 0:
            name = self._chance.choice(list(self.sessions))
            session = self.sessions.pop(name)
            self.messages = {key: item for key, item in self.messages.items() if item.session_id != name}
            self.runs = {key: item for key, item in self.runs.items() if item.session_id != name}
            self.permissions = {key: item for key, item in self.permissions.items() if item["session_id"] != name}
            self._publish(SessionEvent(Change("deleted", session)))


def _part(kind: int, text: str) -> Part:
    if kind == 0:
        return TextPart(Text(text))
    return ReasoningPart(Reasoning(text, "")) if kind == 1 else FinishPart(Finish("end_turn", 1, text))
