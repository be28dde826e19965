"""The other mouth: talks to a server, follows its events, folds them into what a screen shows."""
