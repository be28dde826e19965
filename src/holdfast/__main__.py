"""`python -m holdfast` is the command `holdfast`."""

from holdfast.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
