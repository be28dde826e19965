"""What a tool may do unasked: rules, and what a shell line would do."""
