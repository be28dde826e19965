"""Files of the workspace: paths, safe access, atomic writes, edits, undo.

Files of Holdfast itself (settings, credentials) are written by `atomic_files`, and diffs are computed in
`domain.line_diff`.
"""
