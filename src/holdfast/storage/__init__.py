"""The store: the meaning of operations (`operations`, pure) and the ledger that stores them in SQLite
(`ledger`).

The types of operations and results are in `domain.ledger`. Decisions about runs belong to `engine`, the
publication
of events to `bus`.
"""
