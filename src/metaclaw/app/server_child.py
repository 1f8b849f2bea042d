"""Runs a command until it ends or standard input does: a model's server must not outlive the proxy,
even one that is killed. It stays as long as the server, so it imports nothing of the program."""

import os
import signal
import subprocess
import sys
from threading import Thread

_PATIENCE_S = 20.0


def main() -> int:
    """Return the exit status of the command."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    Thread(target=_end_with_input, args=(child,), daemon=True).start()
    return child.wait()


def _end_with_input(child: "subprocess.Popen[bytes]") -> None:
    sys.stdin.buffer.read()
    child.terminate()
    try:
        child.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
