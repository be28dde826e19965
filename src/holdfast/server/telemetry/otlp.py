"""Sends spans over OTLP and HTTP with OpenTelemetry. Imported only if a collector is configured."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as Begun
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from holdfast import __version__
from holdfast.server.telemetry.spans import Span

__all__ = ["Collector"]

_FAREWELL_MS = 2_000
_REQUEST_TIMEOUT = 5
_OPERATIONS = {"run": "invoke_agent", "step": "chat", "tool": "execute_tool"}


class Collector:
    """Receives spans in the order in which they end: children before their parent."""

    def __init__(self, endpoint: str) -> None:
        address = endpoint.rstrip("/")
        address = address if address.endswith("/v1/traces") else f"{address}/v1/traces"
        about = Resource.create({"service.name": "holdfast", "service.version": __version__})
        self._provider = TracerProvider(resource=about)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=address, timeout=_REQUEST_TIMEOUT))
        )
        self._tracer = self._provider.get_tracer("holdfast", __version__)
        self._begun: dict[int, tuple[Span, Begun]] = {}
        """OpenTelemetry spans that are open because a child has ended."""

    def take(self, span: Span) -> None:
        """Send a span that has ended."""
        begun = self._begin(span)
        del self._begun[id(span)]
        begun.update_name(span.name)
        begun.set_attributes({"gen_ai.operation.name": _OPERATIONS[span.kind], **span.facts})
        for moment, text, facts in span.notes:
            begun.add_event(text, facts, _nanoseconds(moment))
        if span.error:
            begun.set_status(Status(StatusCode.ERROR, span.error))
        begun.end(_nanoseconds(span.end))

    def close(self) -> None:
        """Flush and shut down the exporter."""
        self._provider.force_flush(_FAREWELL_MS)
        self._provider.shutdown()

    def _begin(self, span: Span) -> Begun:
        known = self._begun.get(id(span))
        if known is None:
            context = set_span_in_context(self._begin(span.parent)) if span.parent is not None else None
            begun = self._tracer.start_span(span.name, context=context, start_time=_nanoseconds(span.start))
            known = self._begun[id(span)] = (span, begun)
        return known[1]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
