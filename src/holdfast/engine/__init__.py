"""The run engine: lifecycle state machine, its asyncio driver, and the agent loop.

Belongs here: scheduling, cancellation and recovery of runs, conversations with a model, approvals, sub-agents. Does not
belong here: SQL, HTTP, files, processes and provider protocols. The engine declares its dependencies in `ports` and
imports only `domain` and `tasks`.
"""
