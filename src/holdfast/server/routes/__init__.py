"""Request handlers, one module per resource. A handler decodes, calls the workspace and encodes; it keeps no state."""
