"""How often tests of chance try: few times for every change, many times each night (`make
nightly`).
"""

import os
from typing import Final

IS_NIGHTLY: Final = os.environ.get("METACLAW_TEST_NIGHTLY") == "1"


def tries(usual: int, *, nightly: int) -> int:
    return nightly if IS_NIGHTLY else usual
