"""Commands: prompts that people have written down, to be sent by their names."""
