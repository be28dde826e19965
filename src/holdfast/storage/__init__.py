"""The store: the meaning of each operation (`operations`, pure) and the ledger that stores it in SQLite (`ledger`).

The types of operations and results are in `domain.ledger`. Decisions about runs belong to `engine`, the publication of
events belongs to `bus`.
"""
