"""The stored form of the answers of a batch. Pure.

It is small: events are in the log already, and most receipts can be derived from them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import msgspec

from holdfast.domain.events import DurableEvent, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import Answer, Entry, Receipt, Refusal, RefusalReason

__all__ = ["PackedAnswers", "pack_answers"]


class _PackedReceipt(msgspec.Struct, frozen=True, tag="done", omit_defaults=True):
    """Stored form of a receipt that names other runs than those it created. Prompts are left out."""

    count: int = 0
    runs: tuple[Run, ...] = ()


class _PackedRefusal(msgspec.Struct, frozen=True, tag="refused"):
    """Stored form of a refusal."""

    reason: RefusalReason


_encoder = msgspec.json.Encoder()
# An integer stands for a receipt with that many entries, which names exactly the runs that they created.
_decoder = msgspec.json.Decoder(tuple[int | _PackedReceipt | _PackedRefusal, ...])
_event_decoder: msgspec.json.Decoder[DurableEvent] = msgspec.json.Decoder(DurableEvent)


def pack_answers(answers: Iterable[Answer]) -> bytes:
    """Encode the answers of a batch without the content of their events."""
    return _encoder.encode([_pack_answer(answer) for answer in answers])


def _pack_answer(answer: Answer) -> int | _PackedReceipt | _PackedRefusal:
    match answer:
        case Receipt(entries=entries, runs=runs):
            if runs == _created_runs(entries):
                return len(entries)
            return _PackedReceipt(len(entries), tuple(msgspec.structs.replace(run, prompt="") for run in runs))
        case Refusal(reason=reason):
            return _PackedRefusal(reason)
        case _:
            assert_never(answer)


def _created_runs(entries: Iterable[Entry]) -> tuple[Run, ...]:
    events = [entry.event for entry in entries]
    return tuple(
        [event.change.object for event in events if type(event) is RunEvent and event.change.type == "created"]
    )


class PackedAnswers:
    """The stored answers of a batch. They are complete again once the events and prompts that they name are read."""

    def __init__(self, packed: bytes) -> None:
        self._items = _decoder.decode(packed) if packed else ()

    @property
    def event_count(self) -> int:
        """Number of events of the batch: the last ones up to the newest number after it."""
        return sum(_count(item) for item in self._items)

    def runs_without_prompt(self) -> list[RunId]:
        """Return the runs whose prompts are needed if the events of the batch did not create them."""
        return [run.run_id for item in self._items if isinstance(item, _PackedReceipt) for run in item.runs]

    def unpack(
        self, newest: int, events: Callable[[int, int], Sequence[tuple[int, bytes]]], prompt: Callable[[RunId], str]
    ) -> Sequence[Answer]:
        """Restore the answers. `newest` is the last event number of the batch, `events(after, limit)` reads the log,
        `prompt` that of a stored run.
        """
        answers: list[Answer] = []
        before = newest - self.event_count
        for item in self._items:
            if isinstance(item, _PackedRefusal):
                answers.append(Refusal(item.reason))
                continue
            rows = events(before, _count(item)) if _count(item) else []
            entries = tuple(Entry(number, _event_decoder.decode(body), body) for number, body in rows)
            answers.append(_receipt(item, entries, prompt))
            before += _count(item)
        return answers


def _count(item: int | _PackedReceipt | _PackedRefusal) -> int:
    if isinstance(item, int):
        return item
    return 0 if isinstance(item, _PackedRefusal) else item.count


def _receipt(item: int | _PackedReceipt, entries: tuple[Entry, ...], prompt: Callable[[RunId], str]) -> Receipt:
    created = _created_runs(entries)
    if isinstance(item, int):
        return Receipt(entries, created)
    # A later write of the same batch may have removed the row: the `created` event is preferred.
    prompts = {run.run_id: run.prompt for run in created}
    runs = (msgspec.structs.replace(run, prompt=_lookup(prompts, run.run_id, prompt)) for run in item.runs)
    return Receipt(entries, tuple(runs))


def _lookup(prompts: dict[RunId, str], run_id: RunId, read: Callable[[RunId], str]) -> str:
    return prompts[run_id] if run_id in prompts else read(run_id)
