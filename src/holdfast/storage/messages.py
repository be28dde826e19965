"""The tables of messages and of what they have grown by."""

from collections import defaultdict
from collections.abc import Sequence

import apsw
import msgspec

from holdfast.domain.events import MessageDelta, MessageDeltaEvent, MessagePart, MessagePartEvent
from holdfast.domain.growth import grow
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message
from holdfast.storage.large import may_keep

__all__ = ["MessageTable"]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)
_growth_decoder = msgspec.json.Decoder(tuple[MessageDeltaEvent | MessagePartEvent, ...])


class MessageTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._known: dict[MessageId, tuple[int, RunId]] = {}
        """Place and run of each message that was looked for."""

    def forget(self) -> None:
        """Rows were changed behind this table's back."""
        self._known.clear()

    def get(self, message_id: MessageId) -> Message | None:
        for (body,) in self._connection.execute(
            "SELECT body FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id)
        ):
            return _decoder.decode(body)
        return None

    def exists(self, message_id: MessageId) -> bool:
        return self._find(message_id) is not None

    def add(self, message: Message) -> None:
        body = _encoder.encode(message)
        self._connection.execute(
            "INSERT INTO messages (workspace, id, session, run_id, body) VALUES (?, ?, ?, ?, ?)",
            (self._workspace, message.id, message.session_id, message.run_id, body),
            can_cache=may_keep(body),
        )

    def put(self, message: Message) -> None:
        found = self._find(message.id)
        if found is None:
            return
        ord_, run_id = found
        body = _encoder.encode(message)
        if run_id == message.run_id:
            query = "UPDATE messages SET body = ? WHERE ord = ?"
            self._connection.execute(query, (body, ord_), can_cache=may_keep(body))
        else:
            self._known.pop(message.id)
            query = "UPDATE messages SET run_id = ?, body = ? WHERE ord = ?"
            self._connection.execute(query, (message.run_id, body, ord_), can_cache=may_keep(body))
        self._connection.execute("DELETE FROM growth WHERE message = ?", (ord_,))

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None:
        """One row, as the live events that say the same."""
        events = [
            MessageDeltaEvent(item) if isinstance(item, MessageDelta) else MessagePartEvent(item) for item in growth
        ]
        if (found := self._find(message_id)) is not None:
            body = _encoder.encode(events)
            query = "INSERT INTO growth (message, body) VALUES (?, ?)"
            self._connection.execute(query, (found[0], body), can_cache=may_keep(body))

    def delete(self, message_id: MessageId) -> None:
        self._known.pop(message_id, None)
        self._connection.execute("DELETE FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id))

    def of_session(self, session_id: SessionId) -> list[Message]:
        return self._grown("session = ?", session_id)

    def of_run(self, run_id: RunId) -> list[Message]:
        # The second condition lets the partial index be used, and keeps messages without a run apart.
        return self._grown("run_id = ? AND run_id <> ''", run_id)

    def _grown(self, condition: str, value: str) -> list[Message]:
        where = f"messages.workspace = ? AND messages.{condition}"
        growth: dict[int, list[MessageDelta | MessagePart]] = defaultdict(list)
        for ord_, body in self._connection.execute(
            f"SELECT messages.ord, growth.body FROM messages JOIN growth ON growth.message = messages.ord"
            f" WHERE {where} ORDER BY growth.ord",
            (self._workspace, value),
        ):
            growth[ord_].extend(event.payload for event in _growth_decoder.decode(body))
        rows = self._connection.execute(
            f"SELECT ord, body FROM messages WHERE {where} ORDER BY ord", (self._workspace, value)
        )
        return [grow(_decoder.decode(body), growth.get(ord_, ())) for ord_, body in rows]

    def _find(self, message_id: MessageId) -> tuple[int, RunId] | None:
        found = self._known.get(message_id)
        if found is None:
            for ord_, run_id in self._connection.execute(
                "SELECT ord, run_id FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id)
            ):
                found = self._known[message_id] = (int(ord_), RunId(run_id))
        return found
