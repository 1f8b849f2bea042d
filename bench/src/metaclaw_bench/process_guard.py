"""Ends the processes the benchmark started when the benchmark itself is gone, even after `kill -9`.

`python process_guard.py` is the far end. Its standard input says which process groups run (`+123`)
and which have ended (`-123`); when the input ends, it ends every group that is left, and kills
those that do not end. A killed process cannot clean up, but the kernel closes its pipes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

_GRACE_S: Final = 5.0


class ProcessGuard:
    """Holds process groups of this process's children. The far end is started with the first of
    them, and ends with us.
    """

    def __init__(self) -> None:
        self._far_end: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def hold(self, group: int) -> Iterator[None]:
        """As long as this lasts, the group does not outlive us."""
        self._say(f"+{group}\n")
        try:
            yield
        finally:
            self._say(f"-{group}\n")

    def _say(self, words: str) -> None:
        if self._far_end is None:
            # A session of its own: what is typed at the terminal must not end it before what it
            # holds.
            command = [sys.executable, "-S", "-P", __file__]
            self._far_end = subprocess.Popen(
                command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        assert self._far_end.stdin is not None
        with contextlib.suppress(
            BrokenPipeError
        ):  # somebody ended it; nothing is held then, and nothing else is lost
            self._far_end.stdin.write(words.encode())

    def close(self) -> None:
        """Nothing is to be held any more."""
        far_end, self._far_end = self._far_end, None
        if far_end is not None and far_end.stdin is not None:
            far_end.stdin.close()
            far_end.wait()


def main() -> None:
    """Be the far end."""
    held: set[int] = set()
    for line in sys.stdin:
        (held.add if line[0] == "+" else held.discard)(int(line[1:]))
    # A proxy that is asked to end also ends its own model process, which may be in another group.
    held = {group for group in held if _signal(group, signal.SIGTERM)}
    deadline = time.monotonic() + _GRACE_S
    while (held := {group for group in held if _signal(group, 0)}) and time.monotonic() < deadline:
        time.sleep(0.1)
    for group in held:
        _signal(group, signal.SIGKILL)


def _signal(group: int, which: int) -> bool:
    """Whether the group was there to be signalled."""
    try:
        os.killpg(group, which)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
