"""HTTP/1.1 client core shared by the client library, the command line and the providers.

Belongs here: serialisation of requests, the incremental response parser, connections with their pool, and the reader of
server-sent events. Does not belong here: routes, tokens and errors of Holdfast's own protocol (`client`), proxies and
everything about models (`providers`), and the HTTP server (`server`).

`messages` and `sse` do no I/O and are fast to import: short-lived commands use them with a blocking socket.
`connection` is for programs with an event loop.
"""
