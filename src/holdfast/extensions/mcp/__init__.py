"""Servers of tools, prompts and resources that speak the Model Context Protocol."""
