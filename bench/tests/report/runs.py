"""Records made by hand, for reports."""

from collections.abc import Sequence
from typing import Final

from metaclaw_bench.records import EventKind, EventRecord, Phase, PlanRecord, Record, RoundRecord

EVIL: Final = "<script>alert(1)</script>"


def round_of(
    condition: str,
    seed: int,
    day: int,
    name: str,
    score: float,
    *,
    phase: Phase = "stream",
    simulated: bool = True,
    ablation: tuple[str, ...] = (),
    tail: str = "",
    failure: str | None = None,
    defect: str | None = None,
) -> RoundRecord:
    """A file-check that asks for the rule of times; a choice where its name says so."""
    is_choice = name.startswith("c")
    return RoundRecord(
        run=f"{condition}-{seed}",
        benchmark="tiny",
        condition=condition,
        ablation=ablation,
        seed=seed,
        simulated=simulated,
        day=f"day{day:02d}",
        day_number=day,
        round=name,
        kind="multi_choice" if is_choice else "file_check",
        score=score,
        passed=score == 1.0,
        exact=score == 1.0 if is_choice else None,
        held_out=phase == "held_out",
        phase=phase,
        rules=("times",),
        skills=("times-1",) if condition == "full" else (),
        reward=score,
        tokens_in=900,
        tokens_out=100,
        seconds=2.0,
        failure=failure,
        defect=defect,
        tail=tail,
    )


def made_runs() -> list[Record]:
    """Two conditions and an ablation, two seeds, four days, with everything that a report can
    show.
    """
    records: list[Record] = []
    for condition, ablation in (("baseline", ()), ("full", ()), ("full", ("gate=off",))):
        for seed in (0, 1):
            records += _run(condition, ablation, seed)
    return records


def _run(condition: str, ablation: tuple[str, ...], seed: int) -> Sequence[Record]:
    level = {"baseline": 0.3, "full": 0.7}[condition]
    made = {
        "run": f"{condition}-{seed}",
        "benchmark": "tiny",
        "condition": condition,
        "ablation": ablation,
        "seed": seed,
    }
    run: list[Record] = [
        PlanRecord(**made, simulated=True, stream=16, again=4, held_out=4, sandbox="limits")  # type: ignore[arg-type]
    ]
    for day in range(1, 5):
        for at in range(4):
            is_good = (day * 7 + at * 3 + seed) % 10 < 10 * level
            name = f"{'c' if at == 3 else 'r'}{at}"
            failure = "the agent gave up" if (day, at) == (3, 1) and not is_good else None
            defect = "impossible" if (day, at) == (2, 0) else None
            run.append(
                round_of(
                    condition,
                    seed,
                    day,
                    name,
                    float(is_good),
                    ablation=ablation,
                    tail=EVIL,
                    failure=failure,
                    defect=defect,
                )
            )
    run += [
        round_of(condition, seed, 1, f"r{at}", level, phase="again", ablation=ablation)
        for at in range(4)
    ]
    run += [
        round_of(condition, seed, 31, f"r{at}", level, phase="held_out", ablation=ablation)
        for at in range(4)
    ]
    if condition == "full":
        kinds: list[tuple[int, EventKind]] = [(3, "version"), (2, "generation"), (2, "skill_born")]
        for day, kind in kinds if seed else kinds[:1]:
            event = EventRecord(
                **made,  # type: ignore[arg-type]
                simulated=True,
                day=f"day{day:02d}",
                day_number=day,
                after=1,
                kind=kind,
                number=1,
                name="times-1",
                numbers={"by_evolver": 1.0} if kind == "skill_born" else {},
                why=f"proven {EVIL}",
            )
            run.append(event)
    return run
