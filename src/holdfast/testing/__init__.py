"""Test tools that ship with Holdfast: gates, a store in memory, a workspace in process, a seeded event loop, and the
conformance suite of stores.

For tests of extensions, tools, stores and clients; `docs/testing-tools.md` shows their use. Nothing in the package
imports them. Tools that only our own tests need are in `tests`.
"""
