"""Agents: helpers that people have described, with their own words, tools and model."""
