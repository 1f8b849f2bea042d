"""Format numbers, times and charts for the pages."""

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

from metaclaw.clock import local_today, utc_now
from metaclaw.domain import status as wording
from metaclaw.domain.turn import TurnEnd
from metaclaw.store import ProviderCall

_UNITS = ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86_400.0, "h", 3600.0))


def moment(value: object) -> datetime | None:
    """A datetime or ISO text as a datetime in local time; None for anything else."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value.astimezone() if isinstance(value, datetime) else None


def ago(value: object, now: datetime | None = None) -> str:
    """How long ago an instant was, in words."""
    at = moment(value)
    if at is None:
        return "never"
    seconds = ((now or utc_now()) - at).total_seconds()
    if seconds < 45:
        return "just now"
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} min ago"
    if seconds < 86_400:
        return f"{round(seconds / 3600)} h ago"
    days = round(seconds / 86_400)
    if days == 1:
        return "yesterday"
    return f"{days} days ago" if days < 31 else f"{at:%-d %b %Y}"


def clock(value: object) -> str:
    """An instant as day and time."""
    at = moment(value)
    return "" if at is None else f"{at:%a %-d %b %Y, %H:%M}"


def day_name(value: object, today: date | None = None) -> str:
    """The day of an instant: Today, Yesterday, a weekday or a date."""
    at = moment(value)
    if at is None:
        return "Before"
    days = ((today or local_today()) - at.date()).days
    if days in (0, 1):
        return "Yesterday" if days else "Today"
    return f"{at:%A}" if days < 7 else f"{at:%-d %B %Y}"


def count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def tokens(value: object) -> str:
    """A number of tokens, shortened."""
    if not isinstance(value, int):
        return "–"
    if value < 10_000:
        return f"{value:,}"
    return f"{value / 1000:,.0f}k" if value < 1_000_000 else f"{value / 1e6:,.1f}M"


def money(sums: Mapping[str, Any], key: str = "cost") -> str:
    """The cost of a sum of the API in dollars; tokens without a known price are named."""
    return wording.money(sums[key], sums.get("unpriced_tokens"))


def seconds(value: object) -> str:
    if not isinstance(value, int | float):
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    for most, unit, size in _UNITS:
        if value < most:
            return (
                f"{value / size:.1f} {unit}" if value / size < 10 else f"{value / size:.0f} {unit}"
            )
    return f"{value / 86_400:.1f} days"


def amount(value: object, unit: str) -> str:
    """A number of a plot or figure: a count, a share, tokens, money or seconds."""
    if not isinstance(value, int | float):
        return "–"
    match unit:
        case "share":
            return f"{100 * value:.{int(0 < value < 0.1)}f} %"
        case "money":
            return wording.money(value)
        case "seconds":
            return seconds(value) if value else "0"
        case "tokens":
            return tokens(round(value))
        case "number":
            return f"{value:.2f}"
    return count(round(value))


_PERIODS: Final = {
    "day": ("yesterday", "the day before", "today so far"),
    "week": ("last week", "the week before", "this week so far"),
    "month": ("last month", "the month before", "this month so far"),
}


def compared(figure: Mapping[str, Any], by: str) -> dict[str, Any]:
    """A figure of the last whole period beside those of the one before and of the present one; parts
    as shares. What changed by less than a twentieth is the same.
    """
    of, unit, names = (
        figure["of"],
        figure["unit"] if figure["of"] is None else "share",
        _PERIODS[by],
    )

    def size(at: int) -> float | None:
        value = figure["values"][at]
        if of is None:
            return None if value is None else float(value)
        return float(value / of[at]) if of[at] else None

    now, before, change = size(-2), size(-3), ""
    if figure["good"] and now is not None and before is not None:
        change = "better" if (now > before) == (figure["good"] == "up") else "worse"
        change = "the same" if abs(now - before) <= before / 20 else change
    return {
        "name": figure["name"],
        "when": names[0],
        "now": amount(now, unit),
        "part": f"{count(round(figure['values'][-2]))} of {count(round(of[-2]))}"
        if of and of[-2]
        else "",
        "change": change,
        "others": [(names[1], amount(before, unit)), (names[2], amount(size(-1), unit))],
    }


def plural(number: object, word: str) -> str:
    """A number with its noun."""
    return f"{count(number)} {word if number == 1 else word + 's'}"


def differences(before: str, after: str) -> list[tuple[str, str]]:
    """Compare two texts line by line: each line is marked `add`, `del` or `same`."""
    found: list[tuple[str, str]] = []
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line[:1] in "+- ":
            found.append(({"+": "add", "-": "del", " ": "same"}[line[0]], line[2:]))
    return found


_SIGNALS = {
    "accepted.excused": "the person took the blame",
    "accepted.praise": "the person praised it",
    "accepted.thanks": "the person said thanks",
    "accepted": "the person agreed",
    "apology": "the agent apologised for it",
    "check": "a check of a rule or skill",
    "correction": "the person corrected it",
    "ending.cut": "the answer broke off",
    "ending.empty": "the answer was empty",
    "ending.refusal": "the model refused",
    "environment": "the network, a quota, a missing program or the like was at fault",
    "exception": "a program raised an exception",
    "exit": "a command failed",
    "hollow": "it had no effect",
    "interrupt": "the person interrupted it",
    "progress.tools": "the work went on with its tool calls",
    "progress": "the person went on to something else",
    "redo": "the same was asked for again",
    "repeat": "the agent repeated the same call",
    "reply.changed": "the person changed their mind",
    "reply.doubts": "the person asked why",
    "reply.rule": "the person stated a new rule, which says nothing about this answer",
    "reply": "the words of the person do not tell whether it was good",
    "schema": "a tool refused its arguments",
    "tests.failed": "tests failed after it",
    "tests.passed": "tests passed after it",
    "tool_error": "a tool reported an error",
    "undone": "the work was undone",
}


def signal(detector: object) -> str:
    """A detector's signal in words."""
    name = str(detector)
    known = next(
        (
            words
            for start, words in _SIGNALS.items()
            if name == start or name.startswith((f"{start}.", f"{start}_"))
        ),
        None,
    )
    return known or name.replace("_", " ").replace(".", ": ")


def audience(scope: object) -> str:
    """The audience of a rule or skill in words."""
    return f"for {wording.audience(scope)}"


_SITUATION: Final = re.compile(
    r"(?i)(when|whenever|while|if|unless|before|after|during|until|once|for|in|on|at|with)\s"
)


def situation(when: object) -> str:
    """When a rule applies, in words: people and models write `reviewing`, `When reviewing` or `in
    reviews`.
    """
    text = str(when)
    return text[0].lower() + text[1:] if _SITUATION.match(text) else f"when {text}"


def project(path: object) -> str:
    """A project by the last part of its path."""
    return str(path).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or str(path)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The quantile of the values at this share; None if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


DAYS: Final = 14
"""The number of days on the cost page."""


def provider_use(calls: Sequence[ProviderCall]) -> list[dict[str, Any]]:
    """Answers, errors and latency by provider."""
    groups: dict[str, list[ProviderCall]] = {}
    for call in calls:
        groups.setdefault(call.provider, []).append(call)
    found: list[dict[str, Any]] = []
    for name, group in groups.items():
        failed = [call for call in group if call.end is TurnEnd.FAILED]
        answered = [call for call in group if call.end is TurnEnd.COMPLETED]
        firsts = [call.first_byte_s for call in answered if call.first_byte_s is not None]
        found.append(
            {
                "name": name,
                "answers": len(group),
                "errors": len(failed),
                "last_error": failed[0].error if failed else None,
                "first_s": quantile(firsts, 0.5),
                "median_s": quantile([call.duration_s for call in answered], 0.5),
                "slow_s": quantile([call.duration_s for call in answered], 0.95),
                "used_models": sorted({call.model for call in group})[:6],
            }
        )
    return found


def week_of(
    events: Sequence[tuple[datetime, str, Mapping[str, Any]]], now: datetime
) -> list[dict[str, Any]]:
    """The windows of the last seven days: for each day the open periods as percentages of the day,
    and why they ended.
    """
    periods: list[tuple[datetime, datetime, str]] = []
    for at, kind, data in events:
        opened = moment(data.get("opened"))
        if kind == "window.shut" and opened is not None:
            periods.append((opened, at.astimezone(), str(data.get("why") or "")))
    days: list[dict[str, Any]] = []
    for back in range(7):
        begin = (now.astimezone() - timedelta(days=back)).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        end = begin + timedelta(days=1)
        mine = [
            (max(begin, since), min(end, until), why)
            for since, until, why in periods
            if since < end and until > begin
        ]
        days.append(
            {
                "day": begin,
                "windows": [
                    {
                        "from": since,
                        "to": until,
                        "why": why,
                        "x": 100 * (since - begin).total_seconds() / 86_400,
                        "w": max(0.4, 100 * (until - since).total_seconds() / 86_400),
                    }
                    for since, until, why in reversed(mine)
                ],
            }
        )
    return days
