"""`scripts/bench [name ...]`: measure everything, or what is named, and print one table."""

import os
import sys
import time
from collections.abc import Callable, Sequence

from bench import (
    accept,
    bus,
    crowd,
    extensions,
    files,
    hangup,
    memory,
    providers,
    recovery,
    start,
    tools,
    tui,
    turns,
    web,
    wire,
)
from bench.figures import Figure, table

__all__ = ["main"]

_ALL: dict[str, Callable[[], list[Figure]]] = {
    "accept": accept.measure,
    "turns": turns.measure,
    "bus": bus.measure,
    "recovery": recovery.measure,
    "memory": memory.measure,
    "wire": wire.measure,
    "start": start.measure,
    "crowd": crowd.measure,
    "providers": providers.measure,
    "hangup": hangup.measure,
    "files": files.measure,
    "tools": tools.measure,
    "tui": tui.measure,
    "web": web.measure,
    "extensions": extensions.measure,
}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        print(f"There is no {', '.join(unknown)}. There are: {', '.join(_ALL)}.", file=sys.stderr)
        return 2
    began = time.perf_counter()
    figures: list[Figure] = []
    for name in names or _ALL:
        print(f"measuring {name} ...", file=sys.stderr)
        figures += _ALL[name]()
    print(table(figures))
    missed = [figure.name for figure in figures if figure.goal is not None and not figure.goal.is_met(figure)]
    seconds, (load, *_) = time.perf_counter() - began, os.getloadavg()
    print(f"\n{seconds:.0f} s; {len(missed)} goals missed; load {load:.1f} on {os.cpu_count()} processors.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
