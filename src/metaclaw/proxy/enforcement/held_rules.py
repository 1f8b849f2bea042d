"""Whether tool calls break the rules that hold them.

Most calls have nothing to do with most rules, which a search for certain letters shows at once. The other checks are run off the
event loop, within a bounded time; a check that cannot be run is reported.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import anyio.to_thread

from metaclaw.domain.chat import Text, ToolCall
from metaclaw.domain.check import Check, Conversation, Finding, PatternCheck, ProgramCheck, SchemaCheck
from metaclaw.domain.ids import SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.skills import (
    Screen,
    documents_at,
    examine,
    examine_all,
    texts_at,
    unread_part,
)
from metaclaw.wires import HeldCall

log = logging.getLogger(__name__)

LIMIT_S = 2.0
"""Longest that the checks of one answer may take together."""
_CHECK_LIMIT_S = 1.0
_THREADS = 4
_MOST_AT_ONCE = 200
_MOST_CHARS_AT_ONCE = 8_000
"""Rules, and characters of calls, that are looked at without a thread: reading a long script takes up to a second."""


class HeldRule(NamedTuple):
    """A rule whose violations are held. `holds_on_error`: a check that cannot be tried counts as broken. `warns`: calls that still
    break it are let through with a warning."""

    name: SkillName
    text: str
    check: Check
    is_always: bool
    holds_on_error: bool
    warns: bool
    screen: Screen | None = None
    """What a quick look goes by; None where there is none, and the check must be tried."""


class Broken(NamedTuple):
    """A rule, which calls break it (by their places), and why."""

    rule: HeldRule
    calls: frozenset[int]
    reason: str


class Ruling(NamedTuple):
    """What the rules say of the calls of one answer. `failed` are rules whose check could not be tried, with the reason."""

    broken: tuple[Broken, ...] = ()
    failed: tuple[tuple[HeldRule, str], ...] = ()


_COMPLIES = Ruling()


def _as_they_are(texts: Sequence[str]) -> Sequence[str]:
    return texts


class CallJudge:
    """Tries the checks of held rules on tool calls, off the event loop."""

    def __init__(self, redact: Callable[[Sequence[str]], Sequence[str]] = _as_they_are, limit_s: float = LIMIT_S) -> None:
        """`redact` replaces secrets in what is said of broken rules; it is called in a thread."""
        self._redact = redact
        self._limit_s = limit_s
        self._limiter: anyio.CapacityLimiter | None = None

    async def judge(
        self, rules: Sequence[HeldRule], calls: Sequence[HeldCall], text: str = "", conversation: Conversation | None = None
    ) -> Ruling:
        """Which rules the calls break. Never raises for a check."""
        parts = [ToolCall(call.id, call.name, call.arguments) for call in calls]
        if len(rules) > _MOST_AT_ONCE or sum(len(part.arguments) for part in parts) > _MOST_CHARS_AT_ONCE:
            concerned = await anyio.to_thread.run_sync(_concerned, rules, parts)
        else:
            concerned = _concerned(rules, parts)
        if not concerned:
            return _COMPLIES
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        broken: list[Broken] = []
        failed: list[tuple[HeldRule, str]] = []
        looked_at: set[SkillName] = set()
        work = partial(_try_all, concerned, parts, text, conversation or Conversation(), self._limit_s, (broken, failed, looked_at))
        try:
            async with asyncio.timeout(self._limit_s + 0.5):
                await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except TimeoutError:
            log.warning("checks_timed_out rules=%d", len(concerned) - len(looked_at))
        late = [rule for rule in concerned if rule.name not in looked_at]
        failed = [*failed, *((rule, f"there was no time to look within {self._limit_s:g} s") for rule in late)]
        everything = frozenset(range(len(parts)))
        held = [Broken(rule, everything, f"its check could not be run: {why}") for rule, why in failed if rule.holds_on_error]
        found = [*broken, *held]
        if found:
            found = await anyio.to_thread.run_sync(self._redacted, found)
        return Ruling(tuple(found), tuple(one for one in failed if not one[0].holds_on_error))

    def _redacted(self, broken: Sequence[Broken]) -> list[Broken]:
        """The same without secrets in what is told of them. Blocks."""
        texts = self._redact([text for one in broken for text in (one.rule.text, one.reason)])
        return [
            one._replace(rule=one.rule._replace(text=texts[2 * place]), reason=texts[2 * place + 1])
            for place, one in enumerate(broken)
        ]


def _concerned(rules: Sequence[HeldRule], parts: Sequence[ToolCall]) -> list[HeldRule]:
    """The rules that these calls may break, told by a quick look."""
    texts_of: dict[tuple[str, ...], str] = {}
    found = []
    for rule in rules:
        check = rule.check
        if isinstance(check, ProgramCheck):
            found.append(rule)
            continue
        tools = check.where.tools  # the place is always the calls
        text = texts_of.get(tools)
        if text is None:
            text = texts_of[tools] = "\n".join(texts_at(parts, check.where))
        may_match = bool(text) and (rule.screen is None or rule.screen.may_match((text,)))
        if may_match or (rule.holds_on_error and unread_part(parts, check.where)):
            found.append(rule)
    return found


_Findings = tuple[list[Broken], list[tuple[HeldRule, str]], set[SkillName]]


def _try_all(
    rules: Sequence[HeldRule], parts: Sequence[ToolCall], text: str, conversation: Conversation, limit_s: float, findings: _Findings
) -> None:
    """Try the checks until the time is over: patterns together, then the others in turn, each with its share. Blocks."""
    broken, failed, looked_at = findings
    until = time.monotonic() + limit_s

    def note(rule: HeldRule, outcome: Outcome | None, reason: str) -> None:
        if outcome is Outcome.FAIL:
            broken.append(Broken(rule, _culprits(rule.check, parts, until), reason))
        elif outcome is None:
            failed.append((rule, reason))
        looked_at.add(rule.name)

    patterns = [rule for rule in rules if isinstance(rule.check, PatternCheck)]
    others = [rule for rule in rules if not isinstance(rule.check, PatternCheck)]
    try:
        found = examine_all([rule.check for rule in patterns], parts, limit_s / 2 if others else limit_s)
        for rule, finding in zip(patterns, found, strict=True):
            note(rule, *_outcome(finding))
    except Exception as error:  # noqa: BLE001 - a check that breaks in a new way must not lose an answer
        failed += [(rule, f"{type(error).__name__}: {error}") for rule in patterns if rule.name not in looked_at]
        looked_at.update(rule.name for rule in patterns)
    for place, rule in enumerate(others):
        left = (until - time.monotonic()) / (len(others) - place)
        if left <= 0:
            return
        try:
            note(rule, *_try(rule.check, parts, text, conversation, min(left, _CHECK_LIMIT_S)))
        except Exception as error:  # noqa: BLE001 - as above
            failed.append((rule, f"{type(error).__name__}: {error}"))
            looked_at.add(rule.name)


def _try(
    check: Check, parts: Sequence[ToolCall], text: str, conversation: Conversation, limit_s: float
) -> tuple[Outcome | None, str]:
    """What a check says; None where it could not be tried."""
    match check:
        case SchemaCheck() if documents_at(parts, check.where) is None:
            return Outcome.PASS, ""
        case ProgramCheck():
            answer = (*((Text(text),) if text else ()), *parts)
        case _:
            answer = tuple(parts)
    return _outcome(examine(check, answer, limit_s, conversation=conversation))


def _outcome(found: Finding) -> tuple[Outcome | None, str]:
    is_untried = found.outcome is Outcome.UNKNOWN and found.score is None
    return (None if is_untried else found.outcome), found.reason


def _culprits(check: Check, parts: Sequence[ToolCall], until: float) -> frozenset[int]:
    """Which of the calls break a check that all of them together do not pass; all, where that cannot be told."""
    everything = frozenset(range(len(parts)))
    if len(parts) == 1 or isinstance(check, ProgramCheck):
        return everything
    found = []
    for place, part in enumerate(parts):
        left = until - time.monotonic()
        if left <= 0:
            return everything
        if texts_at([part], check.where) and examine(check, [part], min(left, _CHECK_LIMIT_S)).outcome is Outcome.FAIL:
            found.append(place)
    return frozenset(found) or everything
