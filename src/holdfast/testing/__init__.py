"""Twins of everything the engine meets, and suites every implementation must pass. Ships with Holdfast."""
