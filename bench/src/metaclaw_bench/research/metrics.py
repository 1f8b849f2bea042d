"""What a research run is worth: completion, retry rate, refine cycles, and one number made of them.

The published composite is 0.4 · stage completion + 0.3 · retry reduction + 0.3 · refine efficiency;
how its last two terms are brought to a common scale is published nowhere. Ours, in full:

- completion = stages completed / scorable stages. A stage that is done again counts once. Scorable
  are all 23 stages.
- retry rate = retries / attempts. An attempt is a request for a stage's file, a retry one that
  follows a broken contract. retry reduction = 1 - retry rate: 1 where nothing had to be asked
  twice. It is absolute, not relative to another condition, so that every run has a number of its
  own.
- refine cycles = decisions that led back (REFINE or PIVOT), at most 2 in a run. refine efficiency =
  1 - cycles / 2: 1 where the first decision was to proceed, 0 where all that are allowed were used.
  A run that did not get past the decision (stage 15) has shown no efficiency: 0.

All three lie in [0, 1], more is better, and so does the composite. On this scale the published
table (18/19, 10.5 %, 2.0 cycles; 19/19, 7.9 %, 1.2 cycles) gives 0.647 and 0.796 where 0.714 and
0.845 are printed: composites of ours compare with each other only."""

from dataclasses import dataclass
from typing import Final

from metaclaw_bench.research.records import RunRecord
from metaclaw_bench.research.stages import Stage

COMPLETION_WEIGHT: Final = 0.4
RETRY_WEIGHT: Final = 0.3
REFINE_WEIGHT: Final = 0.3
MOST_REFINES: Final = 2


@dataclass(frozen=True, slots=True)
class Metrics:
    """A run in numbers. None is what could not be counted, the retry rate where there were no
    attempts, and a composite that lacks one of its parts."""

    completion: float | None
    retry_rate: float | None
    refines: int | None
    composite: float | None


def measure(run: RunRecord) -> Metrics:
    """The numbers of one run."""
    completion = None if run.completed is None else run.completed / run.scorable
    retry_rate = run.retries / run.attempts if run.attempts and run.retries is not None else None
    if completion is None or retry_rate is None or run.refines is None:
        return Metrics(completion, retry_rate, run.refines, None)
    is_past = run.completed is not None and run.completed > Stage.RESEARCH_DECISION
    return Metrics(
        completion,
        retry_rate,
        run.refines,
        composite(completion, retry_rate, run.refines, is_past_decision=is_past),
    )


def composite(
    completion: float, retry_rate: float, refines: float, *, is_past_decision: bool = True
) -> float:
    """The one number. Raises ValueError for what lies outside its scale."""
    if not (0 <= completion <= 1 and 0 <= retry_rate <= 1 and 0 <= refines <= MOST_REFINES):
        raise ValueError(
            f"completion {completion}, retry rate {retry_rate} and {refines} refine cycles are not"
            " on the scale"
        )
    efficiency = 1 - refines / MOST_REFINES if is_past_decision else 0.0
    return (
        COMPLETION_WEIGHT * completion
        + RETRY_WEIGHT * (1 - retry_rate)
        + REFINE_WEIGHT * efficiency
    )
