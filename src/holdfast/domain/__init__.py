"""What exists: frozen types shared by every room. Imports msgspec and the standard library only."""
