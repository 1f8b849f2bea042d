"""The samplers of a training service that are in use: of the untrained model, of the run's present weights, of kept ones."""

import asyncio

from metaclaw.domain.policy import Weights
from metaclaw.train.backends.aside import quietly
from metaclaw.train.backends.service import Sampler, Service, Trainee

_MOST_KEPT = 4
"""Some services hold a place for each; serving and canary, and the two of a gate."""


class Samplers:
    """Made when they are first asked for, and remembered."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._base: Sampler | None = None
        self._present: Sampler | None = None
        self._kept: dict[str, Sampler] = {}
        self._lock = asyncio.Lock()

    async def base(self) -> Sampler:
        """Of the untrained model."""
        if self._base is not None:
            return self._base
        async with self._lock:
            if self._base is None:
                self._base = await self._service.base()
            return self._base

    async def present(self, trainee: Trainee, name: str) -> Sampler:
        """Of what the trainee is now, published under this name if it is not yet."""
        async with self._lock:
            if self._present is None:
                self._present = await self._service.present(trainee, await trainee.publish(name, for_good=False))
            return self._present

    async def kept(self, weights: Weights) -> Sampler:
        """Of kept weights; the one that was asked for longest ago gives way."""
        # An answer does not wait for samplers that are being made for others.
        if (ready := self._again(weights)) is not None:
            return ready
        async with self._lock:
            if (ready := self._again(weights)) is not None:
                return ready
            sampler = self._kept[weights.adapter] = await self._service.kept(weights)
            if len(self._kept) > _MOST_KEPT:
                await quietly(self._kept.pop(next(iter(self._kept))).aclose())
            return sampler

    def forget_present(self) -> None:
        """The trainee has changed."""
        self._present = None

    def forget(self, sampler: Sampler) -> bool:
        """One that failed: a server that was started again does not know it any more. Whether it was ours to give back."""
        self._base = None if sampler is self._base else self._base
        self._present = None if sampler is self._present else self._present
        failed = [adapter for adapter, kept in self._kept.items() if kept is sampler]
        for adapter in failed:
            del self._kept[adapter]
        return bool(failed)

    async def release(self, weights: Weights) -> None:
        """Nobody asks these weights any more."""
        async with self._lock:
            sampler = self._kept.pop(weights.adapter, None)
            if sampler is not None:
                await quietly(sampler.aclose())

    async def aclose(self) -> None:
        """Give all of them back."""
        async with self._lock:
            kept, self._kept = self._kept, {}
            self._base = self._present = None
        for sampler in kept.values():
            await quietly(sampler.aclose())

    def _again(self, weights: Weights) -> Sampler | None:
        sampler = self._kept.pop(weights.adapter, None)
        if sampler is not None:
            self._kept[weights.adapter] = sampler
        return sampler
