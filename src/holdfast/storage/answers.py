"""What the last batch was answered, kept small: events stand in the log, and most receipts follow from them."""

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
    """A receipt that names other runs than those it created."""

    count: int = 0
    runs: tuple[Run, ...] = ()


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: RefusalReason


_encoder = msgspec.json.Encoder()
# A number is a receipt with so many entries, which names the runs that they created.
_decoder = msgspec.json.Decoder(tuple[int | _Done | _Refused, ...])
_event_decoder: msgspec.json.Decoder[DurableEvent] = msgspec.json.Decoder(DurableEvent)


def pack(answers: Iterable[Answer]) -> bytes:
    return _encoder.encode([_packed(answer) for answer in answers])


def _packed(answer: Answer) -> int | _Done | _Refused:
    match answer:
        case Receipt(entries=entries, runs=runs):
            if runs == _created(entries):
                return len(entries)
            return _Done(len(entries), tuple(msgspec.structs.replace(run, prompt="") for run in runs))
        case Refusal(reason=reason):
            return _Refused(reason)
        case _:
            assert_never(answer)


def _created(entries: Iterable[Entry]) -> tuple[Run, ...]:
    events = [entry.event for entry in entries]
    return tuple(
        [event.payload.payload for event in events if type(event) is RunEvent and event.payload.type == "created"]
    )


def unpack(packed: bytes, newest: int, log: EventLog, runs: RunTable) -> Sequence[Answer]:
    """The answers as they were given. `newest` is the number that the batch had come to."""
    items = _decoder.decode(packed) if packed else ()
    counts = [0 if isinstance(item, _Refused) else item if isinstance(item, int) else item.count for item in items]
    answers: list[Answer] = []
    before = newest - sum(counts)
    for item, count in zip(items, counts, strict=True):
        if isinstance(item, _Refused):
            answers.append(Refusal(item.reason))
        else:
            answers.append(_receipt(item, _entries(log, before, count), runs))
        before += count
    return answers


def _entries(log: EventLog, before: int, count: int) -> tuple[Entry, ...]:
    rows = log.after(before, count) if count else []
    return tuple(Entry(number, _event_decoder.decode(body), body) for number, body in rows)


def _receipt(item: int | _Done, entries: tuple[Entry, ...], table: RunTable) -> Receipt:
    if isinstance(item, int):
        return Receipt(entries, _created(entries))
    return Receipt(entries, tuple(_with_prompt(run, entries, table) for run in item.runs))


def _with_prompt(run: Run, entries: Iterable[Entry], table: RunTable) -> Run:
    return msgspec.structs.replace(run, prompt=_prompt(run.run_id, entries, table))


def _prompt(run_id: RunId, entries: Iterable[Entry], table: RunTable) -> str:
    """From the event that admitted the run, if the batch did that: a later write may have removed the row."""
    for created in _created(entries):
        if created.run_id == run_id:
            return created.prompt
    run = table.get(run_id)
    return run.prompt if run is not None else ""
