"""The running program: open every part, listen, serve until told to stop, and close in order."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.app.application import Application
from metaclaw.app.ready import ReadyProxy
from metaclaw.certificate import ServerCertificate
from metaclaw.config import Config
from metaclaw.domain.skill import SkillKind
from metaclaw.errors import ConfigError, MetaClawError
from metaclaw.handover import kept_by_systemd, offered
from metaclaw.instance import Instance, acquire, reachable, url_of
from metaclaw.learn import Supervisor
from metaclaw.proxy import Listener

log = logging.getLogger(__name__)

_RECORDING_S = 2.0
_OPEN_FILES = 65536
_UV_THREADS = 4


OnReady = Callable[[ReadyProxy], None]


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The listening socket of the proxy before this one. `pid` is its process if it serves until
    this one does; None if it has ended."""

    listening: socket.socket
    pid: int | None


def run(
    config: Config,
    *,
    home: Path,
    ready: OnReady | None = None,
    predecessor: Predecessor | None = None,
) -> int:
    """Serve until told to stop. Returns the exit status."""
    logging.basicConfig(
        level=config.log.level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    # A log that cannot be written, as on a full disk, would be written about for each line.
    logging.raiseExceptions = False
    _raise_file_limit()
    with ExitStack() as claims:
        runner = asyncio.Runner(loop_factory=_fast_loop())
        try:
            runner.run(_serve(config, home, claims, ready, predecessor))
        finally:
            with suppress(RuntimeError):  # no thread can be started to wait for the others with
                runner.close()
    _drop_unwritable_output()
    return 0


def _raise_file_limit() -> None:
    """Allow as many open files as the system does: every answer takes two connections, and 1,024 is
    a common default for all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some sandboxes forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _drop_unwritable_output() -> None:
    """Drop output that cannot be written: the interpreter would try again and end with another exit
    status.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop, where it is installed and threads can be started: libuv ends the process
    if it cannot start its own.
    """
    try:
        import uvloop

        for _ in range(_UV_THREADS):
            threading.Thread(target=int).start()
    except (ImportError, RuntimeError):
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _start_resolver() -> None:
    """Have libuv start its threads now, and not with the first name that a request needs: there may
    be no memory for them then.
    """
    with suppress(
        OSError, RuntimeError
    ):  # this flag forbids to ask a name server, so nothing is found
        await asyncio.get_running_loop().getaddrinfo("localhost", None, flags=socket.AI_NUMERICHOST)


async def _serve(
    config: Config,
    home: Path,
    claims: ExitStack,
    ready: OnReady | None,
    predecessor: Predecessor | None,
) -> None:
    """Open every part, serve, and close them in the order of shutdown: answers, ledger, loops,
    adapters. `claims` holds the lock of the home until the process ends.

    A predecessor that still serves is stopped once this process can serve; loops begin when it has
    ended."""
    former = None if predecessor is None else predecessor.pid
    instance = claims.enter_context(acquire(home)) if former is None else None
    if config.proxy.api_key is None:
        raise ConfigError("proxy.api_key is missing; run `metaclaw start`, which makes one")
    await _start_resolver()
    tls = _certificate(config)
    if predecessor is not None:
        listening = predecessor.listening
    else:
        place = config.proxy.host, config.proxy.port
        listening = kept_by_systemd(*place) or _listen(config)
    signals = _Signals()
    async with AsyncExitStack() as parts:
        parts.callback(signals.ignore)
        application = Application(config, home, listening.getsockname()[1])
        await application.open(parts)
        _settle_garbage()
        listener = Listener(application.server.serve, config.proxy.write_timeout_s)
        await listener.open(listening, tls)
        async with anyio.create_task_group() as group:
            # Only the supervisor starts tasks in this group: any other that fails would end the
            # program.
            supervisor = Supervisor(group)
            signals.handle()
            if former is not None:
                instance = await _succeed(former, home, claims, signals.stop)
            if instance is not None:
                application.begin_loops(supervisor)
                supervisor.run(
                    "announcement", _Announcement(listening, application, instance, ready).run
                )
            with offered(home, listening) as has_heir:
                await signals.stop.wait()
            log.info("stopping running=%d wait_s=%g", len(listener.tasks), config.proxy.drain_s)
            application.api.stop()
            if has_heir.is_set():
                await listener.leave()
            await listener.close(config.proxy.drain_s, signals.hurry)
            await application.server.idle(_RECORDING_S)
            if instance is not None:
                instance.retract()
            group.cancel_scope.cancel()


async def _succeed(
    former: int, home: Path, claims: ExitStack, stop: asyncio.Event
) -> Instance | None:
    """Stop the proxy before this one, and take over its lock when its running answers have
    finished. None if this one is stopped before that."""
    with suppress(ProcessLookupError):
        os.kill(former, signal.SIGTERM)
    while not stop.is_set():
        try:
            return await run_sync(claims.enter_context, acquire(home))
        except MetaClawError:
            if not _is_alive(former):
                raise
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _settle_garbage() -> None:
    """Exempt what is loaded by now from garbage collection: it is kept until the program ends. No
    collection is run first: it takes a twentieth of the start."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


class _Announcement:
    """Tells the person who started the program, once, and writes the address where commands find
    it, again if that fails.
    """

    def __init__(
        self,
        listening: socket.socket,
        application: Application,
        instance: Instance,
        ready: OnReady | None,
    ) -> None:
        proxy = application.config.proxy
        host, port = listening.getsockname()[:2]
        self._url = url_of(host, port, proxy.scheme)
        self._certificate = proxy.tls_cert
        self._application = application
        self._instance = instance
        self._ready = ready
        self._is_told = False

    async def run(self) -> None:
        try:
            self._instance.announce(self._url, self._certificate)
        finally:
            if not self._is_told:
                self._is_told = True
                self._tell()

    def _tell(self) -> None:
        application = self._application
        kinds = Counter(one.kind for one in application.library.view.skills)
        rules, facts = kinds[SkillKind.RULE], kinds[SkillKind.FACT]
        skills = kinds.total() - rules - facts
        log.info("serving url=%s rules=%d facts=%d skills=%d", self._url, rules, facts, skills)
        if self._ready is not None:
            model = application.embedded.models[0] if application.embedded else None
            if application.model_server is not None:
                model = application.model_server.model
            link = partial(application.sign_in.new_link, reachable(self._url))
            self._ready(
                ReadyProxy(self._url, application.api_key, model, rules, facts, skills, link)
            )


def _certificate(config: Config) -> ssl.SSLContext | None:
    cert, key = config.proxy.tls_cert, config.proxy.tls_key
    return None if cert is None else ServerCertificate(cert, key or cert).context


def _listen(config: Config) -> socket.socket:
    host, port = config.proxy.host, config.proxy.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port or"
            " proxy.port"
        ) from error
    listener.set_inheritable(False)
    return listener


_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class _Signals:
    """SIGTERM and SIGINT (Ctrl-C) stop the program, with exit status 0; running answers may finish.
    A second Ctrl-C does not wait for them. No signal but SIGKILL skips what follows: recording
    finished answers and closing."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._are_ours = False

    def handle(self) -> None:
        """Handle both signals from now on. Not by the loop's own handlers: taking those away leaves
        a moment in which a signal kills the process."""
        loop = asyncio.get_running_loop()
        self._are_ours = True
        for number in _STOPPING:
            signal.signal(
                number, lambda found, _: loop.call_soon_threadsafe(self._signalled, found)
            )

    def _signalled(self, number: int) -> None:
        is_hurried = number == signal.SIGINT and self.stop.is_set()
        (self.hurry if is_hurried else self.stop).set()

    def ignore(self) -> None:
        """Ignore both, if they were handled, until the process ends: everything is closed, and
        nothing is left to interrupt.
        """
        for number in _STOPPING if self._are_ours else ():
            signal.signal(number, signal.SIG_IGN)
