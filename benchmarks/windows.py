"""The scheduler in a simulator: three months of a person's activity in seconds, for ours and for
three other ways to decide.

    python -m benchmarks.windows [--days 90] [--seed 0] [--stands-still] [--json] [--assert-goals]

*Ours* is the program's own code (`Windows`, its signals, habits and decision) with a clock turned
by the simulator: it hears touches and main turns as they come, and is asked to look whenever it
said it would. The others:

- *fixed 30 min*: open after half an hour without a touch, looked at once a minute, as the authors'
  scheduler does;
- *sleep hours*: open from 23:00 to 07:00, whoever is there;
- *oracle*: knows when the person leaves and comes back.

A step is six pieces of five seconds. Going on in a window costs a second. A piece that is cut is
lost (the harder case; with `--stands-still` it goes on in the next window, as the embedded trainer
does). *Steps* are made of finished pieces, made in the person's absence; *waste* is the share of
work that was lost, *idle used* the share of the person's absence in which a window was open,
*overlap* the seconds in which somebody was there while a window was open, but for the second in
which work is stopped."""

import argparse
import json
import math
import random
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from benchmarks.windows_traces import BEGAN, DAY_S, MINUTE_S, TRACES, Spell, Trace, touches
from metaclaw.config import ScheduleConfig, sleep_range
from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.forecast import FIRST_S, Habits
from metaclaw.schedule.input import InputReport
from metaclaw.schedule.machine_load import MachineLoad
from metaclaw.schedule.presence import Presence, Reading, SleepHours, Traffic, WindowThresholds
from metaclaw.schedule.training_windows import ScheduledWindows

PIECE_S, PIECES_A_STEP, RESUME_S, SHUTDOWN_S = 5.0, 6, 1.0, 1.0
GOALS = {"steps_of_oracle": 0.90, "waste": 0.05, "overlap_s": 0.0}
_MAIN_TURNS = 0.1


@dataclass(slots=True)
class Work:
    """A trainer: pieces done and work lost. `begin` when a window opens, `until` while it is open,
    `cut` when it shuts.
    """

    stands_still: bool
    pieces: int = 0
    wasted_s: float = 0.0
    cursor: float = 0.0
    carried_s: float = 0.0

    def begin(self, now: float) -> None:
        self.cursor = now + RESUME_S

    def until(self, now: float, most: int | None = None) -> None:
        """Work up to this moment, on so many pieces at most."""
        first = self.cursor + PIECE_S - self.carried_s
        if first <= now and most != 0:
            more = int((now - first) / PIECE_S)
            done = 1 + (more if most is None else min(more, most - 1))
            self.cursor = first + PIECE_S * (done - 1)
            self.carried_s = 0.0
            self.pieces += done

    def cut(self, now: float) -> None:
        """Stop."""
        begun_s = max(0.0, now - self.cursor)
        if self.stands_still:
            self.carried_s = min(PIECE_S, self.carried_s + begun_s)
        else:
            self.wasted_s += begun_s


class SimClock:
    """Turned by the simulator."""

    def __init__(self) -> None:
        self.at = 0.0
        self._began = BEGAN.astimezone(UTC)

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at


class Keyboard:
    """A source that the simulator speaks through."""

    name, hears_all, is_screen = "input", True, False

    async def follow(self, report: InputReport) -> None:
        """Nothing comes by itself."""


class Diary:
    """The trace's meetings as a calendar."""

    name = "calendar"

    def __init__(self, trace: Trace, clock: SimClock) -> None:
        self._meetings, self._clock = trace.meetings, clock
        self._begins = [begin for begin, _ in trace.meetings]

    def read(self, now: datetime) -> Reading:
        place = bisect_right(self._begins, self._clock.at) - 1
        if place >= 0 and self._clock.at < self._meetings[place][1]:
            return Reading(
                Presence.AWAY,
                "busy",
                now + timedelta(seconds=self._meetings[place][1] - self._clock.at),
            )
        coming = self._begins[place + 1] if place + 1 < len(self._begins) else None
        return Reading(
            Presence.UNKNOWN,
            "no event now",
            None if coming is None else now + timedelta(seconds=coming - self._clock.at),
        )

    async def follow(self) -> None:
        """Nothing comes by itself."""


class Ours:
    """The program's own scheduler over one trace."""

    def __init__(self, trace: Trace, work: Work, seed: int) -> None:
        self._trace, self._work, self._chance = trace, work, random.Random(seed)
        self._clock = SimClock()
        self.opened: list[Spell] = []
        (_, self._place), *self._moves = trace.moves
        self._moves_at = self._moves[0][0] if self._moves else math.inf
        zone = self._zone
        self._traffic = Traffic(clock=self._clock.monotonic)
        self._windows = ScheduledWindows(
            habits=Habits(idle_s=30 * MINUTE_S, least_s=MINUTE_S, clock=self._clock),
            traffic=self._traffic,
            sources=[Keyboard()],
            sleep=SleepHours([sleep_range("23:00-07:00")], zone),
            calendars=[Diary(trace, self._clock)],
            machine_load=MachineLoad(ScheduleConfig()),  # not followed: it has no objections
            rules=WindowThresholds(timedelta(minutes=1), timedelta(minutes=1)),
            clock=self._clock,
            announce=lambda kind, facts: None,
        )
        self._windows.on_change(lambda window: self._changed(window is not None))
        self._is_open, self._begun = False, 0.0

    def run(self) -> list[Spell]:
        """When windows were open."""
        clock, draw, touch, traffic = (
            self._clock,
            self._chance.random,
            self._windows.inputs[0].input,
            self._traffic,
        )
        for when, _ in touches(self._trace, self._chance):
            if when - clock.at < FIRST_S and not self._is_open:
                clock.at = (
                    when if when > clock.at else clock.at
                )  # too short a silence for anything to open
            else:
                self._pass(when)
            if draw() < _MAIN_TURNS:
                traffic.began(TurnKind.MAIN)
                traffic.ended()
            else:
                touch()
        self._pass(self._trace.days * DAY_S)
        self._windows.shut("the end")
        return self.opened

    def _pass(self, until: float) -> None:
        """Let time pass, looking and working on the way."""
        while self._clock.at < until:
            step_to = min(until, self._clock.at + self._windows.look())
            while self._is_open and self._clock.at < step_to:
                self._work_a_while(step_to)
            self._clock.at = step_to

    def _work_a_while(self, until: float) -> None:
        """Ask for room, as the slow loop does before a piece; where there is much, not before
        each.
        """
        self._clock.at = max(self._clock.at, min(self._work.cursor, until))
        if self._clock.at >= until:
            return
        room_s = self._windows.room_s()
        if room_s < PIECE_S and not self._work.stands_still:
            self._work.cursor = self._clock.at = min(until, self._clock.at + PIECE_S)
            return
        self._work.until(until, max(1, int(room_s / 2 / PIECE_S)))
        self._clock.at = min(until, max(self._clock.at + 0.001, self._work.cursor))
        if self._work.cursor + PIECE_S - self._work.carried_s > until:
            self._clock.at = until

    def _changed(self, is_open: bool) -> None:
        self._is_open = is_open
        if is_open:
            self._begun = self._clock.at
            self._work.begin(self._clock.at)
        else:
            self._work.cut(self._clock.at)
            self.opened.append((self._begun, self._clock.at))

    def _zone(self) -> ZoneInfo:
        if self._clock.at >= self._moves_at:
            (_, self._place), *self._moves = self._moves
            self._moves_at = self._moves[0][0] if self._moves else math.inf
        return self._place


def fixed_rule(trace: Trace, seed: int) -> Iterator[Spell]:
    """Half an hour without a touch, looked at every minute. Hands never rest that long: only what
    lies between sittings counts.
    """
    last = 0.0
    for begin, end in (*trace.present, (trace.days * DAY_S, trace.days * DAY_S)):
        opens = -(-(last + 30 * MINUTE_S) // MINUTE_S) * MINUTE_S
        if opens < begin:
            yield opens, -(-begin // MINUTE_S) * MINUTE_S
        last = end


def sleep_only(trace: Trace, seed: int) -> Iterator[Spell]:
    """From eleven to seven, whoever is there."""
    for day in range(-1, trace.days):
        begin, end = day * DAY_S + 23 * 3600, day * DAY_S + 31 * 3600
        yield max(0.0, begin), min(end, trace.days * DAY_S)


def oracle(trace: Trace, seed: int) -> Iterator[Spell]:
    """Knows everything."""
    yield from trace.away


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy made of one trace."""

    trace: str
    policy: str
    is_goal: bool
    steps: float
    of_oracle: float
    idle_used: float
    waste: float
    overlap_s: float


def measure(trace: Trace, seed: int, *, stands_still: bool) -> list[Row]:
    """Every policy over one trace."""
    work = Work(stands_still)
    opened = {"ours": (Ours(trace, work, seed).run(), work)}
    others: dict[str, Callable[[Trace, int], Iterator[Spell]]] = {
        "fixed 30 min": fixed_rule,
        "sleep hours": sleep_only,
        "oracle": oracle,
    }
    for name, policy in others.items():
        spells, other = [one for one in policy(trace, seed) if one[1] > one[0]], Work(stands_still)
        for begin, end in _parts(spells, list(trace.away)):
            other.begin(begin)
            other.until(end)
            if name != "oracle" or stands_still:
                other.cut(end)
        opened[name] = spells, other
    best = opened["oracle"][1].pieces
    away_s = sum(end - begin for begin, end in trace.away)
    return [
        _row(trace, name, spells, done, best, away_s) for name, (spells, done) in opened.items()
    ]


def _parts(spells: list[Spell], away: list[Spell]) -> Iterator[Spell]:
    """What of the spells lies in the person's absence: only steps made in it are counted."""
    place = 0
    for begin, end in spells:
        while place < len(away) and away[place][1] <= begin:
            place += 1
        look = place
        while look < len(away) and away[look][0] < end:
            yield max(begin, away[look][0]), min(end, away[look][1])
            look += 1


def _row(trace: Trace, name: str, spells: list[Spell], work: Work, best: int, away_s: float) -> Row:
    shared = _common(spells, trace.present, SHUTDOWN_S)
    open_s = sum(end - begin for begin, end in spells)
    useful_s = work.pieces * PIECE_S
    waste = work.wasted_s / (useful_s + work.wasted_s) if useful_s + work.wasted_s else 0.0
    used = (open_s - _common(spells, trace.present, 0.0)) / away_s
    return Row(
        trace.name,
        name,
        trace.is_goal,
        work.pieces / PIECES_A_STEP,
        work.pieces / best,
        used,
        waste,
        shared,
    )


def _common(first: list[Spell], second: tuple[Spell, ...], forgiven_s: float) -> float:
    """Seconds that are in both, but for the first ones of each meeting that are forgiven."""
    total, place = 0.0, 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        look = place
        while look < len(second) and second[look][0] < end:
            total += max(0.0, min(end, second[look][1]) - max(begin, second[look][0]) - forgiven_s)
            look += 1
    return total


def failures(rows: list[Row]) -> list[str]:
    """Which goals ours misses."""
    return [
        f"{row.trace}: {row.of_oracle:.1%} of the oracle's steps, waste {row.waste:.1%}, overlap"
        f" {row.overlap_s:.1f} s"
        for row in rows
        if row.policy == "ours"
        and row.is_goal
        and (
            row.of_oracle < GOALS["steps_of_oracle"]
            or row.waste >= GOALS["waste"]
            or row.overlap_s > GOALS["overlap_s"]
        )
    ]


def show(rows: list[Row], days: int, took_s: float, spent_s: float) -> None:
    """The table."""
    print(
        f"{'trace':<27}{'policy':<14}{'steps':>9}{'of oracle':>11}{'idle used':>11}{'waste':>8}{'overlap s':>11}"
    )
    for row in rows:
        print(
            f"{row.trace if row.policy == 'ours' else '':<27}{row.policy:<14}{row.steps:>9.0f}{row.of_oracle:>11.1%}"
            f"{row.idle_used:>11.1%}{row.waste:>8.2%}{row.overlap_s:>11.1f}"
        )
    print(
        f"\n{days} days of {len({row.trace for row in rows})} people in {took_s:.1f} s,"
        f" {spent_s:.1f} s of processor time"
    )


def _replay(
    days: int, seed: int, stands_still: bool, make: Callable[[int, random.Random], Trace]
) -> tuple[list[Row], float]:
    """One person's days, and the processor time it took."""
    began = time.process_time()
    return (
        measure(make(days, random.Random(seed)), seed, stands_still=stands_still),
        time.process_time() - began,
    )


def main() -> int:
    """Run, print, and say whether the goals are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stands-still", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--assert-goals", action="store_true")
    chosen = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor() as pool:
        done = list(
            pool.map(partial(_replay, chosen.days, chosen.seed, chosen.stands_still), TRACES)
        )
    rows, spent_s = [row for one, _ in done for row in one], sum(seconds for _, seconds in done)
    took_s = time.monotonic() - began
    if chosen.json:
        fields = (
            "trace",
            "policy",
            "is_goal",
            "steps",
            "of_oracle",
            "idle_used",
            "waste",
            "overlap_s",
        )
        print(
            json.dumps(
                {
                    "seconds": spent_s,
                    "wall_s": took_s,
                    "rows": [{name: getattr(row, name) for name in fields} for row in rows],
                },
                indent=2,
            )
        )
    else:
        show(rows, chosen.days, took_s, spent_s)
    missed = failures(rows)
    for line in missed:
        print(f"goal missed: {line}", file=sys.stderr)
    return 1 if chosen.assert_goals and missed else 0


if __name__ == "__main__":
    sys.exit(main())
