"""Turns slots into numbers to compare: medians over the quieter half, ratios within one round."""

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from .results import MemoryPoint, Run, Slot, Spread, Start

Measure = Callable[[Slot], float | None]
Timed = TypeVar("Timed", Slot, Start)


def _spread(value: Spread | None, name: str) -> float | None:
    if value is None:
        return None
    number: float | None = getattr(value, name)
    return number


def rps(slot: Slot) -> float | None:
    return slot.load.rps or None


def p50_ms(slot: Slot) -> float | None:
    return _ms(_spread(slot.load.latency_us, "p50"))


def p99_ms(slot: Slot) -> float | None:
    return _ms(_spread(slot.load.latency_us, "p99"))


def cpu_us(slot: Slot) -> float | None:
    return slot.cpu_us if slot.load.ok else None


def first_p50_ms(slot: Slot) -> float | None:
    return _ms(_spread(slot.load.first_us, "p50"))


def first_p99_ms(slot: Slot) -> float | None:
    return _ms(_spread(slot.load.first_us, "p99"))


def relay_p50_ms(slot: Slot) -> float | None:
    return _ms(_spread(slot.load.relay_us, "p50"))


def relay_p99_ms(slot: Slot) -> float | None:
    return _ms(_spread(slot.load.relay_us, "p99"))


def tokens_per_read(slot: Slot) -> float | None:
    return _spread(slot.load.tokens_per_read, "mean")


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1000


def quiet_half(items: Sequence[Timed]) -> list[Timed]:
    """The half (rounded up) during which others used the machine least."""
    return sorted(items, key=lambda item: item.foreign_cores)[: (len(items) + 1) // 2]


def slots_of(run: Run, target: str, suite: str) -> list[Slot]:
    return [slot for slot in run.slots if slot.target == target and slot.suite == suite]


def typical(run: Run, target: str, suite: str, measure: Measure) -> float | None:
    """The median of the quieter half of a target's slots."""
    values = [
        value
        for slot in quiet_half(slots_of(run, target, suite))
        if (value := measure(slot)) is not None
    ]
    return statistics.median(values) if values else None


def compared(
    run: Run,
    target: str,
    other: str,
    suite: str,
    measure: Measure,
    by: Callable[[float, float], float],
) -> float | None:
    """The median of a comparison made round by round, over the half of the rounds that were quieter
    for both.
    """
    theirs = {slot.round: slot for slot in slots_of(run, other, suite)}
    pairs: list[tuple[float, float]] = []
    for slot in slots_of(run, target, suite):
        partner = theirs.get(slot.round)
        mine, its = measure(slot), measure(partner) if partner else None
        if partner and mine is not None and its:
            pairs.append((max(slot.foreign_cores, partner.foreign_cores), by(mine, its)))
    quiet = sorted(pairs)[: (len(pairs) + 1) // 2]
    return statistics.median(value for _, value in quiet) if quiet else None


def ratio(run: Run, target: str, other: str, suite: str, measure: Measure) -> float | None:
    return compared(run, target, other, suite, measure, lambda mine, its: mine / its)


def added(run: Run, target: str, other: str, suite: str, measure: Measure) -> float | None:
    return compared(run, target, other, suite, measure, lambda mine, its: mine - its)


def start_s(run: Run, target: str) -> float | None:
    starts = quiet_half([start for start in run.starts if start.target == target])
    return statistics.median(start.healthy_s for start in starts) if starts else None


def start_mb(run: Run, target: str) -> float | None:
    starts = [start.pss_mb for start in run.starts if start.target == target]
    return statistics.median(starts) if starts else None


def memory_of(run: Run, target: str, when: str) -> list[MemoryPoint]:
    return [point for point in run.memory if point.target == target and point.when == when]


def failures(run: Run, target: str, suite: str | None = None) -> int:
    return sum(
        slot.load.failed
        for slot in run.slots
        if slot.target == target and suite in (None, slot.suite)
    )
