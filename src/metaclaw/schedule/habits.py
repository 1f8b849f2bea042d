"""The person's habits: when they were last active, how long a silence means that they have left, and how long they stay away.

Keys and main turns are one stream of activity here. What lies between two of them is an idle spell; finished ones make the history,
and the history says what the running one is likely to be. A spell across a sleep of the machine or a set clock teaches nothing.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from metaclaw.config import replace_file
from metaclaw.schedule.clock import Clock
from metaclaw.schedule.forecast import ENOUGH, HOURS, LIKELY, SHORTEST_S, VERY_LIKELY, History, Survival, hour_of_week
from metaclaw.schedule.zone import Zone

log = logging.getLogger(__name__)

FIRST_S: Final = 10.0
PRESENT_S: Final = 300.0
# Zones differ by quarters of an hour; within one, the hour of the week stays the same.
_QUARTER_S: Final = 900


@dataclass(frozen=True, slots=True)
class Patience:
    """Below `present_s` of silence the person is there, from `away_s` on they have left; in between nobody knows."""

    present_s: float
    away_s: float


class Habits:
    """One writer: the event loop. `idle_s` is how long without history a silence must be, `least_s` the shortest window."""

    def __init__(self, *, idle_s: float, least_s: float, zone: Zone, clock: Clock, history: History | None = None) -> None:
        self._idle_s = idle_s
        self._least_s = least_s
        self._zone = zone
        self._clock = clock
        self._monotonic = clock.monotonic
        self.history = History() if history is None else history
        self._last = clock.monotonic()
        self._is_fresh, self._is_spell_whole = True, False
        self._finished: list[tuple[float, float]] = []
        self._patience: tuple[float, Patience] | None = None
        self._hour: tuple[float, tzinfo, int] | None = None

    @property
    def silence_s(self) -> float:
        """How long nobody has been active, as far as we know."""
        return max(0.0, self._clock.monotonic() - self._last)

    def active(self, ago_s: float = 0.0) -> None:
        """Somebody was active so long ago. What is older than what we know is no news, but for the first word of all.

        Called from the request path: what a finished spell teaches is taken up later, by `learn`.
        """
        when = self._monotonic() - ago_s
        length_s = when - self._last
        if self._is_fresh:
            self._last, self._is_fresh, self._is_spell_whole = when, False, True
        elif length_s >= 0:
            if length_s >= SHORTEST_S and self._is_spell_whole:
                self._finished.append((self._last, length_s))
            self._last, self._is_spell_whole = when, True

    def learn(self) -> None:
        """Take up what the spells that are over teach."""
        if not self._finished:
            return
        wall, steady, zone = self._clock.now(), self._clock.monotonic(), self._zone()
        zero_s = wall.timestamp() - steady

        def local(spell: tuple[float, float]) -> datetime:
            return (wall - timedelta(seconds=steady - spell[0])).astimezone(zone)

        for _, group in groupby(self._finished, lambda spell: (zero_s + spell[0]) // _QUARTER_S):
            spells = list(group)
            # Within a quarter the hour stays the same; only where old habits fade in between does each moment matter.
            parts = [[one] for one in spells] if self.history.fades_by(local(spells[-1])) else [spells]
            for part in parts:
                self.history.add_all(local(part[0]), [length_s for _, length_s in part])
        self._finished.clear()

    def jumped(self) -> None:
        """The machine slept or its clock was set: begin to count anew, as if somebody had just been here."""
        self._finished.clear()
        self._last, self._is_fresh, self._is_spell_whole = self._clock.monotonic(), False, False

    def patience(self) -> Patience:
        """How long a silence must be now."""
        if self._patience is None or self._patience[0] != self._last:
            away_s = self._survival().patience_s(first_s=min(FIRST_S, self._idle_s), last_s=self._idle_s, least_s=self._least_s)
            self._patience = self._last, Patience(min(PRESENT_S, away_s), away_s)
        return self._patience[1]

    @property
    def are_known(self) -> bool:
        """Whether enough silences like the present one are known."""
        return self._survival().evidence(self.silence_s) >= ENOUGH

    def expected(self) -> timedelta | None:
        """How much longer the present silence is likely to last; None where too little is known."""
        survival = self._survival()
        if survival.evidence(self.silence_s) < ENOUGH:
            return None
        return timedelta(seconds=survival.room_s(self.silence_s, LIKELY))

    def room_s(self) -> float:
        """How much longer the present silence will very likely last."""
        return self._survival().room_s(self.silence_s, VERY_LIKELY)

    def _survival(self) -> Survival:
        """What is known about silences that began when this one did."""
        zone = self._zone()
        if self._hour is None or self._hour[0] != self._last or self._hour[1] is not zone:
            began = self._clock.now() - timedelta(seconds=self.silence_s)
            self._hour = self._last, zone, hour_of_week(began.astimezone(zone))
        return self.history.survival_at(self._hour[2])


class _Kept(msgspec.Struct, frozen=True):
    """A history as it is kept."""

    counts: list[list[float]]
    faded: datetime | None


def read_history(path: Path) -> History:
    """What was kept; a new one where there is none, or it cannot be read."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return History()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("history_unreadable path=%s reason=%s; habits are learned anew", path, error)
        return History()
    fresh = History()
    if len(kept.counts) != HOURS or any(len(row) != len(fresh.counts[0]) for row in kept.counts):
        log.warning("history_unreadable path=%s reason=another shape; habits are learned anew", path)
        return fresh
    return History(kept.counts, kept.faded)


def keep_history(path: Path, history: History) -> None:
    """Write it whole, for its owner only. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rounded = [[round(count, 4) for count in row] for row in history.counts]
    replace_file(path, msgspec.json.encode(_Kept(rounded, history.faded)))
