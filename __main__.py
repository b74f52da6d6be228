"""`python -m girih`, for where the command `girih` is not on the path."""

from .cli import main

if __name__ == "__main__":
    main()
