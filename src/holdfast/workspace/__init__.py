"""Access to the workspace directory: files, search, git, processes, sandbox, change history.

Belongs here: everything that touches the disk or starts a process on behalf of a tool, and the checks that keep it
inside its bounds. Does not belong here: decisions about permissions (`permissions`), the tools themselves and their
texts for models (`tools`), and the server's own data (`storage`).
"""
