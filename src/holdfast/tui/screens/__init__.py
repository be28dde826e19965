"""Screens above the conversation: dialogs, lists, help. Parts of the main screen belong to `tui.widgets`."""
