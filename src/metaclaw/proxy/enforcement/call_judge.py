"""Find the held rules that tool calls break.

Most calls have nothing to do with most rules: a quick text search (`Screen`) rules these out. The
remaining checks run off the event loop, within a limit of processor time; waiting for their turn or
for a processor does not count. A check that could not be run is tried once more. If that fails,
too, the rule holds the calls as unchecked, or lets them pass if it says `on_error: pass`."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import anyio.to_thread

from metaclaw.domain.chat import Text, ToolCall
from metaclaw.domain.check import (
    Check,
    Conversation,
    Finding,
    PatternCheck,
    ProgramCheck,
    SchemaCheck,
)
from metaclaw.domain.ids import SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.proxy.enforcement.held_rules import HeldRule
from metaclaw.skills import (
    documents_at,
    examine,
    examine_all,
    texts_at,
    unread_part,
    wall_limit_s,
    work_clock,
)
from metaclaw.wires import HeldCall

log = logging.getLogger(__name__)

LIMIT_S = 2.0
"""Limit of processor time for all checks of one answer."""
_CHECK_LIMIT_S = 1.0
_THREADS = 4
_MOST_AT_ONCE = 200
_MOST_CHARS_AT_ONCE = 8_000
"""Beyond this number of rules or characters, calls are searched in a thread, because a long script
takes up to a second.
"""


class HeldCalls(NamedTuple):
    """A rule, the indices of the calls that it holds, and the reason. `is_checked`: the calls break
    the rule; otherwise its check could not be run, and it is not known whether they do."""

    rule: HeldRule
    calls: frozenset[int]
    reason: str
    is_checked: bool = True


class Ruling(NamedTuple):
    """The rules that hold calls of one answer. `passed` are rules whose check could not be run and
    that let the calls pass, with the reason."""

    held: tuple[HeldCalls, ...] = ()
    passed: tuple[tuple[HeldRule, str], ...] = ()


_COMPLIES = Ruling()


class _Findings(NamedTuple):
    """The results of checks. `failed` are checks that may succeed if they are tried again,
    `undecided` those that cannot read the calls; both with the reason."""

    broken: list[HeldCalls]
    failed: dict[SkillName, str]
    undecided: dict[SkillName, str]


class CallJudge:
    """Runs the checks of held rules on tool calls, off the event loop."""

    def __init__(
        self, redact: Callable[[Sequence[str]], Sequence[str]] = list, limit_s: float = LIMIT_S
    ) -> None:
        """`redact` replaces secrets in the texts and reasons of broken rules; it is called in a
        thread.
        """
        self._redact = redact
        self._limit_s = limit_s
        self._limiter: anyio.CapacityLimiter | None = None

    async def judge(
        self,
        rules: Sequence[HeldRule],
        calls: Sequence[HeldCall],
        text: str = "",
        conversation: Conversation | None = None,
    ) -> Ruling:
        """Find the rules that hold the calls."""
        parts = [ToolCall(call.id, call.name, call.arguments) for call in calls]
        if (
            len(rules) > _MOST_AT_ONCE
            or sum(len(part.arguments) for part in parts) > _MOST_CHARS_AT_ONCE
        ):
            unscreened = await anyio.to_thread.run_sync(_may_break, rules, parts)
        else:
            unscreened = _may_break(rules, parts)
        if not unscreened:
            return _COMPLIES
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        run = partial(
            self._run, parts=parts, text=text, conversation=conversation or Conversation()
        )
        broken, failed, undecided = await run(unscreened)
        if failed:
            again = await run([rule for rule in unscreened if rule.name in failed])
            broken, failed, undecided = (
                [*broken, *again.broken],
                again.failed,
                undecided | again.undecided,
            )
        unchecked = undecided | failed
        all_calls = frozenset(range(len(parts)))
        reasons = [(rule, unchecked[rule.name]) for rule in unscreened if rule.name in unchecked]
        held = [
            *broken,
            *(
                HeldCalls(rule, all_calls, why, is_checked=False)
                for rule, why in reasons
                if rule.holds_on_error
            ),
        ]
        if held:
            held = await anyio.to_thread.run_sync(self._redacted, held)
        return Ruling(
            tuple(held), tuple((rule, why) for rule, why in reasons if not rule.holds_on_error)
        )

    async def _run(
        self,
        rules: Sequence[HeldRule],
        *,
        parts: Sequence[ToolCall],
        text: str,
        conversation: Conversation,
    ) -> _Findings:
        """Run the checks of these rules in a thread, when it is their turn."""
        assert self._limiter is not None
        work = partial(_run_checks, rules, parts, text, conversation, self._limit_s)
        most_s = 2 * wall_limit_s(self._limit_s)
        async with self._limiter:
            # This limit is for a thread that hangs: checks have limits of their own.
            with anyio.move_on_after(most_s):
                return await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
                )
        log.warning("checks_timed_out rules=%d", len(rules))
        return _Findings(
            [],
            dict.fromkeys(
                (rule.name for rule in rules), f"all checks took longer than {most_s:g} s"
            ),
            {},
        )

    def _redacted(self, held: Sequence[HeldCalls]) -> list[HeldCalls]:
        """Replace secrets in the texts and reasons. Blocks."""
        texts = iter(
            self._redact([text for item in held for text in (item.rule.text, item.reason)])
        )
        return [
            item._replace(rule=item.rule._replace(text=next(texts)), reason=next(texts))
            for item in held
        ]


def _may_break(rules: Sequence[HeldRule], parts: Sequence[ToolCall]) -> list[HeldRule]:
    """The rules that these calls may break, by a quick search."""
    texts_of: dict[tuple[str, ...], str] = {}
    unread_of: dict[tuple[str, ...], str] = {}
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
        if bool(text) and (rule.screen is None or rule.screen.may_match((text,))):
            found.append(rule)
        elif rule.holds_on_error:
            if tools not in unread_of:
                unread_of[tools] = unread_part(parts, check.where)
            if unread_of[tools]:
                found.append(rule)
    return found


def _run_checks(
    rules: Sequence[HeldRule],
    parts: Sequence[ToolCall],
    text: str,
    conversation: Conversation,
    limit_s: float,
) -> _Findings:
    """Run the checks until their processor time is over: all patterns at once, then the others one
    by one with equal shares. Blocks."""
    findings = _Findings([], {}, {})
    until, stuck_at = work_clock() + limit_s, time.monotonic() + wall_limit_s(limit_s)

    def note(rule: HeldRule, finding: Finding) -> None:
        if finding.outcome is Outcome.FAIL:
            findings.broken.append(
                HeldCalls(rule, _breaking_calls(rule.check, parts, until), finding.reason)
            )
        elif finding.has_failed:
            findings.failed[rule.name] = finding.reason
        elif finding.is_undecided:
            findings.undecided[rule.name] = finding.reason

    patterns = [rule for rule in rules if isinstance(rule.check, PatternCheck)]
    others = [rule for rule in rules if not isinstance(rule.check, PatternCheck)]
    try:
        found = examine_all(
            [rule.check for rule in patterns], parts, limit_s / 2 if others else limit_s
        )
        for rule, finding in zip(patterns, found, strict=True):
            note(rule, finding)
    except Exception as error:  # noqa: BLE001 - an unexpected error in a check must not lose the answer
        seen = {one.rule.name for one in findings.broken}
        findings.failed.update(
            (rule.name, f"{type(error).__name__}: {error}")
            for rule in patterns
            if rule.name not in seen
        )
    for index, rule in enumerate(others):
        left = (until - work_clock()) / (len(others) - index)
        if left <= 0 or time.monotonic() > stuck_at:
            findings.failed[rule.name] = (
                f"the time limit of {limit_s:g} s for all checks was over before it ran"
            )
            continue
        try:
            note(rule, _run_check(rule.check, parts, text, conversation, min(left, _CHECK_LIMIT_S)))
        except Exception as error:  # noqa: BLE001 - as above
            findings.failed[rule.name] = f"{type(error).__name__}: {error}"
    return findings


def _run_check(
    check: Check, parts: Sequence[ToolCall], text: str, conversation: Conversation, limit_s: float
) -> Finding:
    match check:
        case SchemaCheck() if documents_at(parts, check.where) is None:
            return Finding(Outcome.PASS, "")
        case ProgramCheck():
            answer = (*((Text(text),) if text else ()), *parts)
        case _:
            answer = tuple(parts)
    return examine(check, answer, limit_s, conversation=conversation)


def _breaking_calls(check: Check, parts: Sequence[ToolCall], until: float) -> frozenset[int]:
    """The calls that break the check, tried one by one; all calls if that cannot be found out."""
    all_calls = frozenset(range(len(parts)))
    if len(parts) == 1 or isinstance(check, ProgramCheck):
        return all_calls
    found = []
    for index, part in enumerate(parts):
        left = until - work_clock()
        if left <= 0:
            return all_calls
        if (
            texts_at([part], check.where)
            and examine(check, [part], min(left, _CHECK_LIMIT_S)).outcome is Outcome.FAIL
        ):
            found.append(index)
    return frozenset(found) or all_calls
