"""A training service in this process: real learning on the toy's softmax policy, with a real
service's habits and faults.

`Classroom` is the service's own side (models, states, published weights); `PracticeService` speaks
to it as an SDK's adapter would. A classroom that averages does what SkyRL's JAX engine does with
losses; one that sums does what Tinker does."""

import copy
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Adam, Datum, Loss, LossKind
from metaclaw.errors import TrainingError
from metaclaw.training.backends.service import (
    DrawnSequence,
    Objective,
    Reduction,
    Row,
    SampleRequest,
    ServiceSampler,
    Trainee,
)
from tests.support.softmax import END, Softmax
from tests.support.softmax import Sampler as SoftmaxSampler


@dataclass
class Classroom:
    """All that the service knows."""

    reduction: Reduction = Reduction.SUM
    models: dict[str, Softmax] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    states: dict[str, Softmax] = field(default_factory=dict)
    published: dict[str, Softmax] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    fails_at: str | None = None
    """The next call of this kind fails, once."""

    def create(self, state: str | None = None) -> str:
        self._note("create" if state is None else "restore")
        name = f"model-{len(self.rows) + 1}"
        if state is not None and state not in self.states:
            raise TrainingError(f"no state {state}")
        self.models[name] = Softmax() if state is None else copy.deepcopy(self.states[state])
        self.rows[name] = 0
        return name

    def teach(self, model: str, rows: Sequence[Row], objective: Objective) -> list[list[float]]:
        self._note("teach")
        policy = self.models[model]
        scores = [list(policy.score(row.inputs[:1], row.targets)) for row in rows]
        for row in rows:
            policy.learn([_datum(row, self.reduction)], _loss(objective))
        self.rows[model] += len(rows)
        return scores

    def step(self, model: str, adam: Adam) -> float:
        self._note("step")
        rows, self.rows[model] = self.rows[model], 0
        return self.models[model].step(adam, rows if self.reduction is Reduction.MEAN else 1.0)

    def save(self, model: str, name: str) -> str:
        self._note("save")
        path = f"state://{model}/{name}"
        self.states[path] = copy.deepcopy(self.models[model])
        return path

    def publish(self, model: str, name: str) -> str:
        self._note("publish")
        path = f"weights://{model}/{name}"
        self.published[path] = copy.deepcopy(self.models[model])
        return path

    def sample(self, path: str | None, request: SampleRequest) -> list[DrawnSequence]:
        self._note("sample")
        sampler = SoftmaxSampler(self._policy(path), request.temperature)
        answers = [
            sampler.draw(
                request.prompt, request.max_tokens, random.Random((request.seed or 0) + number)
            )
            for number in range(request.count)
        ]
        return [
            DrawnSequence(
                tuple(token for token, _ in drawn),
                tuple(logprob for _, logprob in drawn),
                drawn[-1][0] == END,
            )
            for drawn in answers
        ]

    def score(self, path: str | None, tokens: Sequence[int]) -> list[float]:
        self._note("score")
        return list(self._policy(path).score(tokens[:1], tokens[1:]))

    def unload(self, model: str) -> None:
        self._note("unload")
        del self.models[model]

    def _policy(self, path: str | None) -> Softmax:
        if path is None:
            return Softmax()
        if path not in self.published:
            raise TrainingError(f"no weights {path}")
        return self.published[path]

    def _note(self, call: str) -> None:
        self.log.append(call)
        if call == self.fails_at:
            self.fails_at = None
            raise TrainingError(f"{call} fails on purpose")


class PracticeService:
    """`service.Service` on a classroom."""

    def __init__(self, room: Classroom, name: str = "practice") -> None:
        self.name = name
        self.room = room

    async def create(self, rank: int, seed: int) -> "PracticeTrainee":
        return PracticeTrainee(self.room, self.room.create())

    async def restore(self, state: str) -> "PracticeTrainee":
        return PracticeTrainee(self.room, self.room.create(state))

    async def present(self, trainee: Trainee, adapter: str) -> ServiceSampler:
        return PracticeSampler(self.room, adapter)

    async def kept(self, weights: Weights) -> ServiceSampler:
        return PracticeSampler(self.room, weights.adapter)

    async def base(self) -> ServiceSampler:
        return PracticeSampler(self.room, None)

    async def aclose(self) -> None:
        return


class PracticeTrainee:
    """A model in the classroom. What is sent is done at once; its outcome is told when it is
    awaited.
    """

    def __init__(self, room: Classroom, model: str) -> None:
        self._room = room
        self._model = model
        self.reduction = room.reduction

    async def teach(
        self, rows: Sequence[Row], objective: Objective
    ) -> Awaitable[list[list[float]]]:
        scores = self._room.teach(self._model, rows, objective)

        async def outcome() -> list[list[float]]:
            return scores

        return outcome()

    async def step(self, adam: Adam) -> Awaitable[float | None]:
        norm = self._room.step(self._model, adam)

        async def outcome() -> float | None:
            return norm

        return outcome()

    async def save(self, name: str, *, for_good: bool) -> str:
        return self._room.save(self._model, name)

    async def publish(self, name: str, *, for_good: bool) -> str:
        return self._room.publish(self._model, name)

    async def aclose(self) -> None:
        self._room.unload(self._model)


class PracticeSampler:
    """Published weights, or the untrained ones."""

    is_raw = True

    def __init__(self, room: Classroom, path: str | None) -> None:
        self._room = room
        self._path = path
        self.is_closed = False

    async def sample(self, request: SampleRequest) -> list[DrawnSequence]:
        return self._room.sample(self._path, request)

    async def score(self, tokens: Sequence[int]) -> list[float]:
        return self._room.score(self._path, tokens)

    async def aclose(self) -> None:
        self.is_closed = True


def _datum(row: Row, reduction: Reduction) -> Datum:
    """A row as data whose prompt is its first token: what carries no advantage pushes nothing."""
    share = 1.0 / len(row.targets) if reduction is Reduction.MEAN else 1.0
    return Datum(
        TurnId("row"),
        row.inputs[:1],
        row.targets,
        tuple(value * share for value in row.advantages),
        row.logprobs,
    )


def _loss(objective: Objective) -> Loss:
    if objective.name == "cispo":  # with its ratio clipped to exactly one
        return Loss(LossKind.CROSS_ENTROPY)
    config = objective.config or {}
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    return Loss(LossKind(objective.name), clip_low=1.0 - low, clip_high=high - 1.0)
