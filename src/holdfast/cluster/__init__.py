"""Several servers on one PostgreSQL: ownership of workspaces, membership, wake-ups."""
