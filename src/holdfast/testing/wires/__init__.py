"""What providers say, in their own tongues, from one neutral script."""
