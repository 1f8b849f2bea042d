"""`python -m metaclaw`."""

import sys

from metaclaw.cli import main

if __name__ == "__main__":
    sys.exit(main())
