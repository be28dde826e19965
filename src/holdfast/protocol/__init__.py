"""What client and server agree on. No I/O."""
