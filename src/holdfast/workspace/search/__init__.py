"""Search for text and files."""
