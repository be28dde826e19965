"""Who decides: the lifecycle machine, its shell, and the loop that drives one run."""
