"""The command line: one module per command, and the code that `run` and `attach` share.

Commands parse arguments, send requests through `client`, and print. They contain no agent logic and never access the
server's database for writing. Each command's module is imported only when the command is called.
"""
