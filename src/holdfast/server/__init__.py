"""The HTTP server: connections, ASGI application, route handlers, event streams, client presence and the web port.

It owns the state of connections and clients: open workspaces (`workspace_manager.py`), claims and timers
(`presence.py`), admitted web pages (`web/web_auth.py`) and metrics. It does not contain the agent loop (`engine`),
storage (`storage`), the wire types and the route table (`protocol`) or the construction of workspaces (`runtime`).
"""
