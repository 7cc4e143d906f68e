"""`python -m weightlease.cli`."""

import sys

from weightlease.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
