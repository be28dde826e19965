"""Merging and packing of notifications."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.notifications import (
    DELTA_CHANNEL,
    DELTA_SECONDS,
    EVENTS_CHANNEL,
    MAX_PAYLOAD,
    Delta,
    NotificationSender,
    pack_deltas,
    unpack_deltas,
)
from holdfast.domain.errors import StorageUnavailable
from holdfast.testing.seeded_loop import elapse, in_virtual_time

TEXTS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(st.characters(codec="utf-8"), max_size=80)))


def whole(deltas: list[Delta]) -> dict[str, str]:
    """Append each text where it belongs. A gap or an overlap fails."""
    texts = {"a": "", "b": ""}
    for delta in deltas:
        assert delta.offset == len(texts[delta.key])
        texts[delta.key] += delta.text
    return texts


def growing(texts: list[tuple[str, str]]) -> list[Delta]:
    lengths = {"a": 0, "b": 0}
    deltas: list[Delta] = []
    for key, text in texts:
        deltas.append(Delta(key, lengths[key], text))
        lengths[key] += len(text)
    return deltas


@given(TEXTS)
def test_packed_deltas_are_short_and_complete(texts: list[tuple[str, str]]) -> None:
    deltas = growing(texts)
    payloads = pack_deltas(deltas, 40)
    assert all(len(payload.encode()) <= 40 for payload in payloads)
    assert whole([delta for payload in payloads for delta in unpack_deltas(payload)]) == whole(deltas)


def test_a_payload_is_used_up_to_its_limit() -> None:
    line = '["a",0,"1"]'
    delta = Delta("a", 0, "1")
    assert pack_deltas([delta, delta], 2 * len(line) + 1) == [f"{line}\n{line}"]
    assert pack_deltas([delta, delta], 2 * len(line)) == [line, line]
    assert pack_deltas([]) == []
    (payload,) = pack_deltas([Delta("a", 0, "x" * (MAX_PAYLOAD - 10))])
    assert len(payload) == MAX_PAYLOAD < 8_000


def test_an_event_that_is_too_long_for_a_payload_is_left_out() -> None:
    events = [Delta("w", -1, "x" * size) for size in (MAX_PAYLOAD - 11, MAX_PAYLOAD - 10, 1)]
    received = [delta for payload in pack_deltas(events) for delta in unpack_deltas(payload)]
    assert received == [events[0], events[2]]


def test_an_event_keeps_its_place_among_texts() -> None:
    async def main() -> None:
        sent: list[tuple[str, str]] = []

        async def send(notifications: list[tuple[str, str]]) -> None:
            sent.extend(notifications)

        sender = NotificationSender(send)
        sender.add_delta("part", 0, "x")
        sender.add_event("w", "{}")
        sender.add_delta("part", 1, "y")
        sender.add_delta("part", 5, "z")
        await elapse(1.0)
        ((channel, payload),) = sent
        assert channel == DELTA_CHANNEL
        assert unpack_deltas(payload) == [
            Delta("part", 0, "x"),
            Delta("w", -1, "{}"),
            Delta("part", 1, "y"),
            Delta("part", 5, "z"),
        ]
        await sender.close()

    in_virtual_time(main)


def test_what_is_added_while_sending_is_merged_into_the_next_statement() -> None:
    async def main() -> None:
        sent: list[list[tuple[str, str]]] = []

        async def send(notifications: list[tuple[str, str]]) -> None:
            sent.append(notifications)
            await elapse(1.0)
            if len(sent) == 1:
                raise StorageUnavailable

        sender = NotificationSender(send)
        sender.wake("v")
        await elapse(0.1)
        for name in ("w", "v", "w"):
            sender.wake(name)
        sender.add_delta("part", 0, "x")
        sender.add_delta("part", 1, "y")
        await elapse(3.0)
        assert sent == [
            [(EVENTS_CHANNEL, "v")],
            [(EVENTS_CHANNEL, "w"), (EVENTS_CHANNEL, "v"), (DELTA_CHANNEL, '["part",0,"xy"]')],
        ]
        assert sender.lost == 1
        await sender.close()

    in_virtual_time(main)


def test_the_first_delta_is_sent_at_once_and_the_next_ones_together() -> None:
    async def main() -> None:
        sent: list[tuple[float, str]] = []

        async def send(notifications: list[tuple[str, str]]) -> None:
            sent.append((asyncio.get_running_loop().time(), notifications[0][1]))

        sender = NotificationSender(send)
        sender.add_delta("part", 0, "a")
        sender.add_delta("part", 1, "b")
        await elapse(DELTA_SECONDS / 2)
        sender.add_delta("part", 2, "c")
        await elapse(DELTA_SECONDS / 4)
        sender.add_delta("part", 3, "d")
        await elapse(DELTA_SECONDS)
        assert sent == [(0.0, '["part",0,"ab"]'), (DELTA_SECONDS, '["part",2,"cd"]')]
        sender.add_delta("part", 4, "e")
        await sender.close()
        await elapse(1.0)
        assert len(sent) == 2

    in_virtual_time(main)
