"""Models the engine can ask."""
