"""Training on a service behind a network (ports.TrainingBackend): the rules of a run, for any
service.

Pieces are checked and held when they are accumulated, and sent, scaled, when they are applied: only
then it is known what to divide by. After each step the state is saved and marked in the run's
folder. A run goes on from its last mark; what a cancelled or failed step had sent is abandoned with
the client it was sent through."""

import asyncio
import logging
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import msgspec

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import (
    Adam,
    Datum,
    Drawing,
    Loss,
    PieceStats,
    Rollout,
    RunProgress,
    StepStats,
)
from metaclaw.errors import BackendDownError, TrainingError
from metaclaw.ports import Abilities, RunPlan
from metaclaw.training.backends.calls import gather_all, ignore_failure
from metaclaw.training.backends.service import (
    DrawnSequence,
    SampleRequest,
    Service,
    ServiceSampler,
    Trainee,
    as_rollout,
    check_data,
    requests_for,
    send_step,
)
from metaclaw.training.journal import Journal

log = logging.getLogger(__name__)

T = TypeVar("T")
Pair: TypeAlias = tuple[Sequence[int], Sequence[int]]
_MOST_KEPT = 4
"""Some services hold a place for each; serving and canary, and the two of a gate."""
_MARK = "service"
_BASE, _PRESENT = "the untrained model", "the run"


class RunMark(msgspec.Struct, frozen=True):
    """The last step that is durable: the service's name for the state after it, optimiser
    included.
    """

    backend: str
    run: str
    steps: int
    state: str


@dataclass(slots=True)
class _Run:
    plan: RunPlan
    trainee: Trainee
    steps: int
    pieces: list[tuple[tuple[Datum, ...], Loss]] = field(default_factory=list)


class RemoteBackend:
    """A training backend. `decode` gives the text of some tokens; `end_ids` are those that end an
    answer.
    """

    def __init__(
        self, service: Service, decode: Callable[[Sequence[int]], str], *, end_ids: Collection[int]
    ) -> None:
        self._service = service
        self._decode = decode
        self._end_ids = frozenset(end_ids)
        self._samplers = Samplers(service)
        self._run: _Run | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """The service's name."""
        return self._service.name

    @property
    def abilities(self) -> Abilities:
        """No standing still in the middle of what was sent."""
        return Abilities(yields=False, has_own_processor=True)

    async def open(self, run: RunPlan) -> RunProgress:
        """Begin this run, or go on from its last durable step; pieces accumulated towards the next
        are not kept.
        """
        await self._leave()
        mark = await Journal(run.folder).find(_MARK, RunMark)
        if mark is not None and (mark.backend, mark.run) == (self.name, run.name):
            self._run = _Run(run, await self._service.restore(mark.state), mark.steps)
        elif run.start is not None:
            self._run = _Run(run, await self._service.restore(self._training_of(run.start)), 0)
        else:
            self._run = _Run(run, await self._service.create(run.rank, run.seed), 0)
        log.info(
            "training run open backend=%s run=%s steps=%d", self.name, run.name, self._run.steps
        )
        return RunProgress(steps=self._run.steps)

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None = None
    ) -> list[list[Rollout]]:
        """For each prompt `drawing.count` rollouts."""
        return await self._ask(
            self._sampler(weights), lambda sampler: self._draw(sampler, prompts, drawing)
        )

    async def sample_base(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        """The same from the untrained model."""
        return await self._ask(
            self._samplers.base(), lambda sampler: self._draw(sampler, prompts, drawing)
        )

    async def answer(self, request: SampleRequest, weights: Weights | None) -> Rollout:
        """One rollout with all of a caller's options, from kept weights, or from the untrained
        model.
        """
        found = self._samplers.base() if weights is None else self._sampler(weights)
        return (await self._ask(found, lambda sampler: self._rollouts(sampler, request)))[0]

    async def score(
        self, pairs: Sequence[Pair], weights: Weights | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each pair's second part after its first."""
        return await self._ask(self._sampler(weights), lambda sampler: _score_all(sampler, pairs))

    async def score_base(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        """The same under the untrained model."""
        return await self._ask(self._samplers.base(), lambda sampler: _score_all(sampler, pairs))

    async def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Check one piece and hold it for `apply`, which alone knows what to divide by."""
        run = self._open_run()
        check_data(data, loss)
        run.pieces.append((tuple(data), loss))
        return PieceStats(sum(len(datum.tokens_T) for datum in data))

    async def apply(self, adam: Adam, normaliser: float) -> StepStats:
        """Send what was accumulated, then the optimiser step; durable when it returns. If it does
        not happen the run is left, and `open` goes on from the step before."""
        run = self._open_run()
        if not run.pieces or not (math.isfinite(normaliser) and normaliser > 0.0):
            raise TrainingError(f"cannot apply {len(run.pieces)} pieces divided by {normaliser}")
        is_done = False
        try:
            stats = await self._step(run, adam, normaliser)
            is_done = True
        finally:
            # What the client holds now is not known, nor can what was sent be called back.
            if not is_done and self._run is run:
                self._run = None
                self._leave_later(run.trainee)
        return stats

    async def keep(self, label: str) -> Weights:
        """The present weights, for good: a state to go on from and weights for a sampler."""
        run = self._open_run()
        name = _unique(label)
        training = await run.trainee.save(name, for_good=True)
        adapter = await run.trainee.publish(name, for_good=True)
        return Weights(self.name, adapter, training)

    async def shrink(self, weights: Weights, scale: float, label: str) -> Weights:
        """No service does this; `abilities` says so."""
        raise TrainingError(f"{self.name} cannot make the change of weights smaller")

    async def discard(self, weights: Weights) -> None:
        """Give back what their sampler holds; the service removes saved weights by its own
        rules.
        """
        await self._samplers.release(weights.adapter)

    async def close(self, *, discard: bool) -> None:
        """End the run; with `discard` its mark goes, too, and its saved steps expire by
        themselves.
        """
        run = self._run
        await self._leave()
        if discard and run is not None:
            await Journal(run.plan.folder).forget(_MARK)

    async def aclose(self) -> None:
        """Let go of everything."""
        await self._leave()
        await asyncio.gather(*self._leaving)
        await self._samplers.aclose()
        await ignore_failure(self._service.aclose())

    async def _step(self, run: _Run, adam: Adam, normaliser: float) -> StepStats:
        grad_norm = await send_step(run.trainee, run.pieces, adam, normaliser)
        self._samplers.forget_present()
        state = await run.trainee.save(
            _unique(f"{run.plan.name}-{run.steps + 1:06d}"), for_good=False
        )
        mark = RunMark(self.name, run.plan.name, run.steps + 1, state)
        await Journal(run.plan.folder).keep(_MARK, mark)
        run.steps += 1
        run.pieces.clear()
        return StepStats(run.steps, grad_norm)

    async def _ask(
        self, found: Awaitable[ServiceSampler], ask: Callable[[ServiceSampler], Awaitable[T]]
    ) -> T:
        """What a sampler answers; one that fails is not asked again."""
        sampler = await found
        try:
            return await ask(sampler)
        except TrainingError:
            self._samplers.forget(sampler)
            self._later(sampler.aclose(), "leaving a sampler")
            raise

    async def _draw(
        self, sampler: ServiceSampler, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        return await gather_all(
            [self._rollouts(sampler, request) for request in requests_for(prompts, drawing)]
        )

    async def _rollouts(self, sampler: ServiceSampler, request: SampleRequest) -> list[Rollout]:
        drawn = await sampler.sample(request)
        if len(drawn) != request.count:
            raise TrainingError(
                f"{self.name} drew {len(drawn)} rollouts where {request.count} were asked for"
            )
        if request.temperature != 1.0 and not sampler.is_raw:
            scores = await gather_all(
                [_score(sampler, request.prompt, each.tokens) for each in drawn]
            )
            drawn = [
                DrawnSequence(each.tokens, score, each.is_whole)
                for each, score in zip(drawn, scores, strict=True)
            ]
        return [as_rollout(each, self._decode, self._end_ids) for each in drawn]

    async def _sampler(self, weights: Weights | None) -> ServiceSampler:
        if weights is not None:
            return await self._samplers.kept(self._ours(weights))
        run = self._open_run()
        return await self._samplers.present(
            run.trainee, _unique(f"{run.plan.name}-{run.steps:06d}")
        )

    def _ours(self, weights: Weights) -> Weights:
        if weights.backend != self.name:
            raise TrainingError(
                f"weights of backend {weights.backend} cannot be used by {self.name}"
            )
        return weights

    def _training_of(self, weights: Weights) -> str:
        if self._ours(weights).training is None:
            raise TrainingError(
                f"the weights {weights.adapter} hold nothing that training could go on from"
            )
        return weights.training or ""

    def _open_run(self) -> _Run:
        if self._run is None:
            raise TrainingError(f"no run is open on {self.name}")
        return self._run

    async def _leave(self) -> None:
        run, self._run = self._run, None
        self._samplers.forget_present()
        if run is not None:
            await ignore_failure(run.trainee.aclose())

    def _leave_later(self, trainee: Trainee) -> None:
        self._samplers.forget_present()
        self._later(trainee.aclose(), "leaving a training run")

    def _later(self, leaving: Awaitable[None], name: str) -> None:
        task = asyncio.create_task(ignore_failure(leaving), name=name)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class Samplers:
    """Made when they are first asked for, and remembered by the weights they draw from."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: dict[str, ServiceSampler] = {}
        self._lock = asyncio.Lock()

    async def base(self) -> ServiceSampler:
        """Of the untrained model."""
        return await self._get(_BASE, self._service.base)

    async def present(self, trainee: Trainee, name: str) -> ServiceSampler:
        """Of what the trainee is now, published under this name if it is not yet."""

        async def publish() -> ServiceSampler:
            return await self._service.present(trainee, await trainee.publish(name, for_good=False))

        return await self._get(_PRESENT, publish)

    async def kept(self, weights: Weights) -> ServiceSampler:
        """Of kept weights; the one that was asked for longest ago gives way."""
        sampler = await self._get(weights.adapter, lambda: self._open_kept(weights))
        if weights.adapter in self._open:
            self._open[weights.adapter] = self._open.pop(weights.adapter)
        if len(self._kept) > _MOST_KEPT:
            await self.release(self._kept[0])
        return sampler

    async def _get(
        self, name: str, make: Callable[[], Awaitable[ServiceSampler]]
    ) -> ServiceSampler:
        # An answer does not wait for samplers that are being made for others.
        if name not in self._open:
            async with self._lock:
                if name not in self._open:
                    self._open[name] = await make()
        return self._open[name]

    async def _open_kept(self, weights: Weights) -> ServiceSampler:
        """A sampler of kept weights. A service that has room for few models refuses it, so the
        sampler that was asked for longest ago gives way, and the service is asked once more."""
        try:
            return await self._service.kept(weights)
        except BackendDownError:
            raise
        except TrainingError:
            if not self._kept:
                raise
            await self.release(self._kept[0])
            return await self._service.kept(weights)

    @property
    def _kept(self) -> list[str]:
        return [name for name in self._open if name not in (_BASE, _PRESENT)]

    def forget_present(self) -> None:
        """The trainee has changed."""
        self._open.pop(_PRESENT, None)

    def forget(self, sampler: ServiceSampler) -> None:
        """One that failed: a server that was started again does not know it any more."""
        self._open = {name: one for name, one in self._open.items() if one is not sampler}

    async def release(self, name: str) -> None:
        """Close the sampler of these weights."""
        sampler = self._open.pop(name, None)
        if sampler is not None:
            await ignore_failure(sampler.aclose())

    async def aclose(self) -> None:
        """Give all of them back."""
        for name in list(self._open):
            await self.release(name)


async def _score_all(sampler: ServiceSampler, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
    return await gather_all(
        [_score(sampler, tuple(prompt), tuple(tokens)) for prompt, tokens in pairs]
    )


async def _score(
    sampler: ServiceSampler, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> tuple[float, ...]:
    if not prompt or not tokens:
        raise TrainingError("only tokens that follow others can be scored")
    scores = await sampler.score(prompt + tokens)
    expected = len(prompt) + len(tokens) - 1
    if len(scores) != expected or not all(map(math.isfinite, scores)):
        raise TrainingError(
            f"{len(scores)} scores came back for {expected} tokens, or one of them is not a finite"
            " number"
        )
    return tuple(scores[-len(tokens) :])


def _unique(label: str) -> str:
    """A name no service has seen: saving under one name twice is an error on some of them."""
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', label)[:200]}-{secrets.token_hex(4)}"
