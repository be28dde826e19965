"""Prometheus metrics of the server: counters and current values. Imported only if the settings enable it."""

import os
import resource
import sys
import time
from pathlib import Path

from holdfast.server.counters import Family, Metrics, render
from holdfast.server.hub import Hub

__all__ = ["ServerMetrics"]

_STARTED = time.time()


class ServerMetrics(Metrics):
    """Metrics of one server."""

    def told(self, hub: Hub) -> str:
        """Render the counters and the current values."""
        return render([*self.families(), *_now(hub)])


def _now(hub: Hub) -> list[Family]:
    presence = hub.presence
    clients = {claim for workspace in presence.workspaces.values() for claim in workspace.claims}
    busy = sum(desk.workspace.engine.is_busy() for desk in hub.desks)
    used = resource.getrusage(resource.RUSAGE_SELF)
    families = [
        Family("workspaces_open", "gauge", "Workspaces that are open.").set(len(hub.desks)),
        Family("workspaces_busy", "gauge", "Workspaces with a run at work or waiting.").set(busy),
        Family("clients", "gauge", "Clients that hold a workspace.").set(len(clients)),
        Family("database_bytes", "gauge", "Size of the database.").set(_size(hub.data_dir / "holdfast.db")),
        Family("process_cpu_seconds_total", "counter", "CPU time of the server.").set(used.ru_utime + used.ru_stime),
        Family("process_resident_memory_bytes", "gauge", "Memory of the server.").set(_memory(used.ru_maxrss)),
        Family("start_time_seconds", "gauge", "When it was started, in Unix seconds.").set(_STARTED),
    ]
    descriptors = Path("/proc/self/fd")
    if descriptors.is_dir():
        opened = len(os.listdir(descriptors))
        families.append(Family("process_open_fds", "gauge", "Descriptors that are open.").set(opened))
    return families


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _memory(most: int) -> int:
    """Return the resident memory, or its maximum where the system does not provide it."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
