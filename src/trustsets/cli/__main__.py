"""``python -m trustsets.cli`` is the command ``trustsets``."""

from trustsets.cli import main

if __name__ == "__main__":
    main()
