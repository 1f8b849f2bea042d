"""Which weights serve: the one place that loads versions, writes down what they are, and flips the slot.

A version is loaded before it is written down, and written down before it answers anybody; so a program that dies in between serves,
when it is back, what the database says. Going back needs no loading: the version before stays loaded beside the one that serves.

What is to serve and cannot be loaded is tried again, later each time. While its host cannot be reached it keeps its place; weights
that are found unusable again and again are given up, as if they had been rolled back: a trial nobody can take holds training up.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.ids import SkillName
from metaclaw.domain.policy import BASE_POLICY, GateReport, PolicyVersion, Serving, Weights
from metaclaw.errors import TrainingError
from metaclaw.learn.slow.missing import Missing
from metaclaw.ports import PolicyHost
from metaclaw.store import SqlPolicies
from metaclaw.upstream import PolicySlot

log = logging.getLogger(__name__)

BY_A_PERSON: Final = "a person promoted it"
"""The note of a version that serves because a person said so."""


class Versions:
    """`is_same` tells whether a skill still says what it said in a generation: one that was changed since is absorbed no more."""

    def __init__(
        self,
        *,
        policies: SqlPolicies,
        slot: PolicySlot,
        host: PolicyHost,
        canary_share: float,
        is_same: Callable[[SkillName, int], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policies = policies
        self._slot = slot
        self._host = host
        self._canary_share = canary_share
        self.is_same = is_same
        self._lock = anyio.Lock()
        self._before = BASE_POLICY
        self._missing = Missing(now)
        self._wanted_now: tuple[int, ...] = ()
        self._given_up: dict[int, str] = {}
        self._unloading: set[asyncio.Task[None]] = set()

    @property
    def serving(self) -> Serving:
        """What serves now."""
        return self._slot.serving

    @property
    def has_lost_some(self) -> bool:
        """Whether a version that is to serve is not there and is to be tried now: its host could not be reached, or its weights
        were unusable, or are so since the host was started again."""
        serving = self._slot.serving
        wanted = {number for number in (serving.version, serving.canary) if number}
        return not wanted <= self._host.loaded or any(map(self._missing.is_due, self._absent()))

    @property
    def troubles(self) -> list[str]:
        """Which versions do not answer though they are to, or were given up for that since the program started, and why."""
        absent = [f"version {number} is to answer and does not: {self._missing.told(number)}" for number in self._absent()]
        return [*absent, *(f"version {number} was given up: {reason}" for number, reason in self._given_up.items())]

    async def restore(self) -> None:
        """Serve what the database says. Where that cannot be loaded the nearest version before it serves that can, else the
        untrained model."""
        async with self._lock:
            await self._settle()

    async def refresh(self) -> None:
        """Skills have changed: what was absorbed may have to be told again."""
        await self.restore()

    async def promote(self, number: int, reason: str, report: GateReport | None = None) -> PolicyVersion:
        """This version serves everybody from now on; `report` says what it has just passed, if anything. Raises RefusedError or
        TrainingError, and changes nothing."""
        async with self._lock:
            version = await self._loaded(number)
            await run_sync(self._policies.promote, number, reason, report)
            await self._settle()
            log.info("policy_promoted version=%d reason=%s", number, reason)
            return version

    async def canary(self, number: int, report: GateReport | None, reason: str) -> None:
        """This version serves a share of the sessions from now on."""
        async with self._lock:
            await self._loaded(number)
            await run_sync(self._policies.canary, number, report, reason)
            await self._settle()
            log.info("policy_on_trial version=%d share=%g", number, self._canary_share)

    async def rollback(self, to: int | None, reason: str) -> Serving:
        """Go back; what serves then. Raises RefusedError, and changes nothing, where there is nothing to go back to."""
        async with self._lock:
            await run_sync(self._policies.rollback, to, reason)
            await self._settle()
            log.warning("policy_rolled_back serving=%d reason=%s", self._slot.serving.version, reason)
            return self._slot.serving

    async def tidy(self, keep: int, remove: Callable[[Weights], None]) -> None:
        """Let go of old weights, all but the newest `keep` and those that serve or may serve again."""
        for version in await run_sync(self._policies.spare, keep):
            await run_sync(remove, version.weights)
            await run_sync(self._policies.let_go, version.number)
            log.info("policy_weights_removed version=%d", version.number)

    def absorbed_still(self, version: PolicyVersion) -> frozenset[SkillName]:
        """The skills that a version has absorbed and that say what they said then."""
        return frozenset(name for name in version.absorbed if self.is_same(name, version.generation))

    async def _loaded(self, number: int) -> PolicyVersion:
        version = await run_sync(self._policies.version, number)
        if version is None:
            raise TrainingError(f"there is no version {number}")
        if not version.is_kept:
            raise TrainingError(f"the weights of version {number} are no longer kept{f': {version.note}' if version.note else ''}")
        if number not in self._host.loaded:
            await self._host.load(number, version.weights)
        return version

    async def _wanted(self) -> Serving:
        serving = await run_sync(self._policies.serving, self._canary_share)
        absorbed = {}
        for number, names in serving.absorbed.items():
            version = await run_sync(self._policies.version, number) if names else None
            absorbed[number] = frozenset() if version is None else self.absorbed_still(version)
        return replace(serving, absorbed=absorbed)

    async def _settle(self) -> None:
        """Serve what the database says; what is lost for good is given up there, until the rest can be served."""
        while True:
            wanted = await self._wanted()
            await self._serve(wanted)
            if wanted.canary is not None and self._missing.is_lost(wanted.canary, on_trial=True):
                await self._give_up(wanted.canary, wanted)
            elif self._missing.is_lost(wanted.version, on_trial=False):
                await self._give_up(wanted.version, wanted)
            else:
                return

    async def _give_up(self, number: int, wanted: Serving) -> None:
        reason = f"its weights are lost: {self._missing.why(number)}"
        if number == wanted.version and wanted.canary is not None:
            await run_sync(self._policies.rollback, None, f"version {number}, with which it was compared, is lost")
        await run_sync(self._policies.rollback, None, reason)
        self._missing.came(number)
        self._given_up[number] = reason
        log.error("policy_given_up version=%d reason=%s", number, reason)

    async def _serve(self, wanted: Serving) -> None:
        """Load what is wanted, flip, and let go of what is not."""
        canary = None if wanted.canary is None or not await self._is_there(wanted.canary) else wanted.canary
        serving = replace(wanted, version=await self._nearest(wanted.version), canary=canary)
        self._wanted_now = tuple(number for number in (wanted.version, wanted.canary) if number)
        before = self._slot.serving.version
        self._slot.flip(serving)
        if serving.version != before:
            self._before = before
        for number in self._host.loaded - {serving.version, serving.canary, self._before}:
            # Its running answers are finished first, however long they take; nobody waits for that.
            task = asyncio.create_task(self._host.unload(number), name=f"unload version {number}")
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    def _absent(self) -> list[int]:
        return [number for number in self._wanted_now if number in self._missing]

    async def _nearest(self, number: int) -> int:
        """This version if it is there, else the nearest before it that is. Nobody else is tried where nobody can be reached."""
        while number != BASE_POLICY and not await self._is_there(number):
            number = BASE_POLICY if self._missing.is_waited_for(number) else await run_sync(self._policies.before, number)
        return number

    async def _is_there(self, number: int) -> bool:
        """Whether this version can answer; it is loaded if it can be, unless that was tried a moment ago."""
        if number not in self._host.loaded and not self._missing.is_due(number):
            return False
        try:
            await self._loaded(number)
        except TrainingError as error:
            if self._missing.failed(number, error):
                log.error("policy_not_loaded version=%d reason=%s", number, error)
            return False
        self._missing.came(number)
        self._given_up.pop(number, None)
        return True
