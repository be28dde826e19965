"""What one PostgreSQL carries: figures of many listeners, and the arithmetic for a large installation."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from bench.cluster_nodes import Cluster
from bench.cluster_plan import ClusterPlan
from bench.figures import Figure, format_number

__all__ = ["arithmetic", "measure_listeners"]

NODES = 100
WORKSPACES = 100_000
ACTIVE = 1_000
"""Runs that stream at the same time."""
TOKENS = 50
"""Tokens per second of one of them."""
TURNS = 2
"""Steps that each of them completes per minute, each with the durable events of a short turn."""
DELTAS = 1 / 0.04
"""Largest number of payloads with live deltas per second and node, unless they are full."""
HEARTBEAT = 0.75
_NOTIFICATIONS = 300


def measure_listeners(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Send notifications while many bare connections listen."""
    figures = []
    for number in plan.listeners:
        seconds, processor = cluster.database.run(_notify(cluster, number))
        name, section = f"{number} listener{'s' if number > 1 else ''}", "notifications (bare asyncpg)"
        figures += [
            Figure(f"CPU of PostgreSQL per NOTIFY, {name}", processor * 1e6, "µs", None, "", None, "notify", section),
            Figure(f"NOTIFY until all have received it, {name}", seconds * 1e3, "ms", None, "", None, "", section),
        ]
    return figures


async def _notify(cluster: Cluster, number: int) -> tuple[float, float]:
    """Return the seconds, and the processor time of PostgreSQL, of one notification."""
    listeners: list[Any] = [await cluster.database.connect() for _ in range(number)]
    missing, all_received = 0, asyncio.Event()

    def received(*_: object) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            all_received.set()

    for listener in listeners:
        await listener.add_listener("capacity", received)
    before, began = cluster.postgres_processor(), time.perf_counter()
    for _ in range(_NOTIFICATIONS):
        missing = number
        all_received.clear()
        await cluster.database.connection.execute("SELECT pg_notify('capacity', 'a workspace of 32 characters id')")
        await all_received.wait()
    seconds = time.perf_counter() - began
    processor = cluster.postgres_processor() - before
    for listener in listeners:
        listener.terminate()
    return seconds / _NOTIFICATIONS, processor / _NOTIFICATIONS


def arithmetic(figures: Iterable[Figure]) -> list[str]:
    """Return the table of a large installation, as lines of markdown, from measured figures."""
    # Of several figures with one key the last one counts: it belongs to the largest size.
    known = {figure.key: figure.value for figure in figures if figure.key}
    if not known.keys() >= _NEEDED:
        return []
    head = ["| | measured | calculation | result (calculated) |", "|---|---|---|---|"]
    return [*head, *(f"| {' | '.join(line)} |" for line in (*_idle(known), *_loaded(known), *_sizes(known)))]


_NEEDED = {
    "connection_memory", "connections", "disk_turn", "events_turn", "idle_cpu", "idle_statements", "node_memory",
    "notify", "notify_event", "postgres_event", "postgres_token", "wal_event", "wal_token",
}  # fmt: skip
_Lines: TypeAlias = Iterator[tuple[str, str, str, str]]
_show = format_number


def _idle(known: Mapping[str, float]) -> _Lines:
    per_node = _show(known["idle_statements"])
    rows = _show(WORKSPACES / NODES)
    cpu = known["idle_cpu"]
    yield "heartbeats", f"one each {HEARTBEAT} s (setting)", f"{NODES} ÷ {HEARTBEAT} s", f"{_show(NODES / HEARTBEAT)}/s"
    yield (
        "transactions of idle nodes, with heartbeats and polls",
        f"{per_node}/s per node",
        f"× {NODES}",
        f"{_show(known['idle_statements'] * NODES)}/s",
    )
    polled = "one statement per node and second, with a row per open workspace"
    yield "polls of open workspaces", polled, f"{NODES} statements of {rows} rows", f"{WORKSPACES:,} rows/s"
    share = _show(cpu * WORKSPACES / 1e4)
    yield (
        "PostgreSQL's CPU for them",
        f"{_show(cpu)} µs per open workspace and second",
        f"× {WORKSPACES:,}",
        f"{share} % of a core",
    )


def _loaded(known: Mapping[str, float]) -> _Lines:
    tokens, events = ACTIVE * TOKENS, ACTIVE * TURNS * known["events_turn"] / 60
    per_event, per_token = known["postgres_event"], known["postgres_token"]
    yield (
        "durable events",
        f"{_show(known['events_turn'])} per turn",
        f"{ACTIVE:,} runs × {TURNS} turns a minute",
        f"{_show(events)}/s",
    )
    share = _show(per_event * events / 10)
    yield (
        "PostgreSQL's CPU for them",
        f"{_show(per_event)} ms per event",
        f"× {_show(events)}/s",
        f"{share} % of a core",
    )
    share = _show(per_token * tokens / 1e4)
    of_tokens = "PostgreSQL's CPU for streamed text"
    yield of_tokens, f"{_show(per_token)} ms per 1,000 tokens", f"× {tokens:,} tokens/s", f"{share} % of a core"
    wakeups, deltas = known["notify_event"] * events, DELTAS * NODES
    yield (
        "NOTIFY",
        f"{_show(known['notify_event'])} statements per event; at most {_show(DELTAS)} with text per node and second",
        f"{_show(wakeups)}/s + {_show(deltas)}/s",
        f"{_show(wakeups + deltas)}/s, each to {NODES} nodes",
    )
    share = _show(known["notify"] * (wakeups + deltas) / 1e4)
    listeners = f"{_show(known['notify'])} µs each, with the largest number of listeners"
    yield "PostgreSQL's CPU for them", listeners, f"× {_show(wakeups + deltas)}/s", f"{share} % of a core"
    log = (known["wal_event"] * events + known["wal_token"] * tokens) / 2**20
    per_unit = f"{_show(known['wal_event'])} bytes per event, {_show(known['wal_token'])} per token"
    yield "write-ahead log", per_unit, "both rates", f"{_show(log)} MiB/s"


def _sizes(known: Mapping[str, float]) -> _Lines:
    number = known["connections"] * NODES
    disk = known["disk_turn"] * ACTIVE * TURNS * 60 * 8 / 2**20
    yield (
        "disk",
        f"{_show(known['disk_turn'])} KiB per short turn",
        "8 hours a day",
        f"{_show(disk)} GiB",
    )
    yield "connections", f"{_show(known['connections'])} per node", f"× {NODES}", _show(number)
    memory = _show(known["connection_memory"] * number / 1024)
    each = f"{_show(known['connection_memory'])} MiB per connection, without shared memory"
    yield "memory of PostgreSQL", each, f"× {_show(number)}", f"{memory} GiB"
    opened = WORKSPACES / NODES
    on_nodes = f"{_show(known['node_memory'])} KiB per workspace, on its owner and a follower together"
    total = _show(known["node_memory"] * opened / 1024)
    yield "memory of a node", on_nodes, f"× {_show(opened)}", f"{total} MiB"
