"""Metrics and traces, derived from events. Nothing here is imported unless the settings enable it."""
