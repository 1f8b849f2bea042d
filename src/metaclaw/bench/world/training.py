"""Training in virtual time: a batch is worked on when the scheduler lets it, finished or dropped, and what it cost is counted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from metaclaw.bench.world.idle import Calendar, Spent, Stretch
from metaclaw.bench.world.settings import Ablation, Practice
from metaclaw.bench.world.shelf import Shelf
from metaclaw.bench.world.slow import Slow
from metaclaw.bench.world.turns import SimTurn


@dataclass(frozen=True, slots=True)
class Finished:
    """A batch is done with: the version that serves because of it, or None, and why."""

    version: int | None
    why: str


@dataclass(slots=True)
class _Job:
    batch: Sequence[SimTurn]
    generation: int
    left_s: float


class Training:
    """The trainer beside the person's days. `told` hears of every batch that is done with."""

    def __init__(self, slow: Slow, shelf: Shelf, ablation: Ablation, practice: Practice, told: Callable[[Finished], None]) -> None:
        self._slow = slow
        self._shelf = shelf
        self._ablation = ablation
        self._practice = practice
        self._told = told
        self._calendar = Calendar(ablation.scheduler, practice)
        self._job: _Job | None = None
        self._spent = Spent()
        self._steps = self._disturbed = self._dropped = 0

    def pass_time(self, before: Iterable[Stretch]) -> bool:
        """Let time pass, training in it. Whether a step is under way, beside the person, when the next round is asked."""
        for stretch in before:
            self._use(stretch)
            self._calendar.passed(stretch)
        is_in_the_way = self._job is not None and self._ablation.scheduler == "immediate"
        self._disturbed += is_in_the_way
        return is_in_the_way

    def numbers(self) -> dict[str, float]:
        """What training came to, and what it cost."""
        return {
            "steps": float(self._steps),
            "versions": float(self._slow.version),
            "dropped": float(self._dropped),
            "worked_s": self._spent.worked_s,
            "wasted_s": self._spent.wasted_s,
            "overlap_s": self._spent.overlap_s,
            "disturbed": float(self._disturbed),
        }

    def _use(self, stretch: Stretch) -> None:
        """Work on what there is to do until the stretch is over; a long night may see more than one batch."""
        at_s = 0.0
        while at_s < stretch.length_s and (job := self._job or self._begin()) is not None:
            spent = self._calendar.use(stretch, at_s, job.left_s)
            self._spent += spent
            job.left_s -= spent.worked_s
            self._job = job
            if job.left_s <= 0.0:
                self._finish(job)
            at_s = spent.until_s

    def _begin(self) -> _Job | None:
        batch = self._slow.take_batch()
        return None if batch is None else _Job(batch, self._shelf.generation, self._practice.steps * self._practice.step_s)

    def _finish(self, job: _Job) -> None:
        self._job = None
        self._steps += self._practice.steps
        minds_skills = self._ablation.separation == "on" and self._ablation.flush == "full"
        if minds_skills and job.generation != self._shelf.generation:
            self._dropped += 1
            self._told(Finished(None, "dropped: the skills changed while it was trained"))
            return
        version, decision = self._slow.version, self._slow.train(job.batch)
        why = "the gate for weights is off" if decision is None else "; ".join(decision.report.reasons)
        self._told(Finished(self._slow.version if self._slow.version > version else None, why))
