"""`python -m girih.cli`, for where the command `girih` is not on the path."""

from . import main

if __name__ == "__main__":
    main()
