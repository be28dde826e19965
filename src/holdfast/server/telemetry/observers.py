"""Observers of workspace events: counters and spans, if the settings enable them. None by default."""

import logging
import os
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.atomic_files import FILES
from holdfast.config.configuration import Configuration
from holdfast.config.locations import locate_settings
from holdfast.domain.doctor import Finding
from holdfast.domain.documents import Documents
from holdfast.domain.events import DurableEvent, LiveEvent
from holdfast.domain.settings import Options, StorageSettings
from holdfast.domain.store_operations import Entry

if TYPE_CHECKING:
    from holdfast.engine.ports import Outlet

if TYPE_CHECKING:
    from holdfast.server.telemetry.metrics import ServerMetrics
    from holdfast.server.telemetry.spans import Telemetry

__all__ = ["Observer", "Observers", "own_settings"]

Observer: TypeAlias = Callable[[str, DurableEvent, float], None]
"""Receives the directory of a workspace, an event, and its time. Must not block."""

_log = logging.getLogger("holdfast.server")


def own_settings(data_dir: Path, documents: Documents = FILES) -> tuple[Options, StorageSettings]:
    """Return the settings of the server's owner. Project settings do not apply, trusted or not. The store is that of
    the files only, not of settings that clients have saved. `documents` are those of a cluster.
    """
    is_shared = documents is not FILES
    places = locate_settings(str(data_dir), os.environ, data_dir=str(data_dir), is_shared=is_shared)
    own_sources = tuple(source for source in places.sources if source.kind != "project")
    configuration = Configuration(msgspec.structs.replace(places, sources=own_sources), os.environ, documents=documents)
    storage = msgspec.convert(configuration.settings_from_files("storage"), StorageSettings)
    return configuration.settings.options, storage


class Observers:
    """The observers of one server."""

    def __init__(self, options: Options) -> None:
        self.metrics: ServerMetrics | None = None
        self.telemetry: Telemetry | None = None
        # Modules of disabled observers are not imported.
        if options.metrics:
            self.metrics = import_module("holdfast.server.telemetry.metrics").ServerMetrics()
        if options.telemetry:
            self.telemetry = import_module("holdfast.server.telemetry.spans").Telemetry(options.telemetry)
        self._observers: list[Observer] = []
        if self.metrics is not None:
            self._observers.append(self.metrics.record)
        if self.telemetry is not None:
            self._observers.append(self.telemetry.record)

    @property
    def observe(self) -> "Callable[[str, Outlet], Outlet] | None":
        """Returns a function that wraps the outlet of a workspace; None without observers."""
        return (lambda path, outlet: _ObservedOutlet(path, outlet, self._observers)) if self._observers else None

    def problems(self) -> tuple[Finding, ...]:
        """Return why spans that are enabled are not sent."""
        trouble = self.telemetry.trouble if self.telemetry is not None else ""
        return (Finding("telemetry", "warning", trouble),) if trouble else ()

    def close(self) -> None:
        """Flush the last spans; blocks for a limited time."""
        if self.telemetry is not None:
            self.telemetry.close()


class _ObservedOutlet:
    """An outlet that also passes durable events to the observers."""

    def __init__(self, path: str, outlet: "Outlet", receivers: list[Observer]) -> None:
        self._path = path
        self._outlet = outlet
        self._observers = receivers

    def publish(self, entries: Iterable[Entry]) -> None:
        """Publish entries, then pass them to the observers."""
        kept = tuple(entries)
        self._outlet.publish(kept)
        now = time.time()
        for entry in kept:
            for notify_observer in self._observers:
                try:
                    notify_observer(self._path, entry.event, now)
                except Exception:
                    # An observer that fails must not affect the run.
                    _log.exception("an event could not be counted")

    def publish_live(self, event: LiveEvent) -> None:
        """Publish a live event; observers do not receive it."""
        self._outlet.publish_live(event)
