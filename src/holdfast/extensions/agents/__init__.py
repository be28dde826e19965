"""User-defined sub-agent types, read from Markdown files: instructions, tools and model. Running sub-agents belongs to
`engine`.
"""
