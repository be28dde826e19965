"""Sends spans to a collector: built where events are observed, sent by a background thread."""

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
    """Builds and sends spans. The thread also imports OpenTelemetry, which is slow. Without a collector spans are
    dropped.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._spans = Spans()
        self._ended: queue.Queue[Span | None] = queue.Queue(_MOST)
        self.trouble = ""
        """Reason why no spans are sent."""
        self._thread = threading.Thread(target=self._send, name="holdfast-telemetry", daemon=True)
        self._thread.start()

    def hear(self, path: str, event: DurableEvent, now: float) -> None:
        """Queue the spans that end with an event. They are dropped if the queue is full."""
        for span in self._spans.hear(path, event, now):
            try:
                self._ended.put_nowait(span)
            except queue.Full:
                return

    def close(self) -> None:
        """Send the queued spans, for a limited time."""
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
