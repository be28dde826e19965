"""Files of the workspace: paths, safe access, atomic writes, edits, diffs, undo."""
