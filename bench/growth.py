"""Rows of the table about growth: long answers, large repositories, many stored sessions, many open workspaces."""

import asyncio
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median

from bench.figures import Figure, Goal
from bench.plan import Plan
from bench.raw_client import RawClient, Readers, RequestConnection
from bench.recovery import EVENTS_PER_TURN, stored_session
from bench.repositories import LARGE_FILES, copy_small, large
from bench.servers import DATA, Provider, ServerProcess, served, served_floor
from bench.turn_rows import Samples, Subject, alternate, measure_turns
from holdfast.domain.store_operations import Write
from holdfast.runtime.workspace import SystemClock
from holdfast.storage.sqlite_ledger import SqliteLedger

__all__ = ["measure_large_repository", "measure_length", "measure_stored_sessions", "measure_workspaces"]

_SECTION = "growth"
_FLAT = Goal(1.25, is_ratio=True)
_LINEAR = Goal(1.05)
_BATCH = 250


def _opened(server: ServerProcess, path: str) -> dict[str, float]:
    """Milliseconds to the first token of the first prompt in a workspace that was opened for it."""
    subject = Subject(server, over_tcp=True, path=path)
    _, first = subject.turn(subject.client.session())
    subject.close()
    return {"first_token_opened": first}


def measure_large_repository(provider: Provider, plan: Plan) -> list[Figure]:
    """Measure the first token in the large repository, beside the floor and beside the small repository."""
    figures = []
    opened: dict[str, Samples] = {"small": [], "large": []}
    with served_floor(provider) as floor, served(settings=provider.settings) as ours:
        for server in (floor, ours):
            server.wait_for_answer()
        three = [
            Subject(floor, over_tcp=True),
            Subject(ours, over_tcp=True),
            Subject(ours, over_tcp=True, path=str(large())),
        ]
        limits, small, found = alternate(three, max(4, plan.rounds // 2), measure_turns)
        for subject in three:
            subject.close()
    for _ in range(max(2, plan.starts // 3)):
        # A new server each time: it has seen neither of the repositories.
        for name, path in (("small", ""), ("large", str(large()))):
            with served(settings=provider.settings) as ours:
                ours.wait_for_answer()
                copy_small(ours.root / "other")
                _opened(ours, str(ours.root / "other"))
                opened[name].append(_opened(ours, path)["first_token_opened"])
    files = f"{LARGE_FILES:,} files"
    for key, name in (("first_token", "follow-up"), ("first_token_fresh", "fresh session")):
        value, limit = median(found[key]), median(limits[key])
        goal = Goal(2.5 if key == "first_token" else 3, is_ratio=True)
        figures.append(
            Figure(f"first token, {files}, {name}", value, "ms", limit, "the floor", goal, f"large_{key}", _SECTION)
        )
        same, limit = "  the same beside 21 files", median(small[key])
        figures.append(Figure(same, value, "ms", limit, "Holdfast with 21 files", _FLAT, f"{key}_by_size", _SECTION))
    name, value, limit = f"first token, {files}, just opened", median(opened["large"]), median(opened["small"])
    figures.append(Figure(name, value, "ms", limit, "Holdfast with 21 files", _FLAT, "opened_by_size", _SECTION))
    return figures


def measure_length(provider: Provider, plan: Plan) -> list[Figure]:
    """Measure bytes on the wire, bytes on disk and processor time of answers of different lengths.

    The exponent is that of the growth between the two longest answers, where the constant part matters least.
    """
    costs: dict[str, list[float]] = {"bytes on the wire": [], "bytes on disk": [], "CPU": []}
    with served(settings=provider.settings) as server:
        server.wait_for_answer()
        subject = Subject(server, over_tcp=True)
        subject.turn(subject.client.session())
        for tokens in plan.lengths:
            turns = [_cost_of_answer(subject, tokens) for _ in range(max(3, plan.series))]
            for found, samples in zip(costs.values(), zip(*turns, strict=True), strict=True):
                found.append(median(samples))
        subject.close()
    figures = []
    first, last = plan.lengths[-2:]
    for name, found in costs.items():
        unit, factor = ("ms", 1e3) if name == "CPU" else ("bytes", 1.0)
        exponent = math.log(found[-1] / found[-2]) / math.log(last / first)
        listed = ", ".join(
            f"{cost * factor:,.0f} for {length:,}" for length, cost in zip(plan.lengths, found, strict=True)
        )
        row, key = f"{name} by length of an answer", f"length_{name.split()[-1].lower()}"
        figures.append(Figure(row, exponent, "exponent", None, f"{unit}: {listed} tokens", _LINEAR, key, _SECTION))
    return figures


def _cost_of_answer(subject: Subject, tokens: int) -> tuple[float, float, float]:
    """Return the bytes on the wire, the bytes on disk and the seconds of processor time of a first turn."""
    session = subject.client.session()
    subject.readers.drain()
    size, written, processor = subject.readers.size, subject.server.written(), subject.server.processor()
    subject.turn(session, f"words={tokens}")
    wire = subject.readers.size - size
    # The request to the provider counts as bytes on disk: it has the same size for each length.
    return wire, subject.server.written() - written - wire, subject.server.processor() - processor


async def _fill(data: Path, path: str, sessions: int, events: int) -> None:
    """Store sessions with completed turns in the workspace of a path, before its server starts."""
    ledger = SqliteLedger(data)
    record = await ledger.open_workspace(path)
    now = SystemClock().now_ms()
    turns = max(1, round(events / sessions / EVENTS_PER_TURN))
    writes: Iterator[Write] = (stored_session(number, now, turns) for number in range(sessions))
    ticket = 0
    while batch := list(islice(writes, _BATCH)):
        ticket += 1
        await ledger.commit(record.id, record.epoch, ticket, batch)
    await ledger.close()


@contextmanager
def _filled(provider: Provider, plan: Plan) -> Iterator[ServerProcess]:
    def prepare(root: Path) -> None:
        asyncio.run(_fill(root / DATA, str((root / "project").resolve()), plan.sessions, plan.events))

    with served(settings=provider.settings, prepare=prepare) as server:
        yield server


def measure_stored_sessions(provider: Provider, plan: Plan) -> list[Figure]:
    """Accept prompts with and without stored sessions; request the statistics of them."""
    with served(settings=provider.settings) as empty, _filled(provider, plan) as filled:
        for server in (empty, filled):
            server.wait_for_answer()
        two = [Subject(server, over_tcp=True) for server in (empty, filled)]
        limits, found = alternate(two, plan.rounds, measure_turns)
        began = time.perf_counter()
        counted = json.loads(two[1].client.get("stats"))["sessions"]
        assert counted > plan.sessions, counted
        stats = (time.perf_counter() - began) * 1e3
        for subject in two:
            subject.close()
    name = f"accept with {plan.sessions:,} stored sessions"
    rows = (("", "accept"), (", fresh session", "accept_fresh"))
    return [
        *(
            Figure(
                f"{name}{kind}",
                median(found[key]),
                "ms",
                median(limits[key]),
                "Holdfast without",
                _FLAT,
                f"stored_{key}",
                _SECTION,
            )
            for kind, key in rows
        ),
        Figure(f"/stats over {plan.events:,} events", stats, "ms", None, "", Goal(200), "stats", _SECTION),
    ]


class _Senders:
    """Connections that send prompts in workspaces, each to a session of its own."""

    def __init__(self, clients: Sequence[RawClient], readers: Readers, count: int) -> None:
        self._clients = [clients[number % len(clients)] for number in range(count)]
        self._readers = readers
        self._connections = [RequestConnection(client.address) for client in self._clients]
        self._sessions = [client.session() for client in self._clients]

    def accept(self, rounds: int) -> Samples:
        """Send prompts at once, wait for the ends of their runs, and return the milliseconds of each response."""
        found: Samples = []
        for _ in range(rounds):
            began = time.perf_counter()
            for client, connection, session in zip(self._clients, self._connections, self._sessions, strict=True):
                connection.send("POST", f"{client.path}/agent", client.prompt(session, "words=1"))
            for connection in self._connections:
                connection.receive()
                found.append((time.perf_counter() - began) * 1e3)
            self._readers.until_total_ends(len(self._connections))
        return found

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


def _accept_in(server: ServerProcess, workspaces: int, plan: Plan) -> dict[str, float]:
    paths = [server.root / f"w{number}" for number in range(workspaces)]
    for path in paths:
        copy_small(path)
    clients = [RawClient(server, path=str(path)) for path in paths]
    readers = Readers([client.stream() for client in clients])
    found = {}
    for name, count in (("quiet", 1), ("senders", plan.senders)):
        senders = _Senders(clients, readers, count)
        senders.accept(1)
        found[name] = median(senders.accept(plan.rounds if count == 1 else max(3, plan.series)))
        senders.close()
    readers.close()
    for client in clients:
        client.close()
    return found


def measure_workspaces(provider: Provider, plan: Plan) -> list[Figure]:
    """Accept prompts with one and with many open workspaces."""
    with served(settings=provider.settings) as one, served(settings=provider.settings) as many:
        for server in (one, many):
            server.wait_for_answer()
        limits, found = _accept_in(one, 1, plan), _accept_in(many, plan.workspaces, plan)
    beside, opened = "Holdfast with one workspace", f"accept with {plan.workspaces} open workspaces"
    rows = (("quiet", f"{opened}, quiet"), ("senders", f"{opened}, {plan.senders} senders at once"))
    return [
        Figure(name, found[key], "ms", limits[key], beside, _FLAT, f"workspaces_{key}", _SECTION) for key, name in rows
    ]
