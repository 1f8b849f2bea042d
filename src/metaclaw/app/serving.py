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
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.api import new_link, secret_of
from metaclaw.app.application import Application
from metaclaw.app.model_server import with_model_server
from metaclaw.app.ready import ReadyFacts, ReadyProxy
from metaclaw.app.workers import Worker, Workers
from metaclaw.certificate import ServerCertificate
from metaclaw.clock import utc_now
from metaclaw.config import Config
from metaclaw.domain.person import HOME
from metaclaw.domain.skill import SkillKind
from metaclaw.errors import ConfigError, MetaClawError, StoreError
from metaclaw.handover import kept_by_systemd, offered
from metaclaw.instance import Instance, acquire, reachable, url_of
from metaclaw.learn import Supervisor
from metaclaw.proxy import Listener
from metaclaw.store import open_database

log = logging.getLogger(__name__)

_RECORDING_S = 2.0
_OPEN_FILES = 65536
_UV_THREADS = 4
CLEAR_LINE: Final = "\r\033[K"


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
        # On a terminal a line replaces the progress line.
        format=f"{CLEAR_LINE if sys.stderr.isatty() else ''}"
        "%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    # A log that cannot be written, as on a full disk, would be written about for each line.
    logging.raiseExceptions = False
    _raise_file_limit()
    if config.proxy.api_key is None:
        raise ConfigError("proxy.api_key is missing; run `metaclaw start`, which makes one")
    former = None if predecessor is None else predecessor.pid
    with ExitStack() as claims:
        instance = claims.enter_context(acquire(home)) if former is None else None
        if config.proxy.workers > 1 and instance is not None:
            status = _run_workers(config, home, instance, ready)
        else:
            listening = _listening(config, predecessor)

            async def begin(stop: asyncio.Event) -> _Announcement | None:
                mine = instance
                if former is not None:
                    mine = await _succeed(former, home, claims, stop)
                return None if mine is None else _Announcement(mine, ready, config.proxy.tls_cert)

            status = _run_loop(lambda: _serve(config, home, listening, begin))
    _drop_unwritable_output()
    return status


def _run_loop(serve: Callable[[], Coroutine[None, None, None]]) -> int:
    runner = asyncio.Runner(loop_factory=_fast_loop())
    try:
        runner.run(serve())
    finally:
        with suppress(RuntimeError):  # no thread can be started to wait for the others with
            runner.close()
    return 0


def _run_workers(config: Config, home: Path, instance: Instance, ready: OnReady | None) -> int:
    """Serve by several processes; this one only watches them."""
    _require_shareable(config, home)
    shared = _listen(config, is_shared=True)  # keeps the port; nobody connects to this socket
    port = shared.getsockname()[1]
    with suppress(StoreError):  # it is tried again by the workers
        open_database(config.store.url.resolve()).close()

    def serve(worker: Worker) -> None:
        gc.enable()
        listening = _listen(config, port, is_shared=True)
        own = _listen(config, 0, "127.0.0.1")

        async def begin(stop: asyncio.Event) -> Worker:
            return worker

        _run_loop(lambda: _serve(config, home, listening, begin, own))

    def tell(facts: ReadyFacts) -> None:
        announcement = _Announcement(instance, ready, config.proxy.tls_cert)
        announcement.tell(facts, _link_maker(config, home))

    with shared:
        return Workers(home, config.proxy.workers, serve, tell).run()


def _require_shareable(config: Config, home: Path) -> None:
    """Raise ConfigError for a model of our own, which one process serves."""
    if with_model_server(config, home)[1] is not None or not config.providers:
        own = True
    else:
        own = any(provider.kind == "embedded" for provider in config.providers)
    if own:
        raise ConfigError(
            "proxy.workers needs providers over HTTP: the embedded model and a model server that"
            " the proxy starts belong to one process; leave out --workers"
        )


def _link_maker(config: Config, home: Path) -> Callable[[str], str]:
    assert config.proxy.api_key is not None
    secret = secret_of(config.proxy.api_key.resolve())
    return lambda url: new_link(secret, url, HOME, utc_now().timestamp())


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
    listening: socket.socket,
    begin: Callable[[asyncio.Event], Awaitable["_Announcement | Worker | None"]],
    own: socket.socket | None = None,
) -> None:
    """Open every part, serve, and close them in the order of shutdown: answers, ledger, loops,
    adapters. A worker also listens on a socket of its `own`, without TLS.

    `begin` returns once the loops of this process may begin, which is when a proxy before it has
    ended; None if it is told to stop before that."""
    await _start_resolver()
    tls = _certificate(config)
    signals = _Signals()
    async with AsyncExitStack() as parts:
        parts.callback(signals.ignore)
        own_url = None if own is None else _url(own)
        application = Application(config, home, listening.getsockname()[1], own_url=own_url)
        await application.open(parts)
        _settle_garbage()
        listener = Listener(application.server.serve, config.proxy.write_timeout_s)
        await listener.open(listening, tls)
        beside = None
        if own is not None:
            beside = Listener(application.server.serve, config.proxy.write_timeout_s)
            await beside.open(own)
        async with anyio.create_task_group() as group:
            # Only the supervisor starts tasks in this group: any other that fails would end the
            # program.
            supervisor = Supervisor(group)
            signals.handle()
            announcer = await begin(signals.stop)
            if announcer is not None:
                application.begin_loops(supervisor)
                facts = _ready_facts(application, _url(listening, config.proxy.scheme))
                link = application.sign_in.new_link
                model = application.embedded
                state = None if model is None else lambda: model.state
                announce = partial(announcer.tell, facts, link, state)
                supervisor.run("announcement", partial(_announce, announce))
            offering = offered(home, listening) if own is None else nullcontext(asyncio.Event())
            with offering as has_heir:
                await signals.stop.wait()
            log.info("stopping running=%d wait_s=%g", len(listener.tasks), config.proxy.drain_s)
            application.api.stop()
            if has_heir.is_set():
                await listener.leave()
            await listener.close(config.proxy.drain_s, signals.hurry)
            if beside is not None:
                await beside.close(0, signals.hurry)
            await application.server.idle(_RECORDING_S)
            if announcer is not None:
                announcer.retract()
            group.cancel_scope.cancel()


async def _announce(announce: Callable[[], None]) -> None:
    announce()


def _url(listening: socket.socket, scheme: str = "http") -> str:
    host, port = listening.getsockname()[:2]
    return url_of(host, port, scheme)


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


def _ready_facts(application: Application, url: str) -> ReadyFacts:
    """What is told of a program that serves now."""
    kinds = Counter(one.kind for one in application.library.view.skills)
    rules, facts = kinds[SkillKind.RULE], kinds[SkillKind.FACT]
    skills = kinds.total() - rules - facts
    log.info("serving url=%s rules=%d facts=%d skills=%d", url, rules, facts, skills)
    model = application.embedded.models[0] if application.embedded else None
    if application.model_server is not None:
        model = application.model_server.model
    return ReadyFacts(url, application.api_key, model, rules, facts, skills)


class _Announcement:
    """Tells the person who started the program, once, and writes the address where commands find
    it, again if that fails.
    """

    def __init__(self, instance: Instance, ready: OnReady | None, certificate: Path | None) -> None:
        self._certificate = certificate
        self._instance = instance
        self._ready = ready

    def tell(
        self,
        facts: ReadyFacts,
        link: Callable[[str], str],
        model_state: Callable[[], str] | None = None,
    ) -> None:
        """Called again if it raises OSError."""
        try:
            self._instance.announce(facts.url, self._certificate)
        finally:
            ready, self._ready = self._ready, None
            if ready is not None:
                new_link = partial(link, reachable(facts.url))
                ready(ReadyProxy(**asdict(facts), new_link=new_link, model_state=model_state))

    def retract(self) -> None:
        """Remove the address."""
        self._instance.retract()


def _listening(config: Config, predecessor: Predecessor | None) -> socket.socket:
    """The socket of the proxy before this one, where it is kept, or a new one."""
    if predecessor is not None:
        return predecessor.listening
    return kept_by_systemd(config.proxy.host, config.proxy.port) or _listen(config)


def _certificate(config: Config) -> ssl.SSLContext | None:
    cert, key = config.proxy.tls_cert, config.proxy.tls_key
    return None if cert is None else ServerCertificate(cert, key or cert).context


def _listen(
    config: Config, port: int | None = None, host: str | None = None, *, is_shared: bool = False
) -> socket.socket:
    """A socket at the configured address, or another. A shared one is bound beside others."""
    host, port = host or config.proxy.host, config.proxy.port if port is None else port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
