"""The mutation runner behind `scripts/mutation`: finds mistakes in the source that no test detects.

One pytest process collects all tests once. For each mutant it forks a child, which plants the mutant in itself and runs
the tests that execute the mutated function, the fastest first. `docs/testing.md` describes how it is used.
"""
