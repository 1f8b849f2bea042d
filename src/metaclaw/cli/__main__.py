"""`python -m metaclaw.cli`: how a detached proxy is started by the program it comes from."""

import sys

from metaclaw.cli import main

sys.exit(main())
