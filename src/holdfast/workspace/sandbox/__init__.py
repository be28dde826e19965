"""The sandbox of commands: mounts, privileges, and the check of files that a command leaves behind.

Starting and stopping commands belongs to `workspace.process`.
"""
