"""Python imports this at its start where this folder is on PYTHONPATH: packages named in
HIDDEN_PACKAGES look uninstalled.
"""

import os
import sys

for _name in os.environ["HIDDEN_PACKAGES"].split(","):
    sys.modules[_name] = None  # type: ignore[assignment]
