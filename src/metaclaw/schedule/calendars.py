"""Calendars as a signal of presence: busy means away, unless a rule about the title says
otherwise.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import anyio

from metaclaw.config import RuleConfig
from metaclaw.schedule.calendar_plugins import CalendarError, CalendarEvent
from metaclaw.schedule.presence import Presence, Reading

log = logging.getLogger(__name__)

Read = Callable[[datetime], Awaitable[Sequence[CalendarEvent]]]
_AFTER_TROUBLE_S: Final = 60.0
# The events are valid for this number of intervals after the last successful read: a few reads may
# fail.
_STALE_AFTER_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class _BusyEvent:
    event: CalendarEvent
    means: Literal["away", "present"]


@dataclass(eq=False)
class Calendar:
    """A calendar: busy means away, unless a rule about the title says otherwise. `fetch_events`
    reads its events.
    """

    name: str
    fetch_events: Read
    _: KW_ONLY
    rules: Sequence[RuleConfig]
    every: timedelta
    now: Callable[[], datetime]
    hear: Callable[[], object] = lambda: None
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def __post_init__(self) -> None:
        self._busy: tuple[_BusyEvent, ...] = ()
        self._read_at: datetime | None = None
        self._trouble: str | None = "not read yet"

    def read(self, now: datetime) -> Reading:
        """The reading by the current event."""
        if self._trouble is not None:
            return Reading(
                Presence.UNKNOWN,
                self._trouble,
                is_trouble=self._read_at is not None or self._trouble != "not read yet",
            )
        if (
            self._read_at is None
            or not timedelta(0) <= now - self._read_at <= self.every * _STALE_AFTER_LOOKS
        ):
            return Reading(Presence.UNKNOWN, "it was not read for too long", is_trouble=True)
        running = [one for one in self._busy if one.event.begins <= now < one.event.ends]
        for one in running:
            if one.means == "present":
                return Reading(Presence.PRESENT, f"{_titled(one)} means present", one.event.ends)
        if running:
            return Reading(Presence.AWAY, _titled(running[0]), self._end(now))
        coming = min(
            (
                one.event.begins
                for one in self._busy
                if one.event.begins > now and one.means == "away"
            ),
            default=None,
        )
        return Reading(Presence.UNKNOWN, "no event now", coming)

    async def follow(self) -> None:
        """Fetch it regularly, for ever."""
        while True:
            await self.look()
            wait_s = (
                self.every.total_seconds()
                if self._trouble is None
                else min(_AFTER_TROUBLE_S, self.every.total_seconds())
            )
            await self.sleep(wait_s)

    async def look(self) -> None:
        """Fetch it once; an error makes the reading unknown."""
        now = self.now()
        try:
            events = await self.fetch_events(now)
        except CalendarError as error:
            if self._trouble != str(error):
                log.warning("calendar_unreadable calendar=%s reason=%s", self.name, error)
            self._trouble = str(error)
        else:
            self._busy, self._read_at, self._trouble = tuple(self._meant(events)), now, None
        self.hear()

    def _meant(self, events: Sequence[CalendarEvent]) -> Iterator[_BusyEvent]:
        for event in sorted(events, key=lambda event: event.begins):
            title = event.title.casefold()
            rule = next((rule for rule in self.rules if rule.title.casefold() in title), None)
            if rule is None:
                yield _BusyEvent(event, "away")
            elif rule.means != "nothing":
                yield _BusyEvent(event, rule.means)

    def _end(self, now: datetime) -> datetime:
        """When the user is free again: adjacent meetings count as one."""
        end = now
        for one in self._busy:
            if one.means == "away" and one.event.begins <= end < one.event.ends:
                end = one.event.ends
        return end


def _titled(event: _BusyEvent) -> str:
    return f"busy: {event.event.title[:60]}" if event.event.title else "busy"
