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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

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
from metaclaw.durable_files import BY_UMASK, replace_file
from metaclaw.errors import BackendDownError, TrainingError
from metaclaw.ports import Abilities, RunPlan
from metaclaw.training.backends.blocking_calls import gather_all, ignore_failure
from metaclaw.training.backends.service import (
    DrawnSequence,
    SampleRequest,
    Service,
    ServiceSampler,
    Trainee,
    check_data,
    send_step,
)

log = logging.getLogger(__name__)

Pair: TypeAlias = tuple[Sequence[int], Sequence[int]]
_ROUNDING = 1e-4
"""How far above zero a log-probability may lie and still be zero, as half precision rounds it."""
_MOST_KEPT = 4
"""Some services hold a place for each; serving and canary, and the two of a gate."""
_MARK_FILE = "service.json"


@dataclass(frozen=True, slots=True)
class RunMark:
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
        mark = await asyncio.to_thread(_read_mark, run.folder)
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
        async with self._trusting(await self._sampler(weights)) as sampler:
            return await self._draw(sampler, prompts, drawing)

    async def sample_base(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        """The same from the untrained model."""
        async with self._trusting(await self._samplers.base()) as sampler:
            return await self._draw(sampler, prompts, drawing)

    async def answer(self, request: SampleRequest, weights: Weights | None) -> Rollout:
        """One rollout with all of a caller's options, from kept weights, or from the untrained
        model.
        """
        found = await (
            self._samplers.base() if weights is None else self._samplers.kept(self._ours(weights))
        )
        async with self._trusting(found) as sampler:
            return (await self._rollouts(sampler, request))[0]

    async def score(
        self, pairs: Sequence[Pair], weights: Weights | None = None
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each pair's second part after its first."""
        async with self._trusting(await self._sampler(weights)) as sampler:
            return await _score_all(sampler, pairs)

    async def score_base(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        """The same under the untrained model."""
        async with self._trusting(await self._samplers.base()) as sampler:
            return await _score_all(sampler, pairs)

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
        await self._samplers.release(weights)

    async def release(self, weights: Weights) -> None:
        """These kept weights are not served any more; give back what their sampler holds on the
        service.
        """
        await self._samplers.release(weights)

    async def close(self, *, discard: bool) -> None:
        """End the run; with `discard` its mark goes, too, and its saved steps expire by
        themselves.
        """
        run = self._run
        await self._leave()
        if discard and run is not None:
            await asyncio.to_thread(_remove_mark, run.plan.folder)

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
        await asyncio.to_thread(
            write_mark, run.plan.folder, RunMark(self.name, run.plan.name, run.steps + 1, state)
        )
        run.steps += 1
        run.pieces.clear()
        return StepStats(run.steps, grad_norm)

    @asynccontextmanager
    async def _trusting(self, sampler: ServiceSampler) -> AsyncIterator[ServiceSampler]:
        """Inside, a sampler is asked; one that fails is not asked again."""
        try:
            yield sampler
        except TrainingError:
            if self._samplers.forget(sampler):
                self._later(sampler.aclose(), "leaving a sampler")
            raise

    async def _draw(
        self, sampler: ServiceSampler, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        return await gather_all(
            [
                self._rollouts(
                    sampler,
                    SampleRequest(
                        tuple(prompt),
                        drawing.count,
                        drawing.max_tokens,
                        drawing.temperature,
                        _seed(drawing.seed, number),
                    ),
                )
                for number, prompt in enumerate(prompts)
            ]
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
        return [self._rollout(each) for each in drawn]

    def _rollout(self, drawn: DrawnSequence) -> Rollout:
        logprobs = tuple(
            0.0 if 0.0 < logprob <= _ROUNDING else logprob for logprob in drawn.logprobs
        )
        said = (
            drawn.tokens[:-1]
            if drawn.tokens and drawn.tokens[-1] in self._end_ids
            else drawn.tokens
        )
        try:
            return Rollout(drawn.tokens, logprobs, self._decode(said), drawn.is_whole)
        except ValueError as error:
            raise TrainingError(
                f"{self.name} drew something that is no rollout: {error}"
            ) from error

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
    """Made when they are first asked for, and remembered."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._base: ServiceSampler | None = None
        self._present: ServiceSampler | None = None
        self._kept: dict[str, ServiceSampler] = {}
        self._lock = asyncio.Lock()

    async def base(self) -> ServiceSampler:
        """Of the untrained model."""
        if self._base is not None:
            return self._base
        async with self._lock:
            if self._base is None:
                self._base = await self._service.base()
            return self._base

    async def present(self, trainee: Trainee, name: str) -> ServiceSampler:
        """Of what the trainee is now, published under this name if it is not yet."""
        async with self._lock:
            if self._present is None:
                self._present = await self._service.present(
                    trainee, await trainee.publish(name, for_good=False)
                )
            return self._present

    async def kept(self, weights: Weights) -> ServiceSampler:
        """Of kept weights; the one that was asked for longest ago gives way."""
        # An answer does not wait for samplers that are being made for others.
        if (ready := self._again(weights)) is not None:
            return ready
        async with self._lock:
            if (ready := self._again(weights)) is not None:
                return ready
            sampler = self._kept[weights.adapter] = await self._open_kept(weights)
            if len(self._kept) > _MOST_KEPT:
                await ignore_failure(self._kept.pop(next(iter(self._kept))).aclose())
            return sampler

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
            await ignore_failure(self._kept.pop(next(iter(self._kept))).aclose())
            return await self._service.kept(weights)

    def forget_present(self) -> None:
        """The trainee has changed."""
        self._present = None

    def forget(self, sampler: ServiceSampler) -> bool:
        """One that failed: a server that was started again does not know it any more. Whether it
        was ours to give back.
        """
        self._base = None if sampler is self._base else self._base
        self._present = None if sampler is self._present else self._present
        failed = [adapter for adapter, kept in self._kept.items() if kept is sampler]
        for adapter in failed:
            del self._kept[adapter]
        return bool(failed)

    async def release(self, weights: Weights) -> None:
        """Close the sampler of these weights."""
        async with self._lock:
            sampler = self._kept.pop(weights.adapter, None)
            if sampler is not None:
                await ignore_failure(sampler.aclose())

    async def aclose(self) -> None:
        """Give all of them back."""
        async with self._lock:
            kept, self._kept = self._kept, {}
            self._base = self._present = None
        for sampler in kept.values():
            await ignore_failure(sampler.aclose())

    def _again(self, weights: Weights) -> ServiceSampler | None:
        sampler = self._kept.pop(weights.adapter, None)
        if sampler is not None:
            self._kept[weights.adapter] = sampler
        return sampler


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


def _seed(seed: int, number: int) -> int:
    """One prompt's seed. 30 bits, because services add the number of the rollout to it in 32."""
    return int.from_bytes(blake2b(f"{seed}\0{number}".encode(), digest_size=4).digest()) >> 2


def _unique(label: str) -> str:
    """A name no service has seen: saving under one name twice is an error on some of them."""
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', label)[:200]}-{secrets.token_hex(4)}"


def _read_mark(folder: Path) -> RunMark | None:
    """The mark of the run in this folder, or None if it has none. Raises TrainingError if it cannot
    be read.
    """
    path = folder / _MARK_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunMark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error


def write_mark(folder: Path, mark: RunMark) -> None:
    """Replace the mark; it is on disk when this returns. Raises TrainingError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _MARK_FILE, msgspec.json.encode(asdict(mark)), mode=BY_UMASK)
    except OSError as error:
        raise TrainingError(f"cannot write {folder / _MARK_FILE}: {error}") from error


def _remove_mark(folder: Path) -> None:
    """Forget the run. A folder without a mark is no error."""
    try:
        (folder / _MARK_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise TrainingError(f"cannot remove {folder / _MARK_FILE}: {error}") from error
