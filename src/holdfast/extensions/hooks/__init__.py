"""Hooks: commands of people that are run when something happens, and may have a say in it."""
