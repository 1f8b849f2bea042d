"""Numbers, times and evidence as the pages write them."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from metaclaw.domain import wording

_UNITS = ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86_400.0, "h", 3600.0))


def moment(value: object) -> datetime | None:
    """An instant from what the API or the store gives, in local time."""
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
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    if seconds < 45:
        return "just now"
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} min ago"
    if seconds < 86_400:
        return f"{round(seconds / 3600)} h ago"
    days = round(seconds / 86_400)
    return "yesterday" if days == 1 else f"{days} days ago" if days < 31 else f"{at:%-d %b %Y}"


def clock(value: object) -> str:
    """An instant as day and time."""
    at = moment(value)
    return "" if at is None else f"{at:%a %-d %b %Y, %H:%M}"


def day_name(value: object, today: date | None = None) -> str:
    """The day of an instant as people call it."""
    at = moment(value)
    if at is None:
        return "Before"
    days = ((today or datetime.now().astimezone().date()) - at.date()).days
    return "Today" if days == 0 else "Yesterday" if days == 1 else f"{at:%A}" if days < 7 else f"{at:%-d %B %Y}"


def count(value: object) -> str:
    """A whole number with separators."""
    return f"{value:,}" if isinstance(value, int) else "–"


def tokens(value: object) -> str:
    """A number of tokens, shortened."""
    if not isinstance(value, int):
        return "–"
    if value < 10_000:
        return f"{value:,}"
    return f"{value / 1000:,.0f}k" if value < 1_000_000 else f"{value / 1e6:,.1f}M"


def money(sums: Mapping[str, Any], key: str = "cost") -> str:
    """The dollars of a sum of the API, and that tokens without a price are not in them."""
    return wording.money(sums[key], sums.get("unpriced_tokens"))


def dollars(value: object) -> str:
    """Dollars; small sums with more digits."""
    return wording.money(value)


def seconds(value: object) -> str:
    """A duration."""
    if not isinstance(value, int | float):
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    for most, unit, size in _UNITS:
        if value < most:
            return f"{value / size:.1f} {unit}" if value / size < 10 else f"{value / size:.0f} {unit}"
    return f"{value / 86_400:.1f} days"


def plural(number: object, word: str) -> str:
    """A number with its noun."""
    return f"{count(number)} {word if number == 1 else word + 's'}"


def evidence(certificate: Mapping[str, Any] | None) -> str:
    """A certificate in words."""
    if not certificate:
        return ""
    wins, losses, regressions = certificate["wins"], certificate["losses"], certificate["regressions"]
    tried = wins + losses + certificate["ties"] + certificate["undecided"]
    if not tried:
        return "not tried on recorded turns"
    broken = losses + regressions
    harm = "broke nothing" if not broken else f"broke {broken} that had passed"
    return f"fixed the failure in {wins} of {tried} replays and {harm}"


def uplift(worth: Mapping[str, Any] | None) -> str:
    """The measured uplift of a skill in words."""
    if not worth or worth.get("estimate") is None or not worth.get("interval"):
        return ""
    low, high = worth["interval"]
    tasks = worth["placed"] + worth["withheld"]
    if low > 0:
        return f"helps in live use: {worth['estimate']:+.0%} passes over {plural(tasks, 'task')}"
    if high < 0:
        return f"harms in live use: {worth['estimate']:+.0%} passes over {plural(tasks, 'task')}"
    return f"no difference shown yet over {plural(tasks, 'task')} in live use"


def agent(name: object) -> str:
    """The name of an agent; one that the proxy does not recognise has none."""
    return wording.agent_word(name)


def followed(compliance: Mapping[str, Any] | None) -> str:
    """How often a rule was followed, in words."""
    if not compliance or not compliance.get("applied"):
        return ""
    known = compliance.get("followed", 0) + compliance.get("broken", 0)
    if not known:
        return f"applied to {plural(compliance['applied'], 'answer')}, none of which could be checked"
    held = f", {compliance['held']} held back" if compliance.get("held") else ""
    return f"followed in {compliance.get('followed', 0)} of {plural(known, 'turn')}{held}"


def least_followed(by_agent: Mapping[str, Mapping[str, int]] | None) -> str:
    """The agent that follows a rule least, in words; empty where no agent follows it less than the others."""
    known = {agent: (one["followed"], one["followed"] + one["broken"]) for agent, one in (by_agent or {}).items()}
    shares = {agent: followed / turns for agent, (followed, turns) in known.items() if turns}
    if len(set(shares.values())) < 2:
        return ""
    worst = min(shares, key=lambda agent: shares[agent])
    followed, turns = known[worst]
    return f"{agent(worst)} in {followed} of {turns}"


def differences(before: str, after: str) -> list[tuple[str, str]]:
    """Two texts line by line: each line with `add`, `del` or `same`."""
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
    known = next((words for start, words in _SIGNALS.items() if name == start or name.startswith((f"{start}.", f"{start}_"))), None)
    return known or name.replace("_", " ").replace(".", ": ")


def judged_by(source: object) -> str:
    """The source of a verdict in words."""
    return wording.source_words(source)


def outcome(value: object) -> str:
    """A verdict's outcome in words."""
    return wording.outcome_word(value)


def reason(value: object) -> str:
    """Why a generation was made, in words."""
    return wording.reason_words(value)


def audience(scope: object) -> str:
    """For whom a rule or skill is, in words."""
    return f"for {wording.audience(scope)}"


def project(path: object) -> str:
    """A project by the last part of its path."""
    return str(path).rstrip("/\\").replace("\\", "/").rpartition("/")[2] or str(path)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
