"""The version that serves: promoted, rolled back. `rollback` watches its turns.

The database says what is to serve; here it is loaded, and the slot flips. A version that cannot be
loaded is tried again: for as long as its host cannot be reached, and a few times where its weights
are unusable; then it is rolled back."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY, GateReport, PolicyVersion, Serving, Weights
from metaclaw.errors import BackendDownError, TrainingError, WeightsLostError
from metaclaw.ports import PolicyHost
from metaclaw.store import PolicyFiles, SqlPolicies
from metaclaw.upstream import PolicySlot

log = logging.getLogger(__name__)

BY_A_PERSON: Final = "a person promoted it"
"""The note of a version that serves because a person said so."""
_MOST_LOOKS: Final = 3
_FIRST_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 300.0


@dataclass(slots=True)
class _Absent:
    """A version that could not be loaded: how often that was tried, how often its weights were found
    unusable then, and when it is tried again."""

    error: TrainingError
    tries: int = 0
    unusable: int = 0
    again_at: float = 0.0


@dataclass(eq=False, kw_only=True)
class Versions:
    """`is_same` tells whether a skill still says what it said in a generation: one that was changed
    since is absorbed no more. `may_give_up` tells whether this program may decide that weights are
    lost: another one may have them.
    """

    policies: SqlPolicies
    files: PolicyFiles
    slot: PolicySlot
    host: PolicyHost
    is_same: Callable[[SkillName, int], bool]
    may_give_up: Callable[[], bool] = lambda: True
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = anyio.Lock()
        self._before = BASE_POLICY
        self._absent: dict[int, _Absent] = {}
        self._wanted = BASE_POLICY
        self._given_up: dict[int, str] = {}
        self._unloading: set[asyncio.Task[None]] = set()

    @property
    def serving(self) -> Serving:
        """What serves now."""
        return self.slot.serving

    @property
    def has_lost_some(self) -> bool:
        """Whether a version that is to serve is not there and is to be tried now: its host could
        not be reached, or its weights were unusable, or are so since the host was started again."""
        version = self.slot.serving.version
        is_gone = version != BASE_POLICY and version not in self.host.loaded
        return is_gone or (self._wanted in self._absent and self._is_due(self._wanted))

    @property
    def troubles(self) -> list[str]:
        """Which versions do not answer though they are to, or were given up for that since the
        program started, and why.
        """
        troubles = [
            f"version {number} was given up: {reason}" for number, reason in self._given_up.items()
        ]
        if (absent := self._absent.get(self._wanted)) is not None:
            pause_s = max(0.0, absent.again_at - self.now())
            troubles.insert(
                0,
                f"version {self._wanted} is to answer and does not: {absent.error}; tried again in"
                f" {pause_s:.0f} s",
            )
        return troubles

    async def restore(self) -> None:
        """Serve what the database says, with what is absorbed still. Where that cannot be loaded the nearest version before it
        serves that can, else the untrained model."""
        async with self._lock:
            await self._settle()

    async def promote(
        self, number: int, reason: str, report: GateReport | None = None
    ) -> PolicyVersion:
        """This version serves every session from now on; `report` says what it has just passed, if
        anything. Raises RefusedError or TrainingError, and changes nothing."""
        async with self._lock:
            version = await self._loaded(number)
            await run_sync(self.policies.promote, number, reason, report)
            await self._settle()
            log.info("policy_promoted version=%d reason=%s", number, reason)
            return version

    async def rollback(self, to: int | None, reason: str) -> Serving:
        """Go back; what serves then. Raises RefusedError, and changes nothing, where there is
        nothing to go back to.
        """
        async with self._lock:
            await run_sync(self.policies.rollback, to, reason)
            await self._settle()
            log.warning(
                "policy_rolled_back serving=%d reason=%s", self.slot.serving.version, reason
            )
            return self.slot.serving

    async def tidy(self, keep: int, remove: Callable[[Weights], None]) -> None:
        """Let go of old weights, all but the newest `keep` and those that serve or may serve
        again.
        """
        for version in await run_sync(self.policies.spare, keep):
            await run_sync(remove, version.weights)
            await run_sync(self.policies.let_go, version.number)
            log.info("policy_weights_removed version=%d", version.number)

    async def local(self, version: PolicyVersion) -> Weights:
        """The weights of a version where this program can read them."""
        return await run_sync(self.files.local, version)

    def absorbed_still(self, version: PolicyVersion) -> frozenset[SkillName]:
        """The skills that a version has absorbed and that say what they said then."""
        return frozenset(
            name for name in version.absorbed if self.is_same(name, version.generation)
        )

    async def _loaded(self, number: int) -> PolicyVersion:
        version = await run_sync(self.policies.version, number)
        if version is None:
            raise TrainingError(f"there is no version {number}")
        if not version.is_kept:
            raise TrainingError(
                f"the weights of version {number} are no longer"
                f" kept{f': {version.note}' if version.note else ''}"
            )
        if number not in self.host.loaded:
            await self._load(version)
        await run_sync(self.files.keep, version)
        return version

    async def _load(self, version: PolicyVersion) -> None:
        """A host elsewhere may reach the folder where they were trained though this program cannot:
        it is asked for that one first.
        """
        weights = version.weights
        if Path(weights.adapter).exists():
            weights = await self.local(version)
        try:
            await self.host.load(version.number, weights)
        except WeightsLostError:
            copy = await self.local(version)
            if copy == weights:
                raise
            await self.host.load(version.number, copy)

    async def _settle(self) -> None:
        """Serve what the database says; what is lost for good is given up there, until the rest can
        be served.
        """
        while True:
            wanted = await run_sync(self.policies.serving)
            self._wanted = wanted.version
            await self._serve(wanted)
            absent = self._absent.get(wanted.version)
            if absent is None or absent.unusable < _MOST_LOOKS or not self.may_give_up():
                return
            reason = f"its weights are lost: {absent.error}"
            await run_sync(self.policies.rollback, None, reason)
            del self._absent[wanted.version]
            self._given_up[wanted.version] = reason
            log.error("policy_given_up version=%d reason=%s", wanted.version, reason)

    async def _serve(self, wanted: Serving) -> None:
        """Load what is wanted, flip, and let go of what is not."""
        absorbed = {}
        for number, names in wanted.absorbed.items():
            known = await run_sync(self.policies.version, number) if names else None
            absorbed[number] = frozenset() if known is None else self.absorbed_still(known)
        version = await self._nearest(wanted.version)
        before = self.slot.serving.version
        self.slot.flip(replace(wanted, version=version, absorbed=absorbed))
        if version != before:
            self._before = before
        for number in self.host.loaded - {version, self._before}:
            # Its running answers are finished first, however long they take, without holding this
            # up.
            task = asyncio.create_task(self.host.unload(number), name=f"unload version {number}")
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _nearest(self, number: int) -> int:
        """This version if it is there, else the nearest before it that is. No other is tried where
        the host cannot be reached.
        """
        while number != BASE_POLICY and not await self._is_there(number):
            absent = self._absent.get(number)
            is_waited_for = absent is not None and isinstance(absent.error, BackendDownError)
            number = BASE_POLICY if is_waited_for else await run_sync(self.policies.before, number)
        return number

    async def _is_there(self, number: int) -> bool:
        """Whether this version can answer; it is loaded if it can be, unless that was tried a
        moment ago.
        """
        if number not in self.host.loaded and not self._is_due(number):
            return False
        try:
            await self._loaded(number)
        except TrainingError as error:
            absent = self._absent.get(number)
            if absent is None or type(absent.error) is not type(error):
                log.error("policy_not_loaded version=%d reason=%s", number, error)
            absent = self._absent.setdefault(number, _Absent(error))
            absent.error = error
            absent.again_at = self.now() + min(_FIRST_PAUSE_S * 2**absent.tries, _LONGEST_PAUSE_S)
            absent.tries += 1
            absent.unusable += isinstance(error, WeightsLostError)
            return False
        self._absent.pop(number, None)
        self._given_up.pop(number, None)
        return True

    def _is_due(self, number: int) -> bool:
        """Whether a version may be tried now."""
        absent = self._absent.get(number)
        return absent is None or absent.again_at <= self.now()
