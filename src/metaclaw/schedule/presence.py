"""Presence of the user: readings, the signals of traffic and sleep hours, and the decision whether
a window is open.

| away | present | objection | forecast        | cool-down | window |
|------|---------|-----------|-----------------|-----------|--------|
| none | –       | –         | –               | –         | shut   |
| some | some    | –         | –               | –         | shut   |
| some | none    | some      | –               | –         | shut   |
| some | none    | none      | below the least | –         | shut, unless it is open already |
| some | none    | none      | enough          | running   | shut   |
| some | none    | none      | enough          | over      | open   |

A window is open if some signal says away, none says present, and the machine is free. Unknown
counts for nothing."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Protocol

from metaclaw.config import SleepRange
from metaclaw.domain.turn import TurnKind
from metaclaw.schedule.clock import Zone
from metaclaw.schedule.forecast import Patience


class Presence(StrEnum):
    """Whether the user is there, according to one signal. Unknown never counts as away."""

    AWAY = "away"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """The state according to one signal, the reason in words, and until when it holds if nothing
    happens (None: unknown).

    `is_trouble` is set if the state is unknown because of a problem that the user can solve.
    """

    presence: Presence
    why: str
    until: datetime | None = None
    is_trouble: bool = False


@dataclass(frozen=True, slots=True)
class NamedReading:
    """A reading with the name of the signal it comes from."""

    signal: str
    reading: Reading


class PresenceSignal(Protocol):
    """A source of presence readings. `read` never raises and never blocks; problems give an unknown
    reading.
    """

    @property
    def name(self) -> str: ...
    def read(self, now: datetime) -> Reading: ...


class FollowedSignal(PresenceSignal, Protocol):
    """A signal that must run: `follow` keeps it up to date until it is cancelled."""

    async def follow(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WindowThresholds:
    """A window is not opened if it would be shorter than `least`; after a window was shut, none
    opens for `cooldown`.
    """

    least: timedelta = timedelta(minutes=2)
    cooldown: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Moment:
    """The input of a decision. `objections` are reasons not to use the machine; `expected` is how
    long a window opened now would last, or None if unknown."""

    now: datetime
    readings: Sequence[NamedReading]
    objections: Sequence[str] = ()
    is_open: bool = False
    shut_at: datetime | None = None
    expected: timedelta | None = None


@dataclass(frozen=True, slots=True)
class WindowDecision:
    """Open or shut, and why."""

    is_open: bool
    reason: str


def decide(moment: Moment, rules: WindowThresholds) -> WindowDecision:
    """Whether a window may be open at this moment."""
    present = [one for one in moment.readings if one.reading.presence is Presence.PRESENT]
    away = [one for one in moment.readings if one.reading.presence is Presence.AWAY]
    if present:
        return WindowDecision(
            False, "; ".join(f"{one.signal}: {one.reading.why}" for one in present)
        )
    if not away:
        return WindowDecision(False, "nothing says that you are away")
    if moment.objections:
        return WindowDecision(False, "; ".join(moment.objections))
    reason = "; ".join(f"{one.signal}: {one.reading.why}" for one in away)
    if moment.is_open:
        return WindowDecision(True, reason)
    if moment.expected is not None and moment.expected < rules.least:
        return WindowDecision(
            False,
            f"a window now would be over in {in_words(moment.expected)}, and"
            f" {in_words(rules.least)} are the least",
        )
    if moment.shut_at is not None and timedelta(0) <= moment.now - moment.shut_at < rules.cooldown:
        return WindowDecision(
            False, f"cooling down for {in_words(moment.shut_at + rules.cooldown - moment.now)}"
        )
    return WindowDecision(True, reason)


def in_words(span: timedelta) -> str:
    """A duration in words."""
    seconds = max(0, round(span.total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return (
        f"{seconds // 60} min"
        if seconds < 7200
        else f"{seconds // 3600} h {seconds % 3600 // 60} min"
    )


class Traffic:
    """A main turn means present, while it is answered and for some time after; a longer silence
    means away. Heartbeats and side turns do not count.

    If there is an input source, silence means nothing. It is called from the request path, so it
    must be quick."""

    name = "traffic"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._has_come = False
        self._answers = 0
        self._is_answering_main = False
        self._hear: Callable[[], None] | None = None
        self._patience: Callable[[], Patience] | None = None
        self._is_only_signal: Callable[[], bool] = lambda: True

    def connect(
        self,
        hear: Callable[[], None],
        patience: Callable[[], Patience],
        is_only_signal: Callable[[], bool],
    ) -> None:
        """Call `hear` at once when a main turn begins, and when the last answer is out. It must not
        block.
        """
        self._hear, self._patience, self._is_only_signal = hear, patience, is_only_signal

    def began(self, kind: TurnKind) -> None:
        """Record the beginning of a request."""
        self._answers += 1
        if kind is TurnKind.MAIN:
            self._is_answering_main = True
            self._active()

    def ended(self) -> None:
        """Record the end of an answer. Its kind is unknown, so that presence ends with the last of
        all answers.
        """
        self._answers -= 1
        if self._answers == 0 and self._is_answering_main:
            self._is_answering_main = False
            self._active()

    def jumped(self) -> None:
        """Restart after a sleep of the machine or a clock change."""
        self._last = self._clock()

    def read(self, now: datetime) -> Reading:
        """How long ago the last main turn was."""
        if self._is_answering_main:
            return Reading(Presence.PRESENT, "a main turn is being answered")
        silence_s = max(0.0, self._clock() - self._last)
        last = f"last main turn {ago(silence_s)}" if self._has_come else "no main turn yet"
        if self._patience is None:
            return Reading(Presence.UNKNOWN, last)
        patience = self._patience()
        if self._has_come and silence_s < patience.present_s:
            return Reading(
                Presence.PRESENT, last, now + timedelta(seconds=patience.present_s - silence_s)
            )
        if not self._is_only_signal():
            return Reading(Presence.UNKNOWN, f"{last}; keyboard and mouse decide")
        if silence_s < patience.away_s:
            return Reading(
                Presence.UNKNOWN, last, now + timedelta(seconds=patience.away_s - silence_s)
            )
        return Reading(Presence.AWAY, f"no main turn for {ago(silence_s).removesuffix(' ago')}")

    def _active(self) -> None:
        self._last, self._has_come = self._clock(), True
        if self._hear is not None:
            self._hear()


def ago(seconds: float) -> str:
    """How long ago, in words."""
    return f"{round(seconds)} s ago" if seconds < 120 else f"{round(seconds / 60)} min ago"


class SleepHours:
    """Sleep hours: away in ranges of the local day on given weekdays, unknown outside of them.

    Times are local wall time: the night of a change to summer time is an hour shorter, and a time
    in the skipped hour is read as an hour later."""

    name = "sleep hours"

    def __init__(
        self, ranges: Sequence[SleepRange], zone: Zone, trouble: str | None = None
    ) -> None:
        """`trouble` is the error in the configured hours, if any; the reading is then unknown."""
        self._ranges = tuple(ranges)
        self._zone = zone
        self._trouble = trouble
        self._planned: tuple[tuple[date, tzinfo], list[tuple[datetime, datetime]]] | None = None

    def read(self, now: datetime) -> Reading:
        """Whether this is a time of sleep."""
        if self._trouble is not None:
            return Reading(Presence.UNKNOWN, self._trouble, is_trouble=True)
        zone = self._zone()
        stretches = self._plan(now.astimezone(zone).date(), zone)
        end = _end_of_sleep(now, stretches)
        if end is not None:
            return Reading(Presence.AWAY, f"asleep until {end.astimezone(zone):%H:%M}", end)
        later = [begin for begin, _ in stretches if begin > now]
        return Reading(Presence.UNKNOWN, "not a time of sleep", min(later, default=None))

    def _plan(self, today: date, zone: tzinfo) -> list[tuple[datetime, datetime]]:
        """The periods of sleep of the days around today."""
        if self._planned is None or self._planned[0] != (today, zone):
            self._planned = (today, zone), sorted(self._around(today, zone))
        return self._planned[1]

    def _around(self, today: date, zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
        for offset in range(-1, 9):
            day = today + timedelta(days=offset)
            for one in self._ranges:
                if day.weekday() in one.days:
                    last = day if one.ends > one.begins else day + timedelta(days=1)
                    begin, end = (
                        datetime.combine(day, one.begins, zone),
                        datetime.combine(last, one.ends, zone),
                    )
                    yield begin.astimezone(UTC), end.astimezone(UTC)


def _end_of_sleep(now: datetime, stretches: Sequence[tuple[datetime, datetime]]) -> datetime | None:
    """The end of the current period of sleep, including those that follow without a gap; None if
    there is none now.
    """
    end = None
    for begin, until in stretches:
        if begin <= (end or now) < until:
            end = until
    return end
