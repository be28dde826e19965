"""Hooks: user-configured commands that run on events such as tool calls and can block or change them. The event sources
belong to `engine`.
"""
