"""The listening socket of a proxy, handed to the process that follows it: connections wait in the
socket meanwhile, and none is refused.

`metaclaw restart` asks the running proxy for it over a Unix socket in the home folder. systemd
keeps it while it restarts a service (sd_notify(3), FDSTORE)."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

_NAME = "handover"
_PATIENCE_S = 5.0
_FIRST_OF_SYSTEMD = 3
_REPLACED = b"FDSTOREREMOVE=1\nFDNAME=proxy"
_STORED = b"FDSTORE=1\nFDNAME=proxy"


@contextmanager
def offered(home: Path, listening: socket.socket) -> Iterator[asyncio.Event]:
    """Give the socket to systemd, if that started this process, and to each process that asks; the
    event says that another has it."""
    has_heir = asyncio.Event()
    if _store(listening):
        has_heir.set()
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as offering:
        try:
            with _address(home) as address:
                (home / "run" / _NAME).unlink(missing_ok=True)
                offering.bind(address)
            offering.listen(1)
        except OSError as error:
            log.info("no_handover reason=%s; a restart will refuse connections", error)
            yield has_heir
            return
        offering.setblocking(False)
        loop.add_reader(offering.fileno(), _hand_over, offering, listening, has_heir)
        try:
            yield has_heir
        finally:
            loop.remove_reader(offering.fileno())


def _hand_over(offering: socket.socket, listening: socket.socket, has_heir: asyncio.Event) -> None:
    with suppress(OSError):  # whoever asked has gone
        asking, _ = offering.accept()
        with asking:
            socket.send_fds(asking, [b"\0"], [listening.fileno()])
            has_heir.set()


def taken(home: Path, host: str, port: int) -> socket.socket | None:
    """The listening socket of this home's proxy, if it has this address; else None."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_PATIENCE_S)
        try:
            with _address(home) as address:
                asking.connect(address)
            _, handles, _, _ = socket.recv_fds(asking, 1, 1)
        except OSError:
            return None
    return _at(host, port, handles[0]) if handles else None


def kept_by_systemd(host: str, port: int) -> socket.socket | None:
    """The socket that systemd kept while it restarted this process, if it has this address."""
    count, pid = (os.environ.pop(name, "") for name in ("LISTEN_FDS", "LISTEN_PID"))
    if not count or pid != str(os.getpid()):
        return None
    return _at(host, port, _FIRST_OF_SYSTEMD)


def _at(host: str, port: int, handle: int) -> socket.socket | None:
    """The socket with this handle, or None, and closed, if it has another address."""
    found = socket.socket(fileno=handle)
    found.set_inheritable(False)
    try:
        wanted = {one[4][:2] for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        if found.getsockname()[:2] in wanted:
            return found
    except OSError as error:
        log.debug("socket_not_taken reason=%s", error)
    found.close()
    return None


def _store(listening: socket.socket) -> bool:
    """Have systemd keep the socket; return whether there is a systemd to do so."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.connect(f"\0{place[1:]}" if place.startswith("@") else place)
        systemd.send(_REPLACED)
        socket.send_fds(systemd, [_STORED], [listening.fileno()])
        return True
    return False


@contextmanager
def _address(home: Path) -> Iterator[str]:
    """The address of the Unix socket. Addresses are limited to about a hundred bytes, and on Linux
    a handle of the folder stands for any path."""
    if sys.platform != "linux":
        yield str(home / "run" / _NAME)
        return
    folder = os.open(home / "run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{_NAME}"
    finally:
        os.close(folder)
