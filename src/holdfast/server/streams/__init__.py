"""Event streams: the resumable form, and the form of stock Crush clients."""
