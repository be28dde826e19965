"""The directory at hand: its files, its processes, its search, its history."""
