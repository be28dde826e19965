"""Git: the only place that starts it, and readers for repositories that must not run it."""
