"""Entry point of the command line for ``python -m fenchel``."""

from fenchel.deploy.cli.main import main

if __name__ == "__main__":
    main()
