"""`python -m symlab`."""

import sys

from symlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
