"""A run's rollouts, drawn where the weights are served: the trainer trains, the server draws, and the
trainer scores what was drawn with its own weights.

Each step's weights are loaded under a name of their own (`policy-run-000012-step-003`), the step's
before are unloaded. Where the server cannot draw, the trainer does until the next step; where its
log-probabilities are too far from the trainer's, to the end of the run."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.engine import TrainingPause
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan, TrainingBackend
from metaclaw.training.backends.calls import gather_all, ignore_failure
from metaclaw.training.backends.service import SampleRequest, requests_for
from metaclaw.training.drawn_elsewhere import MOST_KL, engine_gap
from metaclaw.training.hosts.adapter_server import PREFIX
from metaclaw.training.journal import Journal

log = logging.getLogger(__name__)

_REFUSED: Final = "server-refused"


class RolloutServer(Protocol):
    """A server that loads adapters by name and draws from them. All may raise TrainingError."""

    @property
    def name(self) -> str: ...
    async def load(self, name: str, folder: Path) -> None: ...
    async def unload(self, name: str) -> None: ...
    async def rollouts(self, name: str, request: SampleRequest) -> list[Rollout]: ...


class PausedServer:
    """A server that draws nothing for training while requests are answered: what was begun is
    cancelled, and drawn anew afterwards.
    """

    def __init__(self, server: RolloutServer, pause: TrainingPause) -> None:
        self.name = server.name
        self.load, self.unload = server.load, server.unload
        self._server = server
        self._may_draw = asyncio.Event()
        self._may_draw.set()
        self._running = set[asyncio.Task[list[Rollout]]]()
        pause.attach(self)

    def stop(self) -> None:
        """Cancel what is being drawn."""
        self._may_draw.clear()
        for task in self._running:
            task.cancel()

    def go(self) -> None:
        """Draw again."""
        self._may_draw.set()

    async def rollouts(self, name: str, request: SampleRequest) -> list[Rollout]:
        while True:
            await self._may_draw.wait()
            task = asyncio.create_task(self._server.rollouts(name, request))
            self._running.add(task)
            try:
                await asyncio.wait([task])
                if not task.cancelled():
                    return task.result()
            finally:
                task.cancel()
                self._running.discard(task)


@dataclass(eq=False, kw_only=True)
class RunSampler:
    """Draws from the weights of an open run. Without a server the trainer does. `notice` says that
    it does though there is one, and why."""

    plan: RunPlan
    backend: TrainingBackend
    journal: Journal
    server: RolloutServer | None = None

    def __post_init__(self) -> None:
        self.notice: str | None = None
        self._loaded: tuple[str, Weights] | None = None
        self._failed_at: int | None = None

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, step: int
    ) -> list[list[Rollout]]:
        """Rollouts of the weights after so many steps, with the trainer's log-probabilities."""
        if self.server is None or not await self._may_ask(self.server, step):
            return await self.backend.sample(prompts, drawing)
        try:
            name = await self._load(self.server, step)
            drawn = await gather_all(
                [self.server.rollouts(name, asked) for asked in requests_for(prompts, drawing)]
            )
        except TrainingError as error:
            self._failed_at = step
            self.notice = f"the trainer draws until the next step: {error}"
            log.warning("server_did_not_draw run=%s reason=%s", self.plan.name, error)
            return await self.backend.sample(prompts, drawing)
        scored = await self._scored(prompts, drawn)
        gap = engine_gap(one for group in scored for one in group)
        if gap is None or gap.is_small:
            return scored
        reason = (
            f"the log-probabilities of {self.server.name} are too far from the trainer's ({gap};"
            f" at most {MOST_KL:g}): it runs other weights or a coarse quantisation"
        )
        await self.journal.keep(_REFUSED, reason)
        log.error("server_refused run=%s reason=%s", self.plan.name, reason)
        await self.aclose()
        return await self.sample(prompts, drawing, step)

    async def aclose(self) -> None:
        """Unload the last step's weights."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self.server is not None:
            name, weights = loaded
            await ignore_failure(self.server.unload(name))
            await ignore_failure(self.backend.discard(weights))

    async def _may_ask(self, server: RolloutServer, step: int) -> bool:
        reason = await self.journal.find(_REFUSED, str)
        if reason is not None:
            self.notice = f"the trainer draws for this run: {reason}"
        elif self._failed_at != step:
            self.notice = None
        return self.notice is None

    async def _load(self, server: RolloutServer, step: int) -> str:
        name = f"{PREFIX}run-{self.plan.folder.name}-step-{step:03d}"
        if self._loaded is None or self._loaded[0] != name:
            weights = await self.backend.keep(name)
            await server.load(name, Path(weights.adapter))
            await self.aclose()
            self._loaded = name, weights
            await self._remove_leftovers(server, weights)
        return name

    async def _remove_leftovers(self, server: RolloutServer, weights: Weights) -> None:
        """What a program that was killed left behind."""
        current = Path(weights.adapter)
        for folder in current.parent.glob(f"{PREFIX}run-*"):
            if folder != current:
                await ignore_failure(server.unload(folder.name))
                await self.backend.discard(replace(weights, adapter=str(folder)))

    async def _scored(
        self, prompts: Sequence[Sequence[int]], drawn: Sequence[Sequence[Rollout]]
    ) -> list[list[Rollout]]:
        pairs = [
            (prompt, one.tokens_T)
            for prompt, group in zip(prompts, drawn, strict=True)
            for one in group
        ]
        scores = iter(await self.backend.score(pairs))
        return [
            [
                replace(one, logprobs_T=next(scores), drawn_logprobs_T=one.logprobs_T)
                for one in group
            ]
            for group in drawn
        ]
