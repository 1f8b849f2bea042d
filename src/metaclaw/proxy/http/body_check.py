"""Check a request body that takes long to decode in a child process, before this process decodes
it.

Decoding holds the interpreter's lock, so a thread would stall the event loop just as long. Bodies
that are refused are refused by the child; only bodies that pass are decoded here. The child is this
file, run as a script."""

import asyncio
import importlib.util
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from metaclaw.domain.chat import Wire
from metaclaw.errors import WireError

_IDLE_S: Final = 600.0
"""The child ends when it has had nothing to do for this long."""
_LIMIT_S: Final = 60.0


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The arguments of a WireError."""

    message: str
    status: int
    code: str
    param: str | None = None


class BodyChecker:
    """Asks the child process, which is started when it is needed, one body at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "metaclaw-body-check")
        self._child: subprocess.Popen[bytes] | None = None

    async def check(self, wire: Wire, body: bytes, max_items: int) -> None:
        """Raise the WireError that decoding this body raises, if it does."""
        loop = asyncio.get_running_loop()
        refusal = await loop.run_in_executor(self._thread, self._ask, wire, body, max_items)
        if refusal is not None:
            raise WireError(
                refusal.message, status=refusal.status, code=refusal.code, param=refusal.param
            )

    def _ask(self, wire: Wire, body: bytes, max_items: int) -> Refusal | None:
        try:
            return _ask(self._started(), wire, body, max_items)
        except OSError:
            self._end()  # it was killed, or ended just now because it was idle
        try:
            return _ask(self._started(), wire, body, max_items)
        except OSError as error:
            self._end()
            return Refusal(
                f"the request body could not be checked: {error}", 503, "body_not_checked"
            )

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._child is not None and self._child.poll() is not None:
            self._end()
        if self._child is None:
            command = [sys.executable, "-P", __file__]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
            )
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.stdin = None  # closing it would try to write the rest of the body
            child.wait()


def _ask(
    child: "subprocess.Popen[bytes]", wire: Wire, body: bytes, max_items: int
) -> Refusal | None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"%b %d %d\n" % (wire.value.encode(), max_items, len(body)))
    child.stdin.write(body)
    child.stdin.flush()
    if not select.select([child.stdout], [], [], _LIMIT_S)[0]:
        raise TimeoutError(f"the check took more than {_LIMIT_S:g} s")
    line = child.stdout.readline()
    if not line:
        raise ConnectionError("the checking process ended")
    return msgspec.json.decode(line, type=Refusal | None)


def main() -> int:
    """Answer until standard input ends or nothing comes for `_IDLE_S`: null for a body that passes,
    else the refusal.
    """
    decoder = _load_decoder()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while select.select([source], [], [], _IDLE_S)[0] and (head := source.readline()):
        wire, max_items, size = head.split()
        answer = _refusal(decoder, Wire(wire.decode()), source.read(int(size)), int(max_items))
        sink.write(msgspec.json.encode(answer) + b"\n")
        sink.flush()
    return 0


def _load_decoder() -> ModuleType:
    """Load `body.py` alone: importing it from its package would import the whole proxy, which takes
    a second.
    """
    spec = importlib.util.spec_from_file_location("body", Path(__file__).with_name("body.py"))
    assert spec is not None
    assert spec.loader is not None
    decoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(decoder)
    return decoder


def _refusal(decoder: ModuleType, wire: Wire, body: bytes, max_items: int) -> Refusal | None:
    try:
        decoder.check(wire, body, max_items)
    except WireError as error:
        return Refusal(str(error), error.status, error.code, error.param)
    return None


if __name__ == "__main__":
    sys.exit(main())
