"""Handlers for statistics, metrics and the API documentation page."""

from holdfast.domain.errors import BadRequest, NotFound
from holdfast.domain.stats import Stats
from holdfast.protocol.page import page
from holdfast.server.calls import Call

__all__ = ["all_stats", "docs", "metrics", "stats"]

_FARTHEST = 14 * 60
"""No time zone is further from UTC, in minutes."""


async def docs(_: Call) -> str:
    """Return the API documentation as a page."""
    return page()


async def metrics(call: Call) -> str:
    """Return the metrics for Prometheus."""
    counted = call.hub.metrics
    if counted is None:
        raise NotFound("Metrics are off: set options.metrics to true, and start the server again.")
    return counted.told(call.hub)


async def stats(call: Call) -> Stats:
    """Return the statistics of a workspace."""
    return await call.hub.app.ledger.stats(call.desk.id, _zone(call))


async def all_stats(call: Call) -> Stats:
    """Return the statistics of all workspaces."""
    return await call.hub.app.ledger.stats(None, _zone(call))


def _zone(call: Call) -> int:
    text = call.query.get("zone", "0")
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 4 or int(digits) > _FARTHEST:
        raise BadRequest("zone is how many minutes a clock is ahead of UTC: at most 840, or less than none.")
    return int(text)
