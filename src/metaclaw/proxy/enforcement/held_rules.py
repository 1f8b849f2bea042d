"""Find the held rules that tool calls break.

Most calls have nothing to do with most rules: a quick text search (`Screen`) rules these out. The remaining checks run off the
event loop, within a time limit. A check that cannot be run is reported.
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
"""Time limit for all checks of one answer."""
_CHECK_LIMIT_S = 1.0
_THREADS = 4
_MOST_AT_ONCE = 200
_MOST_CHARS_AT_ONCE = 8_000
"""Beyond this number of rules or characters, calls are searched in a thread, because a long script takes up to a second."""


class HeldRule(NamedTuple):
    """A rule whose violations are held. `holds_on_error`: a check that cannot be run counts as broken. `warns`: calls that still
    break the rule after all retries are let through with a warning."""

    name: SkillName
    text: str
    check: Check
    is_always: bool
    holds_on_error: bool
    warns: bool
    screen: Screen | None = None
    """A quick search that rules out most calls; None if the check must always be run."""


class Broken(NamedTuple):
    """A rule, the indices of the calls that break it, and the reason."""

    rule: HeldRule
    calls: frozenset[int]
    reason: str


class Ruling(NamedTuple):
    """The rules that the calls of one answer break. `failed` are rules whose check could not be run, with the reason."""

    broken: tuple[Broken, ...] = ()
    failed: tuple[tuple[HeldRule, str], ...] = ()


_COMPLIES = Ruling()


class CallJudge:
    """Runs the checks of held rules on tool calls, off the event loop."""

    def __init__(self, redact: Callable[[Sequence[str]], Sequence[str]] = list, limit_s: float = LIMIT_S) -> None:
        """`redact` replaces secrets in the texts and reasons of broken rules; it is called in a thread."""
        self._redact = redact
        self._limit_s = limit_s
        self._limiter: anyio.CapacityLimiter | None = None

    async def judge(
        self, rules: Sequence[HeldRule], calls: Sequence[HeldCall], text: str = "", conversation: Conversation | None = None
    ) -> Ruling:
        """Find the rules that the calls break. A check that raises is reported as failed."""
        parts = [ToolCall(call.id, call.name, call.arguments) for call in calls]
        if len(rules) > _MOST_AT_ONCE or sum(len(part.arguments) for part in parts) > _MOST_CHARS_AT_ONCE:
            unscreened = await anyio.to_thread.run_sync(_may_break, rules, parts)
        else:
            unscreened = _may_break(rules, parts)
        if not unscreened:
            return _COMPLIES
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        broken: list[Broken] = []
        failed: list[tuple[HeldRule, str]] = []
        checked: set[SkillName] = set()
        work = partial(
            _run_checks, unscreened, parts, text, conversation or Conversation(), self._limit_s, (broken, failed, checked)
        )
        try:
            async with asyncio.timeout(self._limit_s + 0.5):
                await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except TimeoutError:
            log.warning("checks_timed_out rules=%d", len(unscreened) - len(checked))
        late = [rule for rule in unscreened if rule.name not in checked]
        failed = [
            *failed,
            *((rule, f"the time limit of {self._limit_s:g} s for all checks was over before it ran") for rule in late),
        ]
        all_calls = frozenset(range(len(parts)))
        held = [Broken(rule, all_calls, f"its check could not be run: {why}") for rule, why in failed if rule.holds_on_error]
        found = [*broken, *held]
        if found:
            found = await anyio.to_thread.run_sync(self._redacted, found)
        return Ruling(tuple(found), tuple(one for one in failed if not one[0].holds_on_error))

    def _redacted(self, broken: Sequence[Broken]) -> list[Broken]:
        """Replace secrets in the texts and reasons. Blocks."""
        texts = iter(self._redact([text for item in broken for text in (item.rule.text, item.reason)]))
        return [item._replace(rule=item.rule._replace(text=next(texts)), reason=next(texts)) for item in broken]


def _may_break(rules: Sequence[HeldRule], parts: Sequence[ToolCall]) -> list[HeldRule]:
    """The rules that these calls may break, by a quick search."""
    texts_of: dict[tuple[str, ...], str] = {}
    found = []
    for rule in rules:
        check = rule.check
        if isinstance(check, ProgramCheck):
            found.append(rule)
            continue
        tools = check.where.tools
        text = texts_of.get(tools)
        if text is None:
            text = texts_of[tools] = "\n".join(texts_at(parts, check.where))
        may_match = bool(text) and (rule.screen is None or rule.screen.may_match((text,)))
        if may_match or (rule.holds_on_error and unread_part(parts, check.where)):
            found.append(rule)
    return found


_Findings = tuple[list[Broken], list[tuple[HeldRule, str]], set[SkillName]]


def _run_checks(
    rules: Sequence[HeldRule], parts: Sequence[ToolCall], text: str, conversation: Conversation, limit_s: float, findings: _Findings
) -> None:
    """Run the checks until the time is over: all patterns at once, then the others one by one with equal shares. Blocks."""
    broken, failed, checked = findings
    until = time.monotonic() + limit_s

    def note(rule: HeldRule, outcome: Outcome | None, reason: str) -> None:
        if outcome is Outcome.FAIL:
            broken.append(Broken(rule, _breaking_calls(rule.check, parts, until), reason))
        elif outcome is None:
            failed.append((rule, reason))
        checked.add(rule.name)

    patterns = [rule for rule in rules if isinstance(rule.check, PatternCheck)]
    others = [rule for rule in rules if not isinstance(rule.check, PatternCheck)]
    try:
        found = examine_all([rule.check for rule in patterns], parts, limit_s / 2 if others else limit_s)
        for rule, finding in zip(patterns, found, strict=True):
            note(rule, *_outcome(finding))
    except Exception as error:  # noqa: BLE001 - an unexpected error in a check must not lose the answer
        failed += [(rule, f"{type(error).__name__}: {error}") for rule in patterns if rule.name not in checked]
        checked.update(rule.name for rule in patterns)
    for index, rule in enumerate(others):
        left = (until - time.monotonic()) / (len(others) - index)
        if left <= 0:
            return
        try:
            note(rule, *_run_check(rule.check, parts, text, conversation, min(left, _CHECK_LIMIT_S)))
        except Exception as error:  # noqa: BLE001 - as above
            failed.append((rule, f"{type(error).__name__}: {error}"))
            checked.add(rule.name)


def _run_check(
    check: Check, parts: Sequence[ToolCall], text: str, conversation: Conversation, limit_s: float
) -> tuple[Outcome | None, str]:
    """Run a check. Returns its outcome, None if it could not be run, and the reason."""
    match check:
        case SchemaCheck() if documents_at(parts, check.where) is None:
            return Outcome.PASS, ""
        case ProgramCheck():
            answer = (*((Text(text),) if text else ()), *parts)
        case _:
            answer = tuple(parts)
    return _outcome(examine(check, answer, limit_s, conversation=conversation))


def _outcome(finding: Finding) -> tuple[Outcome | None, str]:
    is_not_run = finding.outcome is Outcome.UNKNOWN and finding.score is None
    return (None if is_not_run else finding.outcome), finding.reason


def _breaking_calls(check: Check, parts: Sequence[ToolCall], until: float) -> frozenset[int]:
    """The calls that break the check, tried one by one; all calls if that cannot be found out."""
    all_calls = frozenset(range(len(parts)))
    if len(parts) == 1 or isinstance(check, ProgramCheck):
        return all_calls
    found = []
    for index, part in enumerate(parts):
        left = until - time.monotonic()
        if left <= 0:
            return all_calls
        if texts_at([part], check.where) and examine(check, [part], min(left, _CHECK_LIMIT_S)).outcome is Outcome.FAIL:
            found.append(index)
    return frozenset(found) or all_calls
