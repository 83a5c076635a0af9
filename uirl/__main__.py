"""`python -m uirl`: the command."""

import sys

from uirl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
