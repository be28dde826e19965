"""Commands and their supervision: the guard process, process trees, output, background jobs.

Restrictions of commands belong to `workspace.sandbox`, and decisions about them to `permissions`.
"""
