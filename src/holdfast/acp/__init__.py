"""Agent Client Protocol bridge for editors, on stdin and stdout. It is a client of the server and contains no agent
logic: requests are sent through `client`.
"""
