"""``python -m fourpoint`` is the command ``fourpoint``."""

from fourpoint.cli import main

if __name__ == "__main__":
    main()
