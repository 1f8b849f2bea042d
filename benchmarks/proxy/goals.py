"""The goals the proxy must meet, each judged from one run: met, missed, or not measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from . import summary
from .results import Run

OURS = "ours"
BEFORE = "before"
"""Another version of ours, to compare with."""
PEERS = ("litellm", "authors")
_SHORT = ("short-1", "short-8", "short-64")


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the goals' table; `met` is None where the run has nothing to judge by."""

    goal: str
    measured: str
    met: bool | None


def judge(run: Run) -> list[Goal]:
    """All goals in the order in which they are printed."""
    return [
        *_rates(run),
        *_latency(run),
        *_processor(run),
        *_streams(run),
        *_memory(run),
        *_start(run),
        *_peers(run),
        *_honesty(run),
    ]


def _at_least(goal: str, value: float | None, limit: float, text: str = "{:.3f} ×") -> Goal:
    return Goal(
        goal,
        "not measured" if value is None else text.format(value),
        None if value is None else value >= limit,
    )


def _at_most(goal: str, value: float | None, limit: float, text: str) -> Goal:
    return Goal(
        goal,
        "not measured" if value is None else text.format(value),
        None if value is None else value <= limit,
    )


def _rates(run: Run) -> Iterator[Goal]:
    for suite in ("short-8", "short-64"):
        clients = suite.removeprefix("short-")
        for other, factor, text in (
            ("nginx", 0.08, "{:.3f} ×"),
            ("litellm", 50, "{:,.0f} ×"),
            ("authors", 200, "{:,.0f} ×"),
        ):
            value = summary.ratio(run, OURS, other, suite, summary.rps)
            yield _at_least(
                f"requests/s with {clients} clients ≥ {factor} × {other}", value, factor, text
            )


def _latency(run: Run) -> Iterator[Goal]:
    value = summary.added(run, OURS, "nginx", "short-1", summary.p50_ms)
    yield _at_most("p50 added over nginx, one client ≤ 0.6 ms", value, 0.6, "{:.3f} ms")


def _processor(run: Run) -> Iterator[Goal]:
    short = [
        us
        for suite in _SHORT
        if (us := summary.typical(run, OURS, suite, summary.cpu_us)) is not None
    ]
    yield _at_most(
        "processor time a 1 kB request, worst of 1, 8, 64 clients ≤ 600 µs",
        max(short, default=None),
        600,
        "{:,.0f} µs",
    )
    long = summary.typical(run, OURS, "long-8", summary.cpu_us)
    yield _at_most("processor time a 200 kB request ≤ 2,500 µs", long, 2500, "{:,.0f} µs")


def _streams(run: Run) -> Iterator[Goal]:
    half = summary.added(run, OURS, "direct", "paced-32", summary.first_p50_ms)
    yield _at_most("first token added, 32 paced streams, p50 ≤ 6 ms", half, 6, "{:.2f} ms")
    most = summary.added(run, OURS, "direct", "paced-32", summary.first_p99_ms)
    yield _at_most("first token added, 32 paced streams, p99 ≤ 30 ms", most, 30, "{:.2f} ms")
    per_read = summary.typical(run, OURS, "paced-32", summary.tokens_per_read)
    yield _at_most("tokens per read, 32 paced streams ≤ 1.05", per_read, 1.05, "{:.3f}")


def _memory(run: Run) -> Iterator[Goal]:
    yield _at_most("memory at the start ≤ 120 MB", summary.start_mb(run, OURS), 120, "{:.0f} MB")
    steps = summary.memory_of(run, OURS, "requests")
    growth = steps[-1].pss_mb - steps[0].pss_mb if steps else None
    allowed = 5 + steps[0].pss_mb / 10 if steps else 0.0
    reached = f"{steps[0].requests:,} to {steps[-1].requests:,}" if steps else "many"
    yield _at_most(
        f"memory growth from {reached} requests ≤ 5 MB + 10 %", growth, allowed, "{:+.1f} MB"
    )
    drained = summary.memory_of(run, OURS, "drained")
    kept = drained[-1].pss_mb - steps[-1].pss_mb if drained and steps else None
    yield _at_most(
        "memory kept after 512 clients at once ≤ 10 MB + 25 %",
        kept,
        10 + steps[-1].pss_mb / 4 if steps else 0.0,
        "{:+.1f} MB",
    )


def _start(run: Run) -> Iterator[Goal]:
    yield _at_most(
        "cold start to the first answer ≤ 1.5 s", summary.start_s(run, OURS), 1.5, "{:.2f} s"
    )


def _peers(run: Run) -> Iterator[Goal]:
    """Ahead of every other Python proxy in rate, p50 and p99 at every load, and in the time to the
    first token.
    """
    for peer in PEERS:
        margins: dict[str, float] = {}
        for suite in _SHORT:
            for name, measure, better in (
                ("requests/s", summary.rps, 1),
                ("p50", summary.p50_ms, -1),
                ("p99", summary.p99_ms, -1),
            ):
                value = summary.ratio(run, OURS, peer, suite, measure)
                if value:
                    margins[f"{name} {suite}"] = value**better
        first = summary.ratio(run, OURS, peer, "paced-32", summary.first_p50_ms)
        if first:
            margins["first token"] = 1 / first
        worst = min(margins, key=lambda name: margins[name], default=None)
        goal = f"ahead of {peer} in requests/s, p50, p99 and first token"
        if worst is None:
            yield Goal(goal, "not measured", None)
        else:
            yield Goal(
                goal,
                f"{len(margins)} of {len(margins)} compared, least {margins[worst]:,.1f} ×"
                f" ({worst})",
                margins[worst] > 1,
            )


def _honesty(run: Run) -> Iterator[Goal]:
    """What makes the numbers above count: every answer good, skills really placed, every turn
    really recorded.
    """
    measured = any(slot.target == OURS for slot in run.slots)
    failed = summary.failures(run, OURS)
    yield Goal(
        "no request of ours fails",
        f"{failed} failed" if measured else "not measured",
        failed == 0 if measured else None,
    )
    placed = run.skills_placed.get(OURS)
    words = "not measured" if placed is None else f"{placed} placed of {run.skills:,} loaded"
    yield Goal("skills are placed while measuring", words, None if placed is None else placed > 0)
    known = run.recorded is not None
    words = (
        f"{run.recorded:,} turns for {run.answered:,} answers"
        if run.recorded is not None
        else "not measured"
    )
    yield Goal(
        "every answer is on record",
        words,
        run.recorded is not None and run.recorded >= run.answered if known else None,
    )
