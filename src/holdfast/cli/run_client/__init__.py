"""The client side of `holdfast run` and `attach`: arguments, submission, following a run to its end.

Reading from and writing to the terminal belong to `cli.console`.
"""
