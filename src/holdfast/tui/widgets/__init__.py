"""Widgets of the main screen of the terminal app. They draw and report input as messages.

Requests to the server belong to the controllers in `tui`, and full-screen dialogs to `tui.screens`.
"""
