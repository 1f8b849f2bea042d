"""The program on a tether: `python -m metaclaw.bench.running.tether PARENT …` is `metaclaw …`, and ends with its parent.

A run that is killed must not leave proxies behind that hold their home folders and answer nobody.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to its parent, then be the program."""
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(0)  # it ended before the tether held
    runpy.run_module("metaclaw", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
