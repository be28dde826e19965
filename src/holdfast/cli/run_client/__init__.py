"""The client side of `holdfast run` and `attach`: arguments, submission, following a run to its end."""
