"""What the last batch was answered, kept small: events stand in the log, prompts with their runs."""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from holdfast.domain.events import DurableEvent, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import Answer, Entry, Receipt, Refusal, RefusalReason
from holdfast.domain.runs import Run
from holdfast.storage.eventlog import EventLog
from holdfast.storage.runs import RunTable

__all__ = ["pack", "unpack"]


class _Done(msgspec.Struct, frozen=True, tag="done", omit_defaults=True):
    first: int = 0
    count: int = 0
    runs: tuple[Run, ...] = ()


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: RefusalReason


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[_Done | _Refused, ...])
_event_decoder: msgspec.json.Decoder[DurableEvent] = msgspec.json.Decoder(DurableEvent)


def pack(answers: Iterable[Answer]) -> bytes:
    return _encoder.encode([_packed(answer) for answer in answers])


def _packed(answer: Answer) -> _Done | _Refused:
    match answer:
        case Refusal(reason=reason):
            return _Refused(reason)
        case Receipt(entries=entries, runs=runs):
            bare = tuple(msgspec.structs.replace(run, prompt="") for run in runs)
            return _Done(entries[0].number if entries else 0, len(entries), bare)
        case _:
            assert_never(answer)


def unpack(packed: bytes, log: EventLog, runs: RunTable) -> Sequence[Answer]:
    """The answers as they were given."""
    return [
        Refusal(item.reason) if isinstance(item, _Refused) else _receipt(item, log, runs)
        for item in (_decoder.decode(packed) if packed else ())
    ]


def _receipt(done: _Done, log: EventLog, table: RunTable) -> Receipt:
    rows = log.after(done.first - 1, done.count) if done.count else []
    entries = tuple(Entry(number, _event_decoder.decode(body), body) for number, body in rows)
    return Receipt(entries, tuple(_with_prompt(run, entries, table) for run in done.runs))


def _with_prompt(run: Run, entries: Iterable[Entry], table: RunTable) -> Run:
    return msgspec.structs.replace(run, prompt=_prompt(run.run_id, entries, table))


def _prompt(run_id: RunId, entries: Iterable[Entry], table: RunTable) -> str:
    """From the event that admitted the run, if the batch did that: a later write may have removed the row."""
    for entry in entries:
        if isinstance(entry.event, RunEvent):
            change = entry.event.payload
            if change.type == "created" and change.payload.run_id == run_id:
                return change.payload.prompt
    run = table.get(run_id)
    return run.prompt if run is not None else ""
