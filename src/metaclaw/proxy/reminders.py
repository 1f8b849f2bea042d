"""Reminders: one line at the end of a conversation that repeats rules that were broken lately.

A prompt that holds a rule gets a reminder of it in two cases: the rule was broken within the last
days and the request offers the tools its check looks at, or it was broken within the last weeks and
the end of the conversation names a type of file that the rule names. On one day in four, drawn for
each rule by its hash and the day, the reminder is left out, so that its effect can be measured; the
reminders of held rules are never left out. Rules with `enforce: off`, and rules whose reminders do
not help, get no reminder.

Which rules were broken is read from the store, off the request path.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

import anyio
from anyio.to_thread import run_sync

from metaclaw.clock import local_today
from metaclaw.domain.chat import Json
from metaclaw.domain.check import PatternCheck, Place, SchemaCheck, is_named, tool_class
from metaclaw.domain.compliance import (
    COMPARED_DAYS,
    CountedResult,
    ReminderState,
    RuleResult,
    measured_hash,
    reminder_effect,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.errors import SkillError, StoreError
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.skill_tool import definition_of
from metaclaw.skills import LibraryView, check_of

log = logging.getLogger(__name__)

_REFRESH_EVERY_S: Final = 30.0
_RECENT_DAYS: Final = 7
_MOST_REMINDED: Final = 3
_COMPARED_ON: Final = 4  # reminders are left out on one day in `_COMPARED_ON`
_TAIL_BYTES: Final = 8192
_BAD: Final = (RuleResult.BROKEN, RuleResult.HELD)
_FILE_TYPE: Final = re.compile(r"(?<![\w.])\*?(\.[a-z][a-z0-9]{0,5})\b")
_LEFT_WITH_PROVIDER: Final = ("previous_response_id", "conversation")


class Counts(Protocol):
    """Counts how often rules are followed and broken. Blocks; raises StoreError."""

    def counted(self, rules: None = None, since: str = "") -> list[CountedResult]: ...
    def last_broken(self, since: str = "") -> Mapping[tuple[SkillName, str], int]: ...


class Due(NamedTuple):
    """The rules to remind of in a request, and rules whose reminder is due but left out today."""

    placed: tuple[Skill, ...] = ()
    withheld: tuple[Skill, ...] = ()


class _Broken(NamedTuple):
    """A rule that was broken lately. `tools` are the tools its check looks at: empty for all, None
    if it does not check calls.
    """

    rule: Skill
    hash: str
    is_held: bool
    is_recent: bool
    tools: tuple[str, ...] | None
    file_types: "re.Pattern[bytes] | None"


_NOTHING: Final = Due()


class NoReminders:
    """For prompts without reminders."""

    broken: Final[Mapping[SkillName, object]] = {}

    def due(self, incoming: Incoming, placed: tuple[SkillName, ...]) -> Due:
        return _NOTHING


class Reminders:
    """Chooses the reminders of each request from the rules that were broken lately."""

    def __init__(
        self,
        counts: Counts,
        rules: Callable[[], LibraryView],
        today: Callable[[], date] = local_today,
    ) -> None:
        self._counts = counts
        self._rules = rules
        self._today = today
        self.broken: Mapping[SkillName, _Broken] = {}
        """The rules that were broken lately, newest first."""

    async def run(self) -> None:
        """Call `refresh` again and again until cancelled."""
        while True:
            try:
                await run_sync(self.refresh)
            except StoreError as error:
                log.debug("reminders_unread reason=%s", error)
            await anyio.sleep(_REFRESH_EVERY_S)

    def refresh(self) -> None:
        """Read which rules were broken. Blocks. Raises StoreError."""
        today, rules = self._today(), self._rules()
        since = (today - timedelta(days=COMPARED_DAYS)).isoformat()
        counted: dict[tuple[SkillName, str], list[CountedResult]] = {}
        for count in self._counts.counted(since=since):
            counted.setdefault((count.rule, count.hash), []).append(count)
        found: dict[SkillName, tuple[tuple[str, int], _Broken]] = {}
        turns = self._counts.last_broken(since)
        for (name, hash_), counts in counted.items():
            last = max((count.day for count in counts if count.result in _BAD), default="")
            rule = rules.get(name) if last else None
            if rule is None or rule.kind is not SkillKind.RULE or measured_hash(rule) != hash_:
                continue
            is_recent = last >= (today - timedelta(days=_RECENT_DAYS)).isoformat()
            broken = _broken(rule, hash_, is_recent=is_recent)
            if broken is not None and (
                broken.is_held or reminder_effect(counts).state is not ReminderState.STOPPED
            ):
                found[name] = (last, turns.get((name, hash_), 0)), broken
        newest_first = sorted(found, key=lambda name: found[name][0], reverse=True)
        self.broken = {name: found[name][1] for name in newest_first}

    def due(self, incoming: Incoming, placed: tuple[SkillName, ...]) -> Due:
        """The rules to remind of in a request whose prompt holds the `placed` ones."""
        if any(incoming.json.get(field) for field in _LEFT_WITH_PROVIDER):
            # The provider stores the history: reminders would stay in it and pile up.
            return _NOTHING
        offered = _offered(incoming)
        wanted = [
            broken
            for name, broken in self.broken.items()
            if name in placed and _matters(broken, incoming, offered)
        ]
        if not wanted:
            return _NOTHING
        rules, today = self._rules(), self._today()
        # A rule that has changed since gets no reminder until it is broken again.
        wanted = [broken for broken in wanted if rules.get(broken.rule.name) is broken.rule][
            :_MOST_REMINDED
        ]
        withheld = [
            broken for broken in wanted if not broken.is_held and is_left_out(broken.hash, today)
        ]
        return Due(
            tuple([broken.rule for broken in wanted if broken not in withheld]),
            tuple([broken.rule for broken in withheld]),
        )


def is_left_out(hash_: str, day: date) -> bool:
    """Whether reminders of a rule are left out on this day, to measure their effect."""
    digest = hashlib.blake2b(f"{hash_} {day.isoformat()}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _COMPARED_ON == 0


def _broken(rule: Skill, hash_: str, *, is_recent: bool) -> _Broken | None:
    enforce = rule.enforcement
    try:
        check = check_of(rule)
    except SkillError:
        check = None
    if enforce == "off":
        return None
    where = check.where if isinstance(check, PatternCheck | SchemaCheck) else None
    tools = None if where is None or where.place is not Place.CALLS else tuple(where.tools)
    named = set(_FILE_TYPE.findall(f"{rule.body} {rule.when}".lower()))
    file_types = (
        re.compile(
            b"(?i)(?:" + b"|".join(re.escape(suffix.encode()) for suffix in sorted(named)) + rb")\b"
        )
        if named
        else None
    )
    if not is_recent and file_types is None:
        return None
    return _Broken(rule, hash_, enforce == "hold", is_recent, tools, file_types)


def _matters(broken: _Broken, incoming: Incoming, offered: frozenset[str] | None) -> bool:
    """Whether the next answer may break the rule."""
    if broken.tools is not None and offered is not None and not _is_offered(broken.tools, offered):
        return False
    if broken.is_recent:
        return True
    return (
        broken.file_types is not None
        and broken.file_types.search(incoming.body[-_TAIL_BYTES:]) is not None
    )


def _is_offered(tools: tuple[str, ...], offered: frozenset[str]) -> bool:
    if not tools:
        return bool(offered)
    return not offered.isdisjoint(tools) or any(
        is_named(name, tool) for name in offered for tool in tools
    )


def _offered(incoming: Incoming) -> frozenset[str] | None:
    """The names and classes of the tools that a request offers; None if they may be in an item of
    the conversation.
    """
    tools = incoming.json.get("tools")
    if not isinstance(tools, list):
        return None if b'"tools"' in incoming.body else frozenset()
    return frozenset(
        known
        for tool in tools
        if isinstance(name := _name_of(definition := definition_of(tool)), str)
        for known in _names(name, _parameters_of(definition))
    )


@lru_cache(maxsize=1024)
def _names(tool: str, parameters: tuple[str, ...]) -> tuple[str, ...]:
    found = tool_class(tool, dict.fromkeys(parameters, True))
    return (tool,) if found is None else (tool, found.value)


def _parameters_of(definition: Mapping[str, Json]) -> tuple[str, ...]:
    schema = definition.get("parameters") or definition.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return tuple(properties) if isinstance(properties, dict) else ()


def _name_of(definition: Mapping[str, Json]) -> Json:
    return definition.get("name") or definition.get("type")
