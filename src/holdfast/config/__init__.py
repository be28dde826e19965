"""What a user may set, and where it is written."""
