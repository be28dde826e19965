"""Decisions about tool calls: allow, ask or deny, by rules and by the effects of shell lines.

All modules are pure; `runtime` passes the functions that access the disk. Requests to users belong to
`engine.approvals`.
"""
