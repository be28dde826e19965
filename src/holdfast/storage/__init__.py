"""The SQLite store: durable, numbered, one writer."""

from holdfast.storage.ledger import SqliteLedger
from holdfast.storage.retention import Retention

__all__ = ["Retention", "SqliteLedger"]
