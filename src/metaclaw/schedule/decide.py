"""Whether a window is open: some signal says away, none says present, and no neighbour objects. Pure.

| away | present | objection | forecast        | cool-down | window |
|------|---------|-----------|-----------------|-----------|--------|
| none | –       | –         | –               | –         | shut   |
| some | some    | –         | –               | –         | shut   |
| some | none    | some      | –               | –         | shut   |
| some | none    | none      | below the least | –         | shut, unless it is open already |
| some | none    | none      | enough          | running   | shut   |
| some | none    | none      | enough          | over      | open   |

Presence is a veto over everything, and unknown counts for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from metaclaw.schedule.reading import Named, Presence


@dataclass(frozen=True, slots=True)
class Rules:
    """A window shorter than `least` is not opened; after one was shut by presence none opens for `cooldown`."""

    least: timedelta = timedelta(minutes=2)
    cooldown: timedelta = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything the decision depends on. `objections` are why the machine should be left alone, `expected` is how long a window
    opened now would last, None where nobody can say."""

    now: datetime
    readings: Sequence[Named]
    objections: Sequence[str] = ()
    is_open: bool = False
    shut_at: datetime | None = None
    expected: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Open or shut, and why."""

    is_open: bool
    reason: str


def decide(moment: Moment, rules: Rules) -> Decision:
    """Whether a window may be open at this moment."""
    present = [one for one in moment.readings if one.reading.presence is Presence.PRESENT]
    away = [one for one in moment.readings if one.reading.presence is Presence.AWAY]
    if present:
        return Decision(False, "; ".join(f"{one.signal}: {one.reading.why}" for one in present))
    if not away:
        return Decision(False, "nothing says that you are away")
    if moment.objections:
        return Decision(False, "; ".join(moment.objections))
    reason = "; ".join(f"{one.signal}: {one.reading.why}" for one in away)
    if moment.is_open:
        return Decision(True, reason)
    if moment.expected is not None and moment.expected < rules.least:
        return Decision(
            False, f"a window now would be over in {in_words(moment.expected)}, and {in_words(rules.least)} are the least"
        )
    if moment.shut_at is not None and timedelta(0) <= moment.now - moment.shut_at < rules.cooldown:
        return Decision(False, f"cooling down for {in_words(moment.shut_at + rules.cooldown - moment.now)}")
    return Decision(True, reason)


def in_words(span: timedelta) -> str:
    """A stretch of time for people."""
    seconds = max(0, round(span.total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"
