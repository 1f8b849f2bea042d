"""Ports for servers that must be told theirs before they start."""

import os
import socket
from itertools import count
from typing import Final

_FIRST: Final = 20_000
_EACH: Final = 400
_numbers = count()


def free_port() -> int:
    """A port that nothing listens on and no other call is given soon.

    It lies below those that the system gives away, so that no connection takes it meanwhile, and
    every worker of a test run has ports of its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = _FIRST + _EACH * (worker % 30) + (os.getpid() + next(_numbers)) % _EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
