"""What opens above the conversation: questions, lists, help."""
