"""Versions of the weights as the program sees them: which the engine process has, is getting, or is letting go."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import frames
from metaclaw.engine.child_process import EngineProcess
from metaclaw.errors import BackendDownError, EngineError, TrainingError, WeightsLostError

log = logging.getLogger(__name__)

_OURS: Final = "embedded"
News: TypeAlias = frames.Loaded | frames.NotLoaded | frames.Unloaded


@dataclass(frozen=True, slots=True)
class _Load:
    """A version on its way into the engine."""

    id: int
    version: int
    weights: Weights
    done: "asyncio.Future[None]"


@dataclass(frozen=True, slots=True)
class _Unload:
    """A version on its way out of it."""

    weights: Weights
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Hosting:
    """A PolicyHost's book. `ready_child` gives the engine process once it serves, or raises EngineError."""

    def __init__(self, ready_child: Callable[[], Awaitable[EngineProcess]]) -> None:
        self._ready_child = ready_child
        self._versions: dict[int, Weights] = {}
        self._expected: set[int] = set()
        self._ids = itertools.count(1)
        self._load: _Load | None = None
        self._one_at_a_time = asyncio.Lock()
        self._unloads: dict[int, _Unload] = {}

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that can be asked for; one that is expected counts once it was waited for with `load`."""
        return frozenset(self._versions.keys() - self._expected)

    def options(self) -> list[str]:
        """How a new engine process is told what to load before it is ready."""
        return [part for version, weights in self._versions.items() for part in ("--adapter", str(version), weights.adapter)]

    def expect(self, version: int, weights: Weights) -> None:
        """The engine process, which has not been started yet, is to be ready only with this version."""
        self._versions[version] = weights
        self._expected.add(version)

    async def load(self, version: int, weights: Weights) -> None:
        """Load a version; one that is there is left as it is, and one that is on its way out stays.

        Raises TrainingError, and changes nothing, if it cannot be loaded: WeightsLostError if the engine cannot use it or dies,
        BackendDownError if there is no engine.
        """
        if version <= BASE_POLICY:
            raise TrainingError(f"version {version} is not one of trained weights")
        if weights.backend != _OURS:
            # They are valid, but kept by the service that trained them.
            raise TrainingError(f"version {version} was trained by {weights.backend}, which alone can serve it")
        async with self._one_at_a_time:
            if version in self._expected:
                await self._ready(version)  # only then it is known whether it could be read
                self._expected.discard(version)
            unload = self._unloads.get(version)
            known = self._versions.get(version) if unload is None else unload.weights
            if known is not None and known.adapter != weights.adapter:
                raise TrainingError(f"version {version} is loaded with other weights, those in {known.adapter}")
            if version not in self._versions:
                await self._load_now(version, weights)

    async def _load_now(self, version: int, weights: Weights) -> None:
        child = await self._ready(version)
        if unload := self._unloads.pop(version, None):
            unload.done.set()
        self._load = load = _Load(next(self._ids), version, weights, asyncio.get_running_loop().create_future())
        child.send(frames.pack(frames.Load(load.id, version, weights.adapter)))
        try:
            await load.done
        except asyncio.CancelledError:
            # It was cancelled, even if it has just come.
            self._versions.pop(version, None)
            child.send(frames.pack(frames.Unload(version)))
            raise
        finally:
            self._load = None

    async def _ready(self, version: int) -> EngineProcess:
        try:
            return await self._ready_child()
        except EngineError as error:
            raise BackendDownError(f"version {version} cannot be loaded: {error}") from error

    async def unload(self, version: int) -> None:
        """Let a version go; returns when its running answers are finished and its memory is free. One that is not there is gone."""
        if weights := self._versions.pop(version, None):
            self._unloads[version] = _Unload(weights)
        unload = self._unloads.get(version)
        if unload is None:
            return
        try:
            child = await self._ready_child()
        except EngineError:
            # No process, no version in it.
            self._unloads.pop(version, None)
            return
        if self._unloads.get(version) is unload:
            child.send(frames.pack(frames.Unload(version)))
        await unload.done.wait()

    def hear(self, news: News) -> None:
        """What the engine process says about a version."""
        match news:
            case frames.Loaded():
                if (load := self._load) and load.id == news.id and not load.done.done():
                    self._versions[load.version] = load.weights
                    load.done.set_result(None)
            case frames.NotLoaded():
                if (load := self._load) and load.id == news.id:
                    _fail(load, news.message)
                elif news.id is None and self._versions.pop(news.version, None) is not None:
                    log.error("version_lost version=%d reason=%r", news.version, news.message)
            case frames.Unloaded():
                if unload := self._unloads.pop(news.version, None):
                    unload.done.set()
            case _:
                assert_never(news)

    def restart(self, reason: str) -> None:
        """The engine process has gone, and with it what it was asked to load or to let go."""
        if self._load is not None:
            _fail(self._load, reason)
        while self._unloads:
            self._unloads.popitem()[1].done.set()


def _fail(load: _Load, reason: str) -> None:
    if not load.done.done():
        load.done.set_exception(WeightsLostError(f"version {load.version} cannot be loaded: {reason}"))
