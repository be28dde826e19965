"""The HTTP server: listening sockets, connections, authentication, and the ASGI application.

Handlers of single routes belong to `server.routes`, event streams to `server.streams`, and the web page's port to
`server.web`.
"""
