"""The terminal app, built with Textual. It is a client like any other.

`app` receives keys and messages and passes them to the controllers (`approvals`, `prompt_actions`, `pickers`,
`slash_commands`, `rendering`), which reach the app through `app_context`. `server_connection` keeps a view of the
workspace up to date; modules marked pure convert it into lines, and `widgets` and `screens` show them.

Decisions about runs and permissions belong to the server, and reading the event stream belongs to `client`.
"""
