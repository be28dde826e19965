"""Commands and their supervision: the guard process, process trees, output, background jobs."""
