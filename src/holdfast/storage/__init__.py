"""The store: the meaning of each operation (`operations`, pure) and the ledgers that store it, in SQLite
(`sqlite_ledger`) and PostgreSQL (`postgres`).

The types of operations and results are in `domain.store_operations`. Decisions about runs belong to `engine`, the
publication of events belongs to `bus`.
"""
