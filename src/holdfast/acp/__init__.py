"""Editors: the Agent Client Protocol on stdin and stdout, spoken by a client like any other."""
