"""Spans on their way to a collector: put together where events are heard, sent by a thread that nobody waits for."""

import logging
import queue
import threading
from importlib import import_module
from typing import Protocol

from holdfast.distribution import install_command
from holdfast.domain.events import DurableEvent
from holdfast.server.spans import Span, Spans

__all__ = ["MISSING", "Telemetry"]

MISSING = f"OpenTelemetry is not installed: {install_command('otel')}. Until then no spans are sent."
_FAREWELL = 5.0
_MOST = 10_000
_log = logging.getLogger("holdfast.server")


class _Collector(Protocol):
    def take(self, span: Span) -> None: ...

    def close(self) -> None: ...


class Telemetry:
    """OpenTelemetry takes its time to load: the thread does that too. Without a collector spans are lost, not work."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._spans = Spans()
        self._ended: queue.Queue[Span | None] = queue.Queue(_MOST)
        self.trouble = ""
        """Why nothing is sent."""
        self._thread = threading.Thread(target=self._send, name="holdfast-telemetry", daemon=True)
        self._thread.start()

    def hear(self, path: str, event: DurableEvent, now: float) -> None:
        for span in self._spans.hear(path, event, now):
            try:
                self._ended.put_nowait(span)
            except queue.Full:
                return

    def close(self) -> None:
        """What has ended is sent, if that does not take too long."""
        try:
            self._ended.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_FAREWELL)

    def _send(self) -> None:
        try:
            collector: _Collector = import_module("holdfast.server.otlp").Collector(self._endpoint)
        except ImportError:
            self.trouble = MISSING
            _log.warning("%s", MISSING)
            return
        try:
            while (span := self._ended.get()) is not None:
                collector.take(span)
        finally:
            collector.close()
