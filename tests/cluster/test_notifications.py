"""Merging and packing of notifications."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.notifications import (
    DELTA_CHANNEL,
    DELTA_SECONDS,
    EVENTS_CHANNEL,
    MAX_PAYLOAD,
    NotificationSender,
    pack_deltas,
    unpack_deltas,
)
from holdfast.domain.errors import StorageUnavailable
from holdfast.testing.seeded_loop import elapse, in_virtual_time

DELTAS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(st.characters(codec="utf-8"), max_size=80)))


def whole(deltas: list[tuple[str, str]]) -> dict[str, str]:
    texts = {"a": "", "b": ""}
    for key, text in deltas:
        texts[key] += text
    return texts


@given(DELTAS)
def test_packed_deltas_are_short_and_complete(deltas: list[tuple[str, str]]) -> None:
    payloads = pack_deltas(deltas, 40)
    assert all(len(payload.encode()) <= 40 for payload in payloads)
    assert whole([delta for payload in payloads for delta in unpack_deltas(payload)]) == whole(deltas)


def test_a_payload_is_used_up_to_its_limit() -> None:
    line = '["a","1"]'
    assert pack_deltas([("a", "1"), ("a", "1")], 2 * len(line) + 1) == [f"{line}\n{line}"]
    assert pack_deltas([("a", "1"), ("a", "1")], 2 * len(line)) == [line, line]
    assert pack_deltas([]) == []
    (payload,) = pack_deltas([("a", "x" * (MAX_PAYLOAD - 8))])
    assert len(payload) == MAX_PAYLOAD < 8_000


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
        sender.add_delta("part", "x")
        sender.add_delta("part", "y")
        await elapse(3.0)
        assert sent == [
            [(EVENTS_CHANNEL, "v")],
            [(EVENTS_CHANNEL, "w"), (EVENTS_CHANNEL, "v"), (DELTA_CHANNEL, '["part","xy"]')],
        ]
        assert sender.lost == 1
        await sender.close()

    in_virtual_time(main)


def test_deltas_wait_for_others() -> None:
    async def main() -> None:
        times: list[float] = []

        async def send(_: list[tuple[str, str]]) -> None:
            times.append(asyncio.get_running_loop().time())

        sender = NotificationSender(send)
        sender.add_delta("part", "x")
        await elapse(DELTA_SECONDS / 2)
        sender.add_delta("part", "y")
        await elapse(1.0)
        assert times == [DELTA_SECONDS]
        sender.add_delta("part", "z")
        await sender.close()
        await elapse(1.0)
        assert times == [DELTA_SECONDS]

    in_virtual_time(main)
