"""The store: what operations mean (`operations`), and the ledger that keeps them in SQLite (`ledger`)."""
