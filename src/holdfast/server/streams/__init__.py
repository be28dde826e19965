"""Event streams: the resumable form, and the form of stock Crush clients.

Choosing the events of a subscriber belongs to `bus`; here they are framed, paced and written to a connection.
"""
