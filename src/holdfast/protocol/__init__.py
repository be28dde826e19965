"""The contract between client and server: routes, bodies, problems and the form of the event stream.

Types that both sides and the store share are in `domain`. No I/O, no handlers and no client code.
"""
