"""Client library: locates or starts a server, sends requests, follows its event stream, and folds events into view
state. It contains no user interface; that belongs to `cli`, `tui` and `acp`.
"""
