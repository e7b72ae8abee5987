"""``python -m fourpoint`` is the command ``fourpoint``."""

from fourpoint.cli.main import main

if __name__ == "__main__":
    main()
