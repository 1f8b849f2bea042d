"""Versions loaded into a server beside each other (ports.PolicyHost), for servers that load LoRA adapters while they run."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from metaclaw.domain.chat import Json
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import is_whole
from metaclaw.errors import TrainingError, WeightsLostError
from metaclaw.train.hosts.admin import Admin, Said
from metaclaw.train.hosts.naming import name_of

log = logging.getLogger(__name__)


class Dialect(Protocol):
    """How one kind of server is asked."""

    def load(self, name: str, folder: str) -> tuple[str, Json]:
        """Path and body that load an adapter."""

    def unload(self, name: str) -> tuple[str, Json]:
        """Path and body that let one go."""

    def complaint(self, said: Said) -> str | None:
        """Why it was not done, or None."""

    def is_taken(self, complaint: str) -> bool:
        """Whether an adapter of this name is there already."""

    def is_gone(self, complaint: str) -> bool:
        """Whether there is no adapter of this name."""


def nothing() -> frozenset[int]:
    """No version is in use."""
    return frozenset()


class LoadingHost:
    """A PolicyHost. The newest `keeps` versions stay loaded, and those `in_use`; older ones are unloaded after a new one came."""

    def __init__(self, admin: Admin, dialect: Dialect, *, keeps: int = 2, in_use: Callable[[], frozenset[int]] = nothing) -> None:
        self._admin = admin
        self._dialect = dialect
        self._keeps = keeps
        self._in_use = in_use
        self._loaded: dict[int, Weights] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def loaded(self) -> frozenset[int]:
        """The versions that can be asked for."""
        return frozenset(self._loaded)

    async def load(self, version: int, weights: Weights) -> None:
        """Load a version beside the others. Raises TrainingError, and changes nothing, if it cannot be loaded."""
        async with self._one_at_a_time:
            if version <= BASE_POLICY:
                raise TrainingError(f"version {version} is not one of trained weights")
            if (known := self._loaded.get(version)) is not None:
                if known.adapter != weights.adapter:
                    raise TrainingError(f"version {version} is loaded with other weights, those in {known.adapter}")
                return
            await self._load(version, _folder(weights))
            self._loaded[version] = weights
            log.info("version loaded server=%s version=%d", self._admin.url, version)
            await self._tidy()

    async def unload(self, version: int) -> None:
        """Let a version go; the server finishes its running answers. One that is not there is gone."""
        async with self._one_at_a_time:
            await self._unload(version)

    def forget(self, version: int) -> None:
        """The server says that it does not have this version: it was started again."""
        self._loaded.pop(version, None)

    async def _tidy(self) -> None:
        kept = {*sorted(self._loaded)[-self._keeps :], *self._in_use()}
        for version in sorted(self._loaded.keys() - kept):
            try:
                await self._unload(version)
            except TrainingError as error:
                # The new version is there; what is old may be tried again.
                log.warning("version stays loaded server=%s error=%s", self._admin.url, error)

    async def _load(self, version: int, folder: str) -> None:
        complaint = await self._ask(*self._dialect.load(name_of(version), folder))
        if complaint is not None and self._dialect.is_taken(complaint):
            # The server has outlived us, and nothing says that the weights of this name are the same.
            await self._drop(version)
            complaint = await self._ask(*self._dialect.load(name_of(version), folder))
        if complaint is not None:
            # It reads our folders. What else it may have against a version nobody knows; one that is not all there it never loads.
            kind = TrainingError if is_whole(Path(folder)) else WeightsLostError
            raise kind(f"version {version} cannot be loaded by {self._admin.url}: {complaint}")

    async def _unload(self, version: int) -> None:
        if version in self._loaded:
            await self._drop(version)
            del self._loaded[version]
            log.info("version unloaded server=%s version=%d", self._admin.url, version)

    async def _drop(self, version: int) -> None:
        complaint = await self._ask(*self._dialect.unload(name_of(version)))
        if complaint is not None and not self._dialect.is_gone(complaint):
            raise TrainingError(f"version {version} cannot be unloaded by {self._admin.url}: {complaint}")

    async def _ask(self, path: str, body: Json) -> str | None:
        return self._dialect.complaint(await self._admin.post(path, body))


def _folder(weights: Weights) -> str:
    """The adapter's folder, which the server reads itself. Raises TrainingError for weights that are no folder."""
    if "://" in weights.adapter:
        raise TrainingError(f"{weights.adapter} is not a folder with an adapter, so no other server can load it")
    return str(Path(weights.adapter).absolute())
