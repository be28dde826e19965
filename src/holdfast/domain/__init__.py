"""The data types shared by all packages: frozen `msgspec` structs and the pure functions on them.

Most of them are the wire types as well: they are stored and sent as the bytes to which they encode. I/O, clocks,
asyncio and imports of other packages do not belong here.
"""
