"""The composition root: the only place that knows every part and wires them together."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import uvicorn

from metaclaw.config import Config, ProviderConfig
from metaclaw.dashboard import Api, Facts, ProviderFacts, Status
from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import SessionId
from metaclaw.domain.status import Health
from metaclaw.engine import MODEL_ID, EmbeddedModel
from metaclaw.errors import ConfigError, StoreError
from metaclaw.instance import Instance, acquire
from metaclaw.learn import Supervisor
from metaclaw.proxy import (
    Elsewhere,
    Gatekeeper,
    Intake,
    Limits,
    Metrics,
    Opener,
    Origins,
    Pipeline,
    Placer,
    Provider,
    Providers,
    Server,
)
from metaclaw.proxy.protocol import BoundedProtocol
from metaclaw.skills import Shelf
from metaclaw.store import LedgerReader, SqlGenerations, SqlLedger, connect
from metaclaw.store import Limits as StoreLimits
from metaclaw.upstream import PASSTHROUGH, HttpEndpoint, Timeouts

log = logging.getLogger(__name__)

_LAST_WORDS_S = 2.0
_SKILLS_PATIENCE_S = 2.0
_SWEEP_EVERY_S = 15.0
_RESTORED_SESSIONS = 500


@dataclass(frozen=True, slots=True)
class Serving:
    """What a person must know to use the running proxy."""

    url: str
    api_key: str
    model: str | None
    skills: int


def run(config: Config, *, home: Path, ready: Callable[[Serving], None] | None = None) -> int:
    """Serve until told to stop. Returns the exit status."""
    logging.basicConfig(level=config.log.level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    # What these libraries say at INFO is about themselves, not about the owner's day.
    for name in ("alembic", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with acquire(home) as instance, asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(_serve(config, home, instance, ready))
    return 0


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(config: Config, home: Path, instance: Instance, ready: Callable[[Serving], None] | None) -> None:
    """Open every part, serve, and close them in the order of shutdown: answers, ledger, loops, adapters."""
    if config.proxy.api_key is None:
        raise ConfigError("proxy.api_key is missing; run `metaclaw start`, which makes one")
    listener = _listen(config)
    async with AsyncExitStack() as parts:
        house = House(config, home)
        await house.open(parts)
        _settle_garbage()
        server = uvicorn.Server(
            uvicorn.Config(
                house.server,
                http=BoundedProtocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(config.proxy.drain_s),
            )
        )
        async with anyio.create_task_group() as group:
            supervisor = Supervisor(group)
            house.begin_loops(supervisor)
            group.start_soon(_announce, server, listener, house, instance, ready)
            with _signals(server):
                await server.serve(sockets=[listener])
                await house.server.idle(_LAST_WORDS_S)
            instance.retract()
            group.cancel_scope.cancel()


def _settle_garbage() -> None:
    """What is loaded by now lives as long as the program; the collector need not look at it again with every few requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


async def _announce(
    server: uvicorn.Server, listener: socket.socket, house: "House", instance: Instance, ready: Callable[[Serving], None] | None
) -> None:
    while not server.started:
        await anyio.sleep(0.005)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    instance.announce(url)
    log.info("serving url=%s skills=%d", url, house.shelf.view.count)
    if ready is not None:
        ready(Serving(url, house.api_key, house.embedded.models[0] if house.embedded else None, house.shelf.view.count))


def _listen(config: Config) -> socket.socket:
    host, port = config.proxy.host, config.proxy.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port or proxy.port") from error
    listener.set_inheritable(False)
    return listener


@contextmanager
def _signals(server: uvicorn.Server) -> Iterator[None]:
    """The first signal lets running answers finish; the second does not. Ending on a signal is a clean end: exit status 0."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    server.capture_signals = _capture_nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextmanager
def _capture_nothing() -> Iterator[None]:
    yield


class House:
    """Every part of the running program, built from the configuration."""

    def __init__(self, config: Config, home: Path) -> None:
        self._config = config
        self._home = home
        self.api_key = config.proxy.api_key.resolve() if config.proxy.api_key is not None else ""
        self.database = connect(config.store.url.resolve())
        # A database behind a network may take longer over a commit than a file without anything being wrong.
        self.ledger = SqlLedger(self.database, StoreLimits(patience_s=1.0 if self.database.kind == "sqlite" else 2.0))
        self.reader = LedgerReader(self.database)
        self.shelf = Shelf(config.skills.dir, SqlGenerations(self.database))
        self.metrics = Metrics()
        self.origins = Origins(silence_s=config.sessions.silence_minutes * 60, now=lambda: datetime.now(UTC))
        self.placer = Placer(
            lambda: self.shelf.view,
            max_placed=config.skills.max_placed,
            budget_tokens=config.skills.budget_tokens,
            enabled=config.skills.enabled,
        )
        self.embedded: EmbeddedModel | None = None
        self.providers = self._build_providers()
        self.supervisor: Supervisor | None = None
        self.server = self._build_server()

    def _build_providers(self) -> list[Provider]:
        configured = self._config.fallback_order or (ProviderConfig(name="embedded", kind="embedded"),)
        return [self._build_provider(one) for one in configured]

    def _build_provider(self, one: ProviderConfig) -> Provider:
        if one.kind == "embedded":
            engine = self._config.engine
            self.embedded = EmbeddedModel(
                self._home / "models" / MODEL_ID, name=one.name, threads=engine.threads or None, slots=engine.max_batch
            )
            return self.embedded
        key = None if one.api_key is None else PASSTHROUGH if one.api_key.is_passthrough else one.api_key.resolve()
        timeouts = Timeouts(connect_s=one.connect_timeout_s, first_byte_s=one.timeout_s, idle_s=one.timeout_s)
        return HttpEndpoint(
            one.name, one.kind, one.base_url or "", api_key=key, models=one.models, wires=one.wires, timeouts=timeouts
        )

    def _build_server(self) -> Server:
        passthrough = frozenset(
            one.name for one in self._config.providers if one.api_key is not None and one.api_key.is_passthrough
        )
        providers = Providers(self.providers, passthrough)
        pipeline = Pipeline(
            origins=self.origins,
            placer=self.placer,
            opener=Opener(providers),
            ledger=self.ledger,
            metrics=self.metrics,
            limits=Limits(),
        )
        return Server(
            gatekeeper=Gatekeeper(self.api_key),
            pipeline=pipeline,
            elsewhere=Elsewhere(providers),
            api=Api(self._facts()),
            metrics=self.metrics,
            intake=Intake(self._config.proxy.max_body_bytes, max_concurrency=self._config.proxy.max_concurrency),
        )

    def _facts(self) -> Facts:
        status = self._status()
        return Facts(
            status=status.tell,
            unready=status.unready,
            reader=self.reader,
            skills=lambda: self.shelf.view,
            end_session=self._end_session,
            registry=self.metrics.registry if self._config.telemetry.prometheus else None,
        )

    def _status(self) -> Status:
        embedded = self.embedded
        return Status(
            mode="skills_only",
            store_kind=self.database.kind,
            store_health=lambda: self.ledger.health,
            counts=self.reader.counts,
            shelf=lambda: self.shelf.view,
            shelf_trouble=lambda: self.shelf.trouble,
            providers=[_shown(provider) for provider in self.providers],
            engine_state=None if embedded is None else lambda: embedded.state,
            loops=lambda: {} if self.supervisor is None else self.supervisor.states,
            active_sessions=lambda: self.origins.active,
            began=time.monotonic(),
        )

    async def open(self, parts: AsyncExitStack) -> None:
        """Start what must run before the first request; `parts` closes it again, last opened first."""
        parts.callback(self.database.close)
        for provider in self.providers:
            parts.push_async_callback(provider.aclose)
        if self.embedded is not None:
            await self.embedded.start()
        try:
            await anyio.to_thread.run_sync(self.database.prepare)
            await anyio.to_thread.run_sync(self._restore)
        except StoreError as error:
            log.error("store_unusable reason=%s; serving goes on, turns wait in memory", error)
        await self._load_skills(parts)
        await self.ledger.start()
        parts.push_async_callback(self.ledger.aclose)

    async def _load_skills(self, parts: AsyncExitStack) -> None:
        """Read the skills before the first request, unless there are so many that it would keep people waiting."""
        loading = asyncio.create_task(anyio.to_thread.run_sync(self.shelf.load))
        parts.push_async_callback(asyncio.wait, [loading])
        await asyncio.wait([loading], timeout=_SKILLS_PATIENCE_S)
        if loading.done():
            loading.result()
        else:
            log.warning("skills_loading folder=%s; requests are served without skills until they are read", self.shelf.folder)

    def begin_loops(self, supervisor: Supervisor) -> None:
        """Start everything that runs beside serving."""
        self.supervisor = supervisor
        supervisor.run("skills", self.shelf.watch)
        supervisor.run("sessions", self._sweep)

    def _restore(self) -> None:
        """Recognise the sessions that were running when the program last stopped, with the skills in their prompts."""
        since = datetime.now(UTC) - timedelta(minutes=self._config.sessions.silence_minutes)
        traces = self.reader.recent_traces(since, _RESTORED_SESSIONS)
        self.origins.restore(traces)
        for trace in traces:
            found = self.reader.turn(trace.last_turn)
            if found is not None:
                self.placer.restore(trace.session, found.turn.segment, found.turn.stamp, found.turn.placements)

    async def _sweep(self) -> None:
        """End sessions that have fallen silent."""
        while True:
            await anyio.sleep(_SWEEP_EVERY_S)
            if self.ledger.health.health is Health.DEGRADED:
                continue  # a store in trouble has more important things to keep in mind
            silent = self.origins.sweep()
            self.placer.forget(silent)
            for session in silent:
                await self.ledger.end_session(session, "silence")

    async def _end_session(self, session: SessionId) -> bool:
        if not self.origins.end(session):
            return False
        self.placer.forget((session,))
        await self.ledger.end_session(session, "owner said so")
        return True


def _shown(provider: Provider) -> ProviderFacts:
    if isinstance(provider, HttpEndpoint):
        wires = tuple(wire.value for wire in Wire if wire in provider.wires)
        return ProviderFacts(
            provider.name, provider.kind, wires, provider.models, lambda: f"{provider.open_connections} connections"
        )
    state = (lambda: provider.state) if isinstance(provider, EmbeddedModel) else (lambda: "ready")
    return ProviderFacts(provider.name, "embedded", (), provider.models, state)
