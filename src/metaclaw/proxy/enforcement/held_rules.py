"""The rules that hold a request's tool calls: which ones hold, whether calls break them, and what is told of it.

Most calls have nothing to do with most rules, which a search for certain letters shows at once. The other checks are run off the
event loop, within a bounded time; a check that cannot be run is reported.

While any rule holds, a built-in one does too: an agent does not lift, change or stop the rules itself. For that rule a request
counts only where it goes to this program: by its port, its key in the path, or a variable that points agents at it. Other servers
have a path `/api/rules`, too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from functools import lru_cache, partial
from typing import Final, NamedTuple

import anyio
import anyio.to_thread

from metaclaw.domain.chat import Json, Text, ToolCall
from metaclaw.domain.check import Check, Conversation, Finding, PatternCheck, Place, ProgramCheck, SchemaCheck, Where
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillKind
from metaclaw.domain.turn import KEEP_RULES, Origin, Scope, Stamp, TrueAnswer, Turn
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.proxy.enforcement.true_answers import TrueAnswers
from metaclaw.proxy.http.client import Incoming
from metaclaw.skills import (
    ALWAYS,
    LibraryView,
    Screen,
    Teams,
    can_hold,
    check_of,
    documents_at,
    examine,
    examine_all,
    rule_text,
    rule_when,
    screen_of,
    texts_at,
    unread_part,
)
from metaclaw.wires import HeldCall, wire_format

log = logging.getLogger(__name__)

LIMIT_S = 2.0
"""Longest that the checks of one answer may take together."""
_CHECK_LIMIT_S = 1.0
_THREADS = 4
_MOST_AT_ONCE = 200
_MOST_CHARS_AT_ONCE = 8_000
"""Rules, and characters of calls, that are looked at without a thread: reading a long script takes up to a second."""
_CACHED = 256


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


_DEFAULT_PORT = 30000
_COMMANDS = (
    r"(?:metaclaw|python[\d.]* -m ?metaclaw[\w.]*) (?!.* --help$)(?:-\S+ )*(?:(?:enforce (?:-\S+ )*off|undo|stop|rollback"
    r"|service (?:-\S+ )*remove"
    r"|rules (?:-\S+ )*(?:remove|edit|import)|skills (?:-\S+ )*(?:remove|retire|revert|rollback|edit|import)"
    r"|sessions (?:-\S+ )*forget|store (?:-\S+ )*(?:restore|repair)|agents (?:-\S+ )*disconnect)(?=\s|$)"
    r"|config (?:-\S+ )*set (?:-\S+ )*(?:proxy\.enforce|skills\.)|[^|;&]*--set[ =]proxy\.enforce)"
    r"|(?:export )?METACLAW__PROXY__ENFORCE"
)
_PROCESSES = (
    r"(?:pkill|killall|kill|taskkill|stop-process) [^|;&]*metaclaw"
    r"|(?:systemctl|launchctl|service|docker|podman|supervisorctl|pm2|tmux|screen) (?:.*? )?"
    r"(?:stop|kill-session|quit|disable|kill|mask|rm|remove"
    r"|unload|bootout|delete) "
    r"(?:.*? )?\S*metaclaw|(?:fuser -k\S* (?:.*? )?{port}/tcp|kill .*:{port}\b|kill-port (?:.*? )?{port}\b)"
)
_FILES = (
    r"(?:rm|mv|truncate|unlink|shred|chmod|ln|unzip|yq -i|sed -i|perl -pi|tar (?:.*? )?-C) (?:.*? )?"
    r"\S*(?:\.metaclaw|METACLAW_HOME)(?:\W|$)|find (?:.*? )?\S*\.metaclaw.* -(?:exec|delete)"
    r"|[^\n]*\.metaclaw/(?:config\.toml|skills/[^\n]*)\n"
)
_REQUESTS = (
    r"(?:request (?:POST|PUT|PATCH|DELETE) |(?i:curl|wget|https?|xh|irm|iwr|invoke-\w+)"
    r"(?=.*(?:(?i: -X ?| --request[ =]| --method[ =]| -Method )[\"']?(?i:POST|PUT|PATCH|DELETE)| -d| --data| --json"
    r"| -F | --form| --post-data"
    r"| --body-data|POST |PUT |PATCH |DELETE | \S+:?=\S)) )(?:.*[\s\"'=/@])?"
    r"(?:[^\s\"'/]*:{port}|[^\s/]*(?:ANTHROPIC|OPENAI|METACLAW)_?\w*[^\s/]*|[^\s\"']*/k/[^/\s]+)(?:/[^\s/]+)*?"
    r"/api/(?:enforce|rules|undo|generations/revert|skills/[^/\s]+/(?:retire|restore)|skills/[^/\s?]+(?=[\s\"'?]|$)"
    r"|sessions/[^/\s]+/forget)\b"
)
_PIPED_INTO_KILL = (
    r"\b(?:pgrep|pidof|ps|lsof|ss|netstat|cat|jq)\b[^;&\n]*(?:\[?m\]?etaclaw|\b{port}\b)[^;&\n]*"
    r"\| *(?:xargs )?(?:\S+ )*kill(?=\s|$|;|\n)"
)


@lru_cache(16)
def keep_rules(port: int) -> HeldRule:
    """The built-in rule of a program that listens on this port."""
    pattern = f"(?s)^(?:{'|'.join((_COMMANDS, _PROCESSES, _FILES, _REQUESTS))})|{_PIPED_INTO_KILL}".replace("{port}", str(port))
    text = "An agent does not lift, change or remove the rules of the person it works for."
    check = PatternCheck(pattern, must_match=False, where=Where(Place.CALLS, "shell|edit"))
    return HeldRule(SkillName(KEEP_RULES), text, check, True, False, False, screen_of(pattern))


_NONE: tuple[HeldRule, ...] = ()
_COMPLIES = Ruling()


class HeldRules:
    """Which rules hold, for each speaker."""

    def __init__(
        self,
        view: Callable[[], LibraryView],
        teams: Teams | None = None,
        today: Callable[[], date] = date.today,
        port: int = _DEFAULT_PORT,
    ) -> None:
        """`port` is the one this program listens on: requests to it are told from those to other servers."""
        self._view = view
        self._port = port
        self._teams = teams
        self._today = today
        self._seen: LibraryView | None = None
        self._held: dict[str, HeldRule] = {}
        self._scoped: dict[int, tuple[object, tuple[HeldRule, ...], frozenset[SkillName]]] = {}

    def for_speaker(self, scope: Scope, placed: Sequence[SkillName]) -> tuple[HeldRule, ...]:
        """The held rules in force for this speaker: those for every task, and of the others those placed in the prompt."""
        view = self._view()
        if view is not self._seen:
            self._seen, self._scoped = view, {}
            self._held = {rule.name: rule for skill in view.skills if (rule := held_rule(skill)) is not None}
        if not self._held:
            return _NONE
        speaker = view.in_scope(scope, self._teams, self._today())
        known = self._scoped.get(id(speaker))
        if known is None or known[0] is not speaker:
            mine = (*speaker.rules, *speaker.always)
            rules = tuple(self._held[skill.name] for skill in mine if skill.name in self._held)
            known = (speaker, rules, frozenset(rule.name for rule in rules))
            if len(self._scoped) >= _CACHED:
                self._scoped.clear()
            self._scoped[id(speaker)] = known
        found = self._placed(known[1], known[2], placed)
        return (*found, keep_rules(self._port)) if found else _NONE

    def _placed(
        self, in_force: tuple[HeldRule, ...], names: frozenset[SkillName], placed: Sequence[SkillName]
    ) -> tuple[HeldRule, ...]:
        """Those for every task, and of the others those placed in the prompt."""
        if names.issuperset(name for name in placed if name in self._held) and all(rule.is_always for rule in in_force):
            return in_force
        found = [rule for rule in in_force if rule.is_always or rule.name in placed]
        names = frozenset(rule.name for rule in found)
        return (*found, *(self._held[name] for name in placed if name in self._held and name not in names))


def held_rule(skill: Skill) -> HeldRule | None:
    """The held rule that a skill is, if it is one: a person's, with `enforce: hold` and a check of tool calls that is settled."""
    if skill.extra.get("enforce") != "hold" or skill.author is Authorship.EVOLVER or skill.extra.get("check_state") == "proposed":
        return None
    if not can_hold(skill):
        return None
    try:
        check = check_of(skill)
    except SkillError as error:
        log.warning("rule_cannot_hold rule=%s reason=%s", skill.name, error)
        return None
    if check is None or (not isinstance(check, ProgramCheck) and check.where.place is not Place.CALLS):
        return None
    is_always = skill.applies_always or (skill.kind is not SkillKind.SKILL and rule_when(skill) == ALWAYS)
    on_error, on_break = skill.extra.get("on_error"), skill.extra.get("on_break")
    screen = screen_of(check.pattern) if isinstance(check, PatternCheck) and not check.must_match else None
    return HeldRule(skill.name, rule_text(skill), check, is_always, on_error == "hold", on_break == "call", screen)


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


OPT_OUT: Final = "x-metaclaw-enforce"
_KEPT_ELSEWHERE: Final = "the provider keeps the conversation, or answers in the background"


class Enforcer:
    """Knows which rules hold, whether enforcement is on, and what became of answers that were held."""

    def __init__(
        self,
        rules: HeldRules,
        answers: TrueAnswers | None = None,
        *,
        judge: CallJudge | None = None,
        may_opt_out: bool = False,
        announce: Callable[[str, dict[str, Json]], Awaitable[bool]] | None = None,
    ) -> None:
        self.answers = answers or TrueAnswers()
        self.judge = judge or CallJudge()
        self.is_on = True
        self._rules = rules
        self._may_opt_out = may_opt_out
        self._announce = announce

    def rules_for(self, incoming: Incoming, origin: Origin, stamp: Stamp) -> tuple[HeldRule, ...]:
        """The rules that hold this request's calls."""
        if not self.is_on:
            return ()
        rules = self._rules.for_speaker(origin.scope, stamp.skills)
        has_opted_out = rules and self._may_opt_out and incoming.headers.get(OPT_OUT, "").lower() == "off"
        return () if has_opted_out else rules

    @staticmethod
    def can_hold(incoming: Incoming) -> bool:
        """Whether this request's calls can be refused: not where the provider keeps the conversation, or answers later."""
        return not wire_format(incoming.wire).is_kept_by_provider(incoming.json)

    async def histories(self, incoming: Incoming, origin: Origin) -> tuple[TrueAnswer, ...]:
        """What must be put back into this request's history."""
        turns = self.answers.concerns(incoming, origin)
        return await self.answers.read(turns) if turns else ()

    async def recorded(self, turn: Turn, failed: Sequence[tuple[HeldRule, str]], not_held: Sequence[HeldRule] = ()) -> None:
        """Tell of what was held, and of rules that could not hold, once the turn is recorded."""
        found = turn.enforcement
        told: dict[str, Json]
        if not_held:
            names: list[Json] = [rule.name for rule in not_held if rule.name != KEEP_RULES]
            log.warning("rules_not_held turn=%s rules=%s reason=%s", turn.id, ",".join(map(str, names)), _KEPT_ELSEWHERE)
            about: dict[str, Json] = {"turn": turn.id, "session": turn.session, "agent": turn.agent}
            await self._tell("rules_not_held", {"rules": names, **about, "reason": _KEPT_ELSEWHERE})
        for rule, reason in failed:
            told = {"rule": rule.name, "turn": turn.id, "session": turn.session, "reason": reason, "held": found is not None}
            await self._tell("check_failed", told)
        for one in () if found is None else found.rules:
            told = {
                "rule": one.rule,
                "turn": turn.id,
                "session": turn.session,
                "agent": turn.agent,
                "attempts": one.attempts,
                "end": one.end.value,
                "calls": 0 if found is None or found.answer is None else len(found.answer.calls),
            }
            await self._tell("rule_held", told)

    def remember(self, turn: Turn) -> None:
        """From now on the true answer takes the place of what the client was shown."""
        if turn.enforcement is not None and turn.enforcement.answer is not None:
            self.answers.add(turn.id, turn.session, turn.scope.user, turn.enforcement.answer)

    async def _tell(self, kind: str, data: dict[str, Json]) -> None:
        if self._announce is not None:
            await self._announce(kind, data)
