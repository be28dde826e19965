"""The agent's hands."""
