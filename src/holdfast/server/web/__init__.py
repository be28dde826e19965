"""The web page: its listener, authentication and static files. Its source is in `/web`."""
