"""Git: the only place that starts it, and readers for repositories that must not run it.

Rules about git commands of a model belong to `permissions`, and git directories of sandboxed commands to
`workspace.sandbox`.
"""
