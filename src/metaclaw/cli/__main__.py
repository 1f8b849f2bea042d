"""`python -m metaclaw.cli`: the entry point for a detached proxy."""

import sys

from metaclaw.cli import main

sys.exit(main())
