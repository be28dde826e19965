"""Input and output at the terminal for commands: output of a run, approvals, input lines, transcripts."""
