"""How events reach those who listen: one shared backlog per workspace, and readers who find their place in it."""
