"""How much of the log is kept."""

import msgspec

__all__ = ["PASS", "Retention"]

PASS = 1_000
"""After how many new numbers the log is looked at. A look removes at most twice as many events, so it keeps
up with the log and never holds the writer for long.
"""


class Retention(msgspec.Struct, frozen=True):
    """The newest `events`, as far as they are younger than `days`; more while a run that began there is unended."""

    events: int = 100_000
    days: float = 30

    def cutoff_ms(self, now_ms: int) -> int:
        """Events stored before this are too old."""
        return now_ms - int(self.days * 86_400_000)

    def is_due(self, before: int, after: int) -> bool:
        """Whether the numbering has come far enough since it was at `before`."""
        return before // PASS != after // PASS
