"""The HTTP server: listening sockets, connections, authentication, and the ASGI application."""
