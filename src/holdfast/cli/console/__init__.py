"""Input and output at the terminal for commands: output of a run, approvals, input lines, transcripts.

Following a run and deciding its exit code belong to `cli.run_client`, and the full-screen app to `tui`.
"""
