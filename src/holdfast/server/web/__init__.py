"""The web page: its listener, authentication and static files. Its source is in `/web`.

The page uses the same routes as any client; they belong to `server.routes`.
"""
