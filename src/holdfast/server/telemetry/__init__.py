"""Metrics and traces, derived from events. Nothing here is imported unless the settings enable it.

The usage statistics of `holdfast stats` are computed from the database and belong to `storage.stats`.
"""
