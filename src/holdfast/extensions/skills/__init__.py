"""Skills: instructions for specific tasks, which a model reads on demand. Prompts that users invoke by name belong to
`extensions.commands`.
"""
