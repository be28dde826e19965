"""The terminal app: a client like any other. Widgets show a view; they compute nothing."""
