"""Several processes that serve on one port, and the process that starts them and starts another one
when one dies.

Each worker is a whole proxy of the same home and store; one of them leads (see `shared_store`). Each
listens on the port by itself, so that the system spreads connections over them, and on a port of
its own on this machine, where the others ask the leader for its status.

The first process only waits: it holds the lock of the home, passes SIGTERM and Ctrl-C on, and stays
until the last worker has ended. Workers end when it does, however it ends."""

import json
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from metaclaw.app.ready import ReadyFacts
from metaclaw.durable_files import replace_file
from metaclaw.errors import MetaClawError

log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_SOON_S: Final = 5.0
_PAUSE_S: Final = 1.0
_FILE: Final = "workers.json"
_LEADER: Final = "leader.json"

Serve = Callable[["Worker"], None]
"""Serves until told to stop. Raises MetaClawError if it cannot begin."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker is given. `told` is where it writes its facts, in one line, once it serves."""

    home: Path
    told: int

    def tell(
        self,
        facts: ReadyFacts,
        link: Callable[[str], str],
        model_state: Callable[[], str] | None = None,
    ) -> None:
        """Tell the first process that this worker serves; it makes links by itself."""
        os.write(self.told, json.dumps(asdict(facts)).encode() + b"\n")

    def retract(self) -> None:
        """The address stays: other workers have it, too."""


@dataclass(eq=False)
class Workers:
    """`count` processes that run `serve`. `ready` is called once, with the facts of the first that
    serves.
    """

    home: Path
    count: int
    serve: Serve
    ready: Callable[[ReadyFacts], None]
    _alive: dict[int, float] = field(default_factory=dict, init=False)
    _deaths: int = field(default=0, init=False)
    _is_stopping: bool = field(default=False, init=False)
    _is_told: bool = field(default=False, init=False)
    _again_at: float = field(default=0.0, init=False)

    def run(self) -> int:
        """Keep the workers running until told to stop; the exit status."""
        self._told, self._telling = os.pipe()
        self._life, self._living = os.pipe()
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: None)
        with selectors.DefaultSelector() as waiting, wake, woken:
            waiting.register(wake, selectors.EVENT_READ)
            waiting.register(self._told, selectors.EVENT_READ)
            self._start_missing()
            while self._alive or not self._is_stopping:
                pause_s = max(0.0, self._again_at - time.monotonic()) if self._again_at else None
                for key, _ in waiting.select(pause_s):
                    if key.fileobj is wake:
                        self._signalled(wake.recv(4096))
                    else:
                        self._hear(os.read(self._told, 65536))
                self._start_missing()
        return 0 if self._is_told else 1

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                self._bury()
                continue
            self._is_stopping = True
            for pid in self._alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _bury(self) -> None:
        """Take note of the workers that have ended. If one ends before any has served, all do: the
        next would meet the same.
        """
        for pid in list(self._alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            lived_s = time.monotonic() - self._alive.pop(pid)
            if self._is_stopping:
                continue
            self._deaths += 1
            log.error("worker_ended pid=%d status=%d", pid, os.waitstatus_to_exitcode(status))
            if not self._is_told:
                self._signalled(bytes([signal.SIGTERM]))
            elif lived_s < _SOON_S:
                self._again_at = time.monotonic() + _PAUSE_S

    def _start_missing(self) -> None:
        if self._is_stopping or len(self._alive) == self.count:
            return
        if self._again_at > time.monotonic():
            return
        self._again_at = 0.0
        while len(self._alive) < self.count:
            pid = os.fork()
            if not pid:
                self._become_worker()
            self._alive[pid] = time.monotonic()
        facts = {"workers": sorted(self._alive), "restarted": self._deaths}
        with suppress(OSError):
            replace_file(self.home / "run" / _FILE, json.dumps(facts).encode(), flush=False)

    def _hear(self, said: bytes) -> None:
        if said and not self._is_told:
            self._is_told = True
            self.ready(ReadyFacts(**json.loads(said.splitlines()[0])))

    def _become_worker(self) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the first process, which passes it on
            os.close(self._living)
            threading.Thread(target=_end_with, args=(self._life,), daemon=True).start()
            self.serve(Worker(self.home, self._telling))
            status = 0
        except MetaClawError as error:
            sys.stderr.write(f"metaclaw: {error}\n")
        except BaseException:
            log.exception("worker_failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _end_with(life: int) -> None:
    """Stop this process when the first one ends, which closes the other end."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def note_leader(home: Path, url: str) -> None:
    """Write down that this worker leads, for the others."""
    facts = {"pid": os.getpid(), "url": url}
    with suppress(OSError):
        replace_file(home / "run" / _LEADER, json.dumps(facts).encode(), flush=False)


def leader_of(home: Path) -> tuple[int, str] | None:
    """The worker that leads, and its own address; None if that is not known."""
    try:
        facts = json.loads((home / "run" / _LEADER).read_bytes())
        return int(facts["pid"]), str(facts["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def workers_of(home: Path) -> dict[str, object]:
    """The workers of this home and which of them leads, for `status`."""
    try:
        facts = json.loads((home / "run" / _FILE).read_bytes())
        leader = leader_of(home)
        told = [
            {"pid": pid, "leads": leader is not None and pid == leader[0]}
            for pid in facts["workers"]
        ]
        return {"processes": told, "restarted": int(facts["restarted"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"processes": [], "restarted": 0}
