"""`scripts/bench table [options]`: the table of goals. `scripts/bench [name ...]`: the rows of single parts."""

import os
import sys
import time
from collections.abc import Callable, Sequence

from bench import (
    accept,
    bus,
    chart,
    cluster,
    extensions,
    files,
    hangup,
    memory,
    postgres,
    providers,
    recovery,
    start,
    table,
    tools,
    tui,
    web,
)
from bench.figures import Figure
from bench.figures import table as text_of

__all__ = ["main"]

_ALL: dict[str, Callable[[], list[Figure]]] = {
    "accept": accept.measure,
    "bus": bus.measure,
    "recovery": recovery.measure,
    "memory": memory.measure,
    "start": start.measure,
    "providers": providers.measure,
    "hangup": hangup.measure,
    "files": files.measure,
    "tools": tools.measure,
    "tui": tui.measure,
    "web": web.measure,
    "extensions": extensions.measure,
    "postgres": postgres.measure,
}
_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "table": table.main,
    "chart": chart.main,
    "cluster": cluster.main,
}


def main(names: Sequence[str]) -> int:
    """Measure the table, or the named parts, or all parts, and print the figures."""
    if names and names[0] in _COMMANDS:
        return _COMMANDS[names[0]](names[1:])
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        print(
            f"Unknown benchmark {', '.join(unknown)}; known are table, chart, cluster, {', '.join(_ALL)}.",
            file=sys.stderr,
        )
        return 2
    began = time.perf_counter()
    figures: list[Figure] = []
    for name in names or _ALL:
        print(f"measuring {name} ...", file=sys.stderr)
        figures += _ALL[name]()
    print(text_of(figures))
    missed = [figure.name for figure in figures if figure.is_met is False]
    seconds, (load, *_) = time.perf_counter() - began, os.getloadavg()
    print(f"\n{seconds:.0f} s; {len(missed)} goals missed; load {load:.1f} on {os.cpu_count()} processors.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
