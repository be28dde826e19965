"""Language servers: what compilers and checkers know of the code that a model reads and changes."""
