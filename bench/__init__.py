"""What Holdfast costs, beside what the machine alone can do. Run with `scripts/bench`."""
