"""The terminal app: a client like any other, built with Textual.

Widgets show the view that `link.py` keeps up to date; modules marked pure convert it into lines. Decisions about runs
and permissions belong to the server, and reading the event stream to `client`.
"""
