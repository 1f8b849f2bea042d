"""What runs came to, in a line each: everything is divided by what was planned, so a round that
never ran counts as a wrong one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw_bench.records import Phase, PlanRecord, Record, RoundRecord, of_one_kind


@dataclass(frozen=True, slots=True)
class Line:
    """One phase of one run. Shares are None where nothing of the kind was asked."""

    run: str
    benchmark: str
    cell: str
    seed: int
    simulated: bool
    phase: Phase
    planned: int
    executed: int
    failed: int
    score: float
    accuracy: float | None
    exact: float | None
    completion: float | None
    tokens: int | None
    cost: float | None


def summarise(records: Sequence[Record]) -> list[Line]:
    """A line for each phase of each run, in the order of their plans. Raises RecordError where
    simulated and real are mixed.
    """
    of_one_kind(records)
    lines = []
    for plan in (one for one in records if isinstance(one, PlanRecord)):
        rounds = [
            one
            for one in records
            if isinstance(one, RoundRecord)
            and one.run == plan.run
            and one.benchmark == plan.benchmark
        ]
        phases: tuple[tuple[Phase, int], ...] = (
            ("stream", plan.stream),
            ("again", plan.again),
            ("held_out", plan.held_out),
        )
        lines += [
            _line(plan, phase, planned, [one for one in rounds if one.phase == phase])
            for phase, planned in phases
            if planned
        ]
    return lines


def _line(plan: PlanRecord, phase: Phase, planned: int, rounds: Sequence[RoundRecord]) -> Line:
    score = sum(one.score for one in rounds)
    choices = [one for one in rounds if one.kind == "multi_choice"]
    files = [one for one in rounds if one.kind == "file_check"]
    tokens = [
        one.tokens_in + one.tokens_out
        for one in rounds
        if one.tokens_in is not None and one.tokens_out is not None
    ]
    costs = [one.cost for one in rounds if one.cost is not None]
    return Line(
        run=plan.run,
        benchmark=plan.benchmark,
        cell=plan.cell,
        seed=plan.seed,
        simulated=plan.simulated,
        phase=phase,
        planned=planned,
        executed=len(rounds),
        failed=sum(one.failure is not None for one in rounds),
        score=score,
        accuracy=score / planned if planned else None,
        exact=sum(one.exact is True for one in choices) / len(choices) if choices else None,
        completion=sum(one.passed for one in files) / len(files) if files else None,
        tokens=sum(tokens) if tokens and len(tokens) == len(rounds) else None,
        cost=sum(costs) if costs and len(costs) == len(rounds) else None,
    )
