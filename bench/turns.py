"""What an answer costs by the token, from the model to a reader and to the disk: processor time and bytes."""

import gc
import time
from contextlib import aclosing
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from bench.figures import Figure, Goal
from bench.stage import Stage, model_saying, sessions, stage, words
from holdfast.bus.bus import Bus
from holdfast.domain.ids import SessionId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.providers.scripted_model import ScriptedModel
from holdfast.tasks import TaskOwner

__all__ = ["measure"]

LENGTHS = {200: 40, 2_000: 10, 20_000: 4}
"""Tokens of an answer, and how many such turns are measured."""
_FLAT = Goal(1.25, is_ratio=True)


class Cost(msgspec.Struct, frozen=True):
    """Of one turn. `bare` is the processor time of the same parts without an engine."""

    tokens: int
    seconds: float
    bare: float
    written: float
    events: float
    text: int


class _Listener:
    """One reader that takes everything as it comes, each delta by itself."""

    def __init__(self) -> None:
        self.size = 0

    async def listen(self, bus: Bus) -> None:
        subscription = bus.subscribe(None, merge=False)
        while frames := await subscription.take():
            self.size += sum(len(frame.body) for frame in frames)


def _written() -> int:
    """Bytes this process has handed to the system so far: hardly anything but the database and its log."""
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


async def _turn(on: Stage, session: SessionId) -> None:
    run = await on.workspace.inputs.submit(Prompt(session, "Tell me about it, at length.", delivery="queue"))
    await on.ends.of(run.run_id)
    await on.workspace.engine.wait_until_idle(session)


async def _bare(model: ScriptedModel, request: ModelRequest) -> int:
    """The same parts, each encoded once."""
    size = 0
    encoder = msgspec.json.Encoder()
    async with aclosing(model.stream(request)) as stream:
        async for part in stream:
            size += len(encoder.encode(part))
    return size


async def _cost(tokens: int, turns: int, *, has_reader: bool = True) -> Cost:
    text = words(tokens)
    model = model_saying(text)
    listener, readers = _Listener(), TaskOwner()
    async with stage(model) as on:
        if has_reader:
            readers.start(listener.listen(on.workspace.bus), name="reader")
        engine, bare = [], []
        first, *rest = await sessions(on, turns + 1)
        await _turn(on, first)
        gc.collect()
        written, size = _written(), listener.size
        for session in rest:
            began = time.process_time()
            await _turn(on, session)
            engine.append(time.process_time() - began)
            began = time.process_time()
            await _bare(model, model.requests[0])
            bare.append(time.process_time() - began)
            del model.requests[1:]
        written, size = _written() - written, listener.size - size
    await readers.drain()
    return Cost(tokens, median(engine), median(bare), written / turns, size / turns, len(text))


def measure() -> list[Figure]:
    costs = [uvloop.run(_cost(tokens, turns)) for tokens, turns in LENGTHS.items()]
    short, long = costs[0], costs[-1]
    parts = "the same parts, encoded once"
    alone = uvloop.run(_cost(200, LENGTHS[200], has_reader=False))
    own = (alone.seconds - alone.bare) * 1e3
    figures = [
        Figure("engine's CPU per turn of 200", own, "ms", alone.bare * 1e3, parts + " (not included)", Goal(3)),
        Figure("CPU per turn of 200, one reader", short.seconds * 1e3, "ms", short.bare * 1e3, parts),
    ]
    for cost in costs:
        micro = 1e6 / cost.tokens
        name = f"CPU per token of {cost.tokens:,}"
        figures.append(Figure(name, cost.seconds * micro, "µs", cost.bare * micro, parts))
    flat = (
        ("CPU", "µs", long.seconds * 1e6, short.seconds * 1e6),
        ("disk", "bytes", long.written, short.written),
        ("events", "bytes", long.events, short.events),
    )
    for what, unit, most, least in flat:
        name = f"{what} per token, {long.tokens:,} to {short.tokens}"
        figures.append(Figure(name, most / long.tokens, unit, least / short.tokens, "per token of 200", _FLAT))
    for cost in costs:
        name = f"bytes per token of {cost.tokens:,}"
        text = cost.text / cost.tokens
        figures.append(Figure(f"disk {name}", cost.written / cost.tokens, "bytes", text, "the text itself"))
        figures.append(Figure(f"event {name}", cost.events / cost.tokens, "bytes", text, "the text itself"))
    return figures
