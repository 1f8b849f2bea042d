"""Calendars as a signal: busy means away, unless a rule about the title says otherwise."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import anyio

from metaclaw.config import RuleConfig
from metaclaw.schedule.calendars.event import CalendarError, Event
from metaclaw.schedule.reading import Presence, Reading

log = logging.getLogger(__name__)

Read = Callable[[datetime], Awaitable[Sequence[Event]]]
_AFTER_TROUBLE_S: Final = 60.0
# How long after the last good look what a calendar said still counts: a few looks may fail.
_STALE_AFTER_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class _Busy:
    event: Event
    means: Literal["away", "present"]


class Calendar:
    """A signal. `read` asks the calendar itself; `now` is the wall's clock."""

    def __init__(
        self,
        name: str,
        read: Read,
        *,
        rules: Sequence[RuleConfig],
        every: timedelta,
        now: Callable[[], datetime],
        hear: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.name = name
        self._read_events = read
        self._rules = tuple(rules)
        self._every = every
        self._now = now
        self.hear = hear
        self._sleep = sleep
        self._busy: tuple[_Busy, ...] = ()
        self._read_at: datetime | None = None
        self._trouble: str | None = "not read yet"

    def read(self, now: datetime) -> Reading:
        """What the person is doing according to it."""
        if self._trouble is not None:
            return Reading(Presence.UNKNOWN, self._trouble, is_trouble=self._read_at is not None or self._trouble != "not read yet")
        if self._read_at is None or not timedelta(0) <= now - self._read_at <= self._every * _STALE_AFTER_LOOKS:
            return Reading(Presence.UNKNOWN, "it was not read for too long", is_trouble=True)
        running = [one for one in self._busy if one.event.begins <= now < one.event.ends]
        for one in running:
            if one.means == "present":
                return Reading(Presence.PRESENT, f"{_titled(one)} means present", one.event.ends)
        if running:
            return Reading(Presence.AWAY, _titled(running[0]), self._end(now))
        coming = min((one.event.begins for one in self._busy if one.event.begins > now and one.means == "away"), default=None)
        return Reading(Presence.UNKNOWN, "no event now", coming)

    async def follow(self) -> None:
        """Read it again and again."""
        while True:
            await self.look()
            wait_s = self._every.total_seconds() if self._trouble is None else min(_AFTER_TROUBLE_S, self._every.total_seconds())
            await self._sleep(wait_s)

    async def look(self) -> None:
        """Read it once; trouble makes it unknown, and changes nothing else."""
        now = self._now()
        try:
            events = await self._read_events(now)
        except CalendarError as error:
            if self._trouble != str(error):
                log.warning("calendar_unreadable calendar=%s reason=%s", self.name, error)
            self._trouble = str(error)
        else:
            self._busy, self._read_at, self._trouble = tuple(self._meant(events)), now, None
        self.hear()

    def _meant(self, events: Sequence[Event]) -> Iterator[_Busy]:
        for event in sorted(events, key=lambda one: one.begins):
            title = event.title.casefold()
            rule = next((one for one in self._rules if one.title.casefold() in title), None)
            if rule is None:
                yield _Busy(event, "away")
            elif rule.means != "nothing":
                yield _Busy(event, rule.means)

    def _end(self, now: datetime) -> datetime:
        """When the person is free again: meetings without a pause are one."""
        end = now
        for one in self._busy:
            if one.means == "away" and one.event.begins <= end < one.event.ends:
                end = one.event.ends
        return end


def _titled(one: _Busy) -> str:
    return f"busy: {one.event.title[:60]}" if one.event.title else "busy"
