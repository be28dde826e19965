"""The command line. Each command's code is loaded only when it is called."""
