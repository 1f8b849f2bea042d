"""The watch over a run: whether its weights go where nobody wanted. Pure: given each step's figures, it says stop, or nothing.

Each figure x is smoothed, m ← (1-β)·m + β·x, and compared with its mean b over the run's first steps:

    entropy    m < low·b  or  m > high·b      collapse, or noise
    length     m < low·b  or  m > high·b      answers shrink to nothing, or grow without end
    ratio      |m - b| > ratio_most           what is taught is no longer what is drawn
    KL         m - b > kl_most                too far, too fast; the whole distance to the base is the gate's matter

A figure that is not a finite number stops the run at once. One that a backend does not tell (None) is not judged. The caller stops
a drifting run and goes back to the weights it began with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from metaclaw.domain.batch import PieceStats
from metaclaw.domain.chat import Json
from metaclaw.errors import TrainingError
from metaclaw.train.scored import Harvest


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one step looked like: means over its drawn tokens, and the mean length of a rollout."""

    entropy: float | None = None
    kl: float | None = None
    length: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """How far a run may go. `beginning` is how many steps its beginning is; `smoothing` is β."""

    beginning: int = 3
    smoothing: float = 0.3
    entropy: tuple[float, float] = (0.2, 3.0)
    length: tuple[float, float] = (0.25, 3.0)
    ratio_most: float = 0.5
    kl_most: float = 1.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Why a run must stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Course:
    """One figure over time: how often it was told, its mean over the beginning, and where it is now."""

    seen: int
    begun: float
    now: float


@dataclass(frozen=True, slots=True)
class DriftWatch:
    """What a run has looked like so far. It never changes: `see` gives the next one, to be kept with the step."""

    limits: DriftLimits = field(default_factory=DriftLimits)
    courses: Mapping[str, _Course] = field(default_factory=dict)

    def see(self, figures: StepFigures) -> tuple["DriftWatch", Drift | None]:
        """One more step."""
        told = {one.name: value for one in fields(figures) if (value := getattr(figures, one.name)) is not None}
        for name, value in told.items():
            if not math.isfinite(value):
                return self, Drift(f"{name} is not a finite number")
        courses = dict(self.courses) | {name: self._next(self.courses.get(name), value) for name, value in told.items()}
        drifts = (self._drift(name, courses[name]) for name in told)
        return DriftWatch(self.limits, courses), next((drift for drift in drifts if drift is not None), None)

    def state(self) -> dict[str, Json]:
        """What was seen, as JSON."""
        return {name: [course.seen, course.begun, course.now] for name, course in self.courses.items()}

    @staticmethod
    def of(state: Mapping[str, Json], limits: DriftLimits | None = None) -> "DriftWatch":
        """What was seen before. Raises TrainingError for something that is no such state."""
        return DriftWatch(limits or DriftLimits(), {name: _course(name, kept) for name, kept in state.items()})

    def _next(self, course: _Course | None, value: float) -> _Course:
        if course is None:
            return _Course(1, value, value)
        seen, beta = course.seen + 1, self.limits.smoothing
        begun = course.begun + (value - course.begun) / seen if seen <= self.limits.beginning else course.begun
        return _Course(seen, begun, course.now + beta * (value - course.now))

    def _drift(self, name: str, course: _Course) -> Drift | None:
        if course.seen <= self.limits.beginning:
            return None
        limits, now, begun = self.limits, course.now, course.begun
        match name:
            case "entropy" | "length":
                low, high = limits.entropy if name == "entropy" else limits.length
                has_drifted = not low * begun <= now <= high * begun
            case "ratio":
                has_drifted = abs(now - begun) > limits.ratio_most
            case _:
                has_drifted = now - begun > limits.kl_most
        return Drift(f"{name} went from {begun:.3g} to {now:.3g} in {course.seen} steps") if has_drifted else None


def figures(pieces: Sequence[PieceStats], harvest: Harvest) -> StepFigures:
    """A step's figures from its pieces, weighted by their tokens, and the data it was made of."""
    lengths = [len(one.tokens_T) for one in harvest.data]
    return StepFigures(
        entropy=_mean([(piece.entropy, piece.tokens) for piece in pieces]),
        kl=_mean([(piece.kl, piece.tokens) for piece in pieces]),
        length=sum(lengths) / len(lengths) if lengths else None,
        ratio=_mean([(piece.ratio_mean, piece.tokens) for piece in pieces]),
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    told = [(value, tokens) for value, tokens in values if value is not None and tokens]
    weight = sum(tokens for _, tokens in told)
    # A plain sum: fsum refuses infinities of both signs, which are to be seen here, not to fail.
    return sum(value * tokens for value, tokens in told) / weight if weight else None


def _course(name: str, kept: Json) -> _Course:
    match kept:
        case [int(seen), int() | float() as begun, int() | float() as now] if seen > 0:
            return _Course(seen, float(begun), float(now))
        case _:
            raise TrainingError(f"what is kept of {name} is not a count and two numbers")
