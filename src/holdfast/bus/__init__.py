"""Delivery of the events of a workspace to its subscribers: one shared backlog, and a position in it per reader.

Persistence (`storage`), the encoding of events (`domain.events`) and the framing of HTTP streams (`server`) do not
belong here.
"""
