"""What the providers' own libraries need. Everything here is imported in a thread, when it is first used."""
