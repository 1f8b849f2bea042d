"""Put the rules and facts that were read from a message in force. Each item is checked, published
and announced separately.

An item is taken only if its quote stands in the message outside marked blocks, and if a second
opinion agrees; else it waits for the person. The message, and the answer it corrects, become support
before anything is published. So no message is applied twice, and forgetting the session also removes
the rule."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, Change, Objection, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.front_matter import UNKNOWN_PROJECT
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import (
    SKILLS_NAMED,
    Authorship,
    Fact,
    LearnedFrom,
    Rule,
    Skill,
    SkillKind,
)
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.errors import SkillError
from metaclaw.learn.admission import Announce, claim_turns
from metaclaw.learn.rule_checks import RuleChecks, words_proposal
from metaclaw.learn.second_opinion import AGREED, NEAR_RULES, UNREAD, Relation, SecondOpinion
from metaclaw.learn.stated_rules import (
    PHRASES,
    ItemChange,
    ItemScope,
    ReadMessage,
    RuleItem,
    Speaker,
    SpokenMessage,
)
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import LISTENED
from metaclaw.privacy import hidden_text, new_capabilities, own_words
from metaclaw.skills import (
    CORRECTION_READ,
    REWORDED,
    UNCONFIRMED,
    Teams,
    applying,
    find_same,
    is_emphatic,
    plain_words,
    rule_name,
)
from metaclaw.store import RefusedError, SqlCandidates, SqlVerdicts
from metaclaw.text import sentence_terms, split_sentences

log = logging.getLogger(__name__)

NOT_READ: Final = (
    "nothing was taken back: no model reads your messages (the embedded model cannot), so only sure"
    " phrases add rules. Use metaclaw undo, or metaclaw rules remove NAME; or set listen.provider"
    " and listen.model"
)
_MOST_LISTED: Final = 200
_NEAR_SKILLS: Final = 3
_MOST_EXAMPLES: Final = 20
_EXAMPLE_CHARS: Final = 160
_CERTAIN: Final = 0.97
_EVIDENCE: Final = 4.0
_QUOTE_CHARS: Final = 200
_QUOTED_SHARE: Final = 0.75
_MEANT_SHARE: Final = 0.5
"""The share of the words that must stand in the message: of a quote, and of a text without one."""
_NEAR_RATIO: Final = 0.8
_NEAR_WORD: Final = 0.76
_NAME: Final = re.compile(r"\w*\d\w*|(?<=[\w,;] )[^\W\d_a-zà-ÿ]\w*|\w+(?=[./_-]\w)|(?<=[./_-])\w+")
"""Numbers, capitalised words inside a sentence, and parts of compounds."""
_ALWAYS: Final = re.compile(r"\s*always\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """One change to publish: `put` is the new rule or the skill with one more example, `gone` are
    the rules to retire. `reason` is the reason of the generation, by default the event. With a
    `question`, the change waits for the person."""

    event: str
    put: Skill | None
    gone: tuple[Skill, ...] = ()
    reason: str = ""
    question: str = ""


@dataclass(eq=False, kw_only=True)
class RuleWriter:
    """Applies what was read from a person's message. `on_failure` is called when a correction gave
    a turn its verdict. `has_channel` says whether a person ever used a channel, and blocks."""

    library: AnyLibrary
    candidates: SqlCandidates
    verdicts: SqlVerdicts
    announce: Announce
    redact: Callable[[str], str]
    teams: Teams
    checks: RuleChecks
    on_failure: Callable[[], None]
    has_channel: Callable[[Scope], bool]
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        # Without the lock, two people who state the same rule at once would get the same name for
        # it.
        self._publishing = anyio.Lock()

    def listed(self, spoken: SpokenMessage) -> list[tuple[str, str]]:
        """Names and texts of the rules that a message may be about: those placed in the session,
        then the nearest, then the others; after them the nearest skills. Blocks."""
        near = self._near(f"{spoken.own}\n{spoken.task}", spoken)
        rules = self._in_scope(spoken)
        names = [*spoken.placed, *spoken.answered_with, *(skill.name for skill in near), *rules]
        chosen = [rules[name] for name in dict.fromkeys(names) if name in rules]
        skills = [skill for skill in near if skill.is_skill][:_NEAR_SKILLS]
        return [
            *((rule.name, rule.body) for rule in chosen),
            *((one.name, f"{one.trigger} {one.body}") for one in skills),
        ]

    def skills_for(self, spoken: SpokenMessage) -> list[tuple[str, str]]:
        """Names and triggers of the skills that a message may be in need of: those that its prompt
        only lists, the nearest first. Blocks."""
        near = [one.name for one in self._near(spoken.own, spoken) if one.name in spoken.listed]
        found = map(self.library.view.get, dict.fromkeys((*near, *spoken.listed)))
        return [(skill.name, skill.trigger) for skill in found if skill is not None]

    async def name_skills(self, spoken: SpokenMessage, names: Sequence[str]) -> None:
        """Announce the skills that the next request of a session is to have in full."""
        known: list[Json] = [name for name in spoken.listed if name in names]
        if known:
            data: dict[str, Json] = {"session": spoken.session, "turn": spoken.turn}
            await self.announce(SKILLS_NAMED, {**data, "skills": known})

    def doubtful(self, spoken: SpokenMessage, items: Iterable[RuleItem]) -> list[RuleItem]:
        """The items that need a second opinion: those that would change what is in force.
        Blocks."""
        rules = list(self._rules_of(spoken))
        return [
            item
            for item in items
            if (item.op is ItemChange.RETRACT and self._targets(spoken, item))
            or (
                item.states_rule
                and self._doubt(spoken, replace(item, speaker=Speaker.PERSON), AGREED) is None
                and find_same(self._rule(spoken, item, set()), rules) is None
            )
        ]

    def passed_over(self, spoken: SpokenMessage, items: Iterable[RuleItem]) -> list[RuleItem]:
        """The sentences of sure phrases in force in which the reader found nothing that the person
        wants from now on. Blocks."""
        return [_as_said(rule) for rule in self._passed_over(spoken, items, self._sure(spoken))]

    def near(self, spoken: SpokenMessage, item: RuleItem) -> list[tuple[str, str]]:
        """Names and texts of the rules nearest to an item. Blocks."""
        rules, about = self._in_scope(spoken), sentence_terms(item.text)
        found = [skill.name for skill in self._near(item.text, spoken)]
        ranked = [rules[name] for name in dict.fromkeys((*found, *rules)) if name in rules]
        ranked.sort(key=lambda rule: -len(about & sentence_terms(rule.body)))
        return [(rule.name, rule.body) for rule in ranked[:NEAR_RULES]]

    def _near(self, query: str, spoken: SpokenMessage) -> Sequence[Skill]:
        return self.library.view.retrieve(query, _MOST_LISTED, spoken.scope, self.teams)

    def _in_scope(self, spoken: SpokenMessage) -> dict[SkillName, Rule]:
        """The rules and facts for the speaker here that were in force before this message."""
        scopes = {None, *applying(spoken.scope, self.teams)}
        return {
            rule.name: rule
            for rule in self._rules()
            if rule.scope in scopes
            and (rule.source is None or rule.source < spoken.turn)
            and rule.is_for(spoken.scope)
        }

    async def apply(
        self,
        spoken: SpokenMessage,
        understood: ReadMessage,
        written_by: str,
        attempt: int | None = None,
        opinions: Mapping[RuleItem, SecondOpinion] = MappingProxyType({}),
    ) -> None:
        """Put the items in force, or before the person if the second opinion disagrees, and record
        a correction as the verdict of the corrected answer. `attempt` is the attempt that this
        message began before the program was stopped."""
        is_correction = understood.correction is not None
        async with self._publishing:
            await run_sync(self.library.follow)
            await self.checks.confirm(spoken, is_corrected=is_correction)
            if understood.correction is not None and spoken.answered is not None:
                await self._record(spoken, understood.correction)
            sure = [] if written_by == PHRASES else await run_sync(self._sure, spoken)
            lessons = await run_sync(self._lessons, spoken, understood, opinions, written_by, sure)
            turns = [spoken.turn]
            if is_correction and spoken.answered is not None:
                turns.insert(0, spoken.answered)
            number = attempt
            if number is None and lessons and not sure:
                number = await self.claim(turns)
                if number is None and len(turns) > 1:
                    turns = turns[-1:]
                    number = await self.claim(turns)
                if number is None:
                    return  # applied before, or forgotten, or older than a revert
            is_kept = [await self._publish(spoken, one, turns, written_by) for one in lessons]
            if not all(is_kept):
                # The library changed meanwhile: compute the remaining changes again.
                await run_sync(self.library.follow)
                again = await run_sync(
                    self._lessons, spoken, understood, opinions, written_by, sure
                )
                for lesson in again:
                    await self._publish(spoken, lesson, turns, written_by)
            for rule in self._passed_over(spoken, understood.items, sure):
                opinion = opinions.get(_as_said(rule), UNREAD)
                if not opinion.wants_it and opinion != UNREAD:
                    question = f"it is not in force, since no model reads it so: {opinion.reason}"
                    asked = _Lesson("asked", rule, question=question)
                    await self._ask_person(spoken, asked, turns, written_by)
                    gone = _Lesson("retracted", None, (rule,), UNCONFIRMED)
                    await self._publish(spoken, gone, turns, written_by)
            for rule in await run_sync(self._worded_better, spoken, understood, sure):
                gone = _Lesson("retracted", None, (rule,), REWORDED)
                await self._publish(spoken, gone, turns, written_by)
            if number is not None:
                await run_sync(self.candidates.end_attempt, number)
            for lesson in lessons if is_correction else ():
                if isinstance(lesson.put, Rule) and not lesson.question:
                    self.checks.note_broken(lesson.put.name)

    async def claim(self, turns: Sequence[TurnId]) -> int | None:
        """Begin the attempt of a message, which began the last of these turns. A failure in the
        same turn may have become a lesson before."""
        generation = self.library.view.generation
        return await claim_turns(self.candidates, LISTENED, generation, turns, may_share=True)

    async def announce_unread(self, spoken: SpokenMessage) -> None:
        """Announce that a message takes a rule back, and that no model could tell which."""
        log.info("retraction_not_read turn=%s", spoken.turn)
        await self.announce("notice", {"skill": None, "turn": spoken.turn, "text": NOT_READ})

    def _sure(self, spoken: SpokenMessage) -> list[Rule]:
        """The rules of this message that are in force already: those of its sure phrases."""
        return [rule for rule in self._rules_of(spoken) if rule.source == spoken.turn]

    def _passed_over(
        self, spoken: SpokenMessage, items: Iterable[RuleItem], sure: Sequence[Rule]
    ) -> list[Rule]:
        """The rules of sure phrases in which the reader found nothing that the person wants from
        now on."""
        found = [
            item
            for item in items
            if item.speaker is Speaker.PERSON and item.scope is not ItemScope.CONVERSATION
        ]
        return [
            rule
            for rule in sure
            if rule.is_as_said
            and not rule.pinned
            and not any(_is_about(item, rule, is_alone=len(sure) == 1) for item in found)
        ]

    def _worded_better(
        self, spoken: SpokenMessage, understood: ReadMessage, sure: Sequence[Rule]
    ) -> list[Rule]:
        """The rules of sure phrases of which the reader's words are in force, all that it
        understood of them. Blocks."""
        others = [rule for rule in self._rules_of(spoken) if rule not in sure]
        stated = [item for item in understood.items if item.states_rule]
        found = []
        for rule in sure:
            about = [item for item in stated if _is_about(item, rule, is_alone=len(sure) == 1)]
            rules = [self._rule(spoken, item, set()) for item in about]
            if rules and all(find_same(one, others) is not None for one in rules):
                found.append(rule)
        return found

    def _lessons(
        self,
        spoken: SpokenMessage,
        understood: ReadMessage,
        opinions: Mapping[RuleItem, SecondOpinion],
        written_by: str,
        sure: Sequence[Rule],
    ) -> list[_Lesson]:
        """The changes to publish; better words of the `sure` rules are one. Blocks."""
        found: list[_Lesson] = []
        taken: set[str] = set()
        is_correction = understood.correction is not None
        passed_over = self._passed_over(spoken, understood.items, sure)
        for item in understood.items:
            if any(_is_about(item, rule, is_alone=len(sure) == 1) for rule in passed_over):
                continue  # the second opinion on the sentence itself decides
            opinion = opinions.get(item, AGREED)
            lesson = self._lesson(spoken, item, opinion, is_correction, taken, written_by, sure)
            if lesson is not None:
                found.append(lesson)
                taken |= {
                    skill.name for skill in (*lesson.gone, *((lesson.put,) if lesson.put else ()))
                }
        return found

    def _lesson(
        self,
        spoken: SpokenMessage,
        item: RuleItem,
        opinion: SecondOpinion,
        is_correction: bool,
        taken: set[str],
        written_by: str,
        sure: Sequence[Rule],
    ) -> _Lesson | None:
        """The change that an item makes; None if it makes none."""
        own = tuple(skill for skill in self._targets(spoken, item) if skill.name not in taken)
        match item.op:
            case ItemChange.RETRACT if not own:
                return None
            case ItemChange.RETRACT:
                question = "" if opinion.by_person else f"take it back? {opinion.reason}"
                return _Lesson("retracted", None, own, question=question)
            case ItemChange.NONE:
                known = [self.library.view.get(name) for name in item.targets]
                targets = [skill for skill in known if skill is not None]
                return self._missed(spoken, targets) if is_correction else None
            case _ if not item.states_rule:
                return None
        rule = self._rule(spoken, item, taken)
        if (doubt := self._doubt(spoken, item, opinion)) is not None:
            if not doubt.waits:
                log.info("item_not_taken turn=%s reason=%s", spoken.turn, doubt.reason)
                self._refuse(spoken, rule, doubt.reason, written_by)
                return None
            return _Lesson("asked", rule, question=doubt.reason)
        in_force = (
            one
            for one in self._rules_of(spoken)
            if one not in sure or plain_words(one.body) == plain_words(rule.body)
        )
        if (same := find_same(rule, in_force)) is not None:
            gone = tuple(skill for skill in own if skill.name != same.name)
            if gone:
                return _Lesson("retracted", None, gone)
            return self._missed(spoken, [same]) if is_correction else None
        return self._replacing(spoken, rule, own, opinion)

    def _replacing(
        self,
        spoken: SpokenMessage,
        rule: Rule,
        own: tuple[Skill, ...],
        opinion: SecondOpinion,
    ) -> _Lesson | None:
        """The change that puts a rule in force in the place of those that it repeats or
        replaces: the later one wins."""
        name = None if opinion.relation is Relation.NEW else opinion.target
        target = self._in_scope(spoken).get(SkillName(name)) if name else None
        if target is not None and target not in own:
            is_wider = _is_wider(target, rule)
            is_kept = target.enforce is not None or not self._is_own(target, spoken)
            if opinion.relation is Relation.SAME and (is_wider or is_kept):
                return None
            if target.pinned:
                reason = f"it contradicts {target.name}, which you pinned"
                return _Lesson("asked", rule, (target,), question=reason)
            if self._is_own(target, spoken):
                own = (*own, target)
        wider = [one for one in own if _is_wider(one, rule)]
        if wider:
            # It is an exception for one project or channel: the wider rule holds elsewhere.
            rule = replace(rule, overrides=tuple(one.name for one in wider))
            own = tuple(one for one in own if one not in wider)
        return _Lesson("replaced" if own else "noted", rule, own)

    def _doubt(
        self, spoken: SpokenMessage, item: RuleItem, opinion: SecondOpinion
    ) -> Objection | None:
        """Why an item does not come into force at once; None if it does."""
        said, quote = self.redact(spoken.own), self.redact(item.quote or item.text)
        share = _QUOTED_SHARE if item.quote else _MEANT_SHARE
        if (hidden := hidden_text(item.text, said)) is not None:
            return Objection(hidden)
        if not (_stands_in(quote, said, share) or _is_misspelt_in(quote, said)):
            if _stands_in(quote, self.redact(spoken.text), share):
                return Objection("only text that the person pasted says so")
            return Objection("its words do not stand in the message", waits=True)
        if added := new_capabilities(item.text, said):
            return Objection(f"the person did not name {added.words()}", waits=True)
        if item.speaker is Speaker.OTHER and not opinion.wants_it:
            return Objection(f"it is not what the person wants: {opinion.reason}")
        if item.speaker is Speaker.OTHER or not opinion.wants_it:
            return Objection(f"a second reading disagrees: {opinion.reason}", waits=True)
        return None

    def _targets(self, spoken: SpokenMessage, item: RuleItem) -> tuple[Skill, ...]:
        """The rules that an item names and that this person may take back."""
        found = (self.library.view.get(name) for name in item.targets)
        return tuple(one for one in found if one is not None and self._is_own(one, spoken))

    def _rules_of(self, spoken: SpokenMessage) -> Iterable[Rule]:
        """The rules and facts of the person who wrote the message."""
        return (rule for rule in self._rules() if rule.scope == spoken.person)

    def _rules(self) -> list[Rule]:
        return [skill for skill in self.library.view.skills if isinstance(skill, Rule)]

    def _is_own(self, skill: Skill, spoken: SpokenMessage) -> bool:
        """Whether this person may take the rule back: it is their own, or it is for everyone and
        there is only one user.
        """
        is_theirs = skill.scope == spoken.person or (
            skill.scope is None and spoken.scope.user is None
        )
        return not skill.is_skill and is_theirs and not skill.pinned

    def _missed(self, spoken: SpokenMessage, targets: Sequence[Skill]) -> _Lesson | None:
        """Add the task to the examples of the first target that was in force but not placed."""
        example = self._example(spoken)
        for skill in targets:
            if skill.name in spoken.answered_with:
                self.checks.note_broken(skill.name)
                continue
            is_editable = skill.author is not Authorship.PERSON and not skill.pinned
            if not (is_editable and example) or example in skill.examples:
                continue
            examples = (*skill.examples, example)[-_MOST_EXAMPLES:]
            return _Lesson("example", replace(skill, examples=examples))
        return None

    def _example(self, spoken: SpokenMessage) -> str:
        """The task before the message, in the person's own words."""
        return " ".join(self.redact(own_words(spoken.task)).split())[:_EXAMPLE_CHARS].strip()

    def _rule(self, spoken: SpokenMessage, item: RuleItem, taken: set[str]) -> Rule:
        # Only the sentence of a sure phrase has no `when` of its own (`Rule.is_as_said`).
        is_unlimited = not item.when and item.text != item.quote
        is_always = is_unlimited or _ALWAYS.match(item.when) is not None
        is_for_project = item.scope is ItemScope.PROJECT
        workspace = spoken.scope.workspace or None
        example = "" if is_always else self._example(spoken)
        examples = dict.fromkeys(filter(None, (*map(self.redact, item.examples), example)))
        text = self.redact(item.text)
        when = self.redact(item.when)
        name = rule_name(
            text,
            when,
            item.kind,
            lambda name: name in taken or self.library.view.get(name) is not None,
        )
        is_fact = item.kind is SkillKind.FACT
        return (Fact if is_fact else Rule)(
            name=name,
            trigger=when or text,
            body=text,
            scope=spoken.person,
            author=Authorship.INSTRUCTION,
            applies_always=is_always,
            workspace=workspace if is_for_project else None,
            channel=self._channel(spoken, item),
            is_project_unknown=is_for_project and workspace is None,
            expires=item.expires,
            examples=tuple(examples),
            source=spoken.turn,
            asks_to_hold=not is_fact and is_emphatic(f"{item.text}\n{item.quote}"),
        )

    def _channel(self, spoken: SpokenMessage, item: RuleItem) -> str | None:
        """The channel that an item is for: the one that it names, if the person uses it, else the
        one by which it was said. A name that is no channel only belongs to the situation."""
        if item.scope is not ItemScope.CHANNEL:
            return None
        if item.channel in (None, spoken.scope.channel):
            return spoken.scope.channel
        is_used = self.has_channel(replace(spoken.scope, channel=item.channel))
        return item.channel if is_used else None

    async def _publish(
        self, spoken: SpokenMessage, lesson: _Lesson, turns: Sequence[TurnId], written_by: str
    ) -> bool:
        """Put one change in force, or ask the person about it; return False, and log why, if it
        cannot be."""
        if lesson.question:
            return await self._ask_person(spoken, lesson, turns, written_by)
        put = () if lesson.put is None else (lesson.put,)
        changed, names = (*put, *lesson.gone), [skill.name for skill in lesson.gone]
        candidate = None
        if lesson.put is not None:
            candidate = self._candidate(
                lesson.put, turns, written_by, Standing.ACCEPTED, lesson.event
            )
        learned = LearnedFrom(
            spoken.generation, tuple(turns), None if candidate is None else candidate.id
        )
        expected = {skill.name: skill.content_hash for skill in changed}
        is_new = lesson.event != "example"

        def publish() -> None:
            self.library.publish(
                put,
                names,
                f"{lesson.reason or lesson.event} {', '.join(skill.name for skill in changed)}",
                expected=expected | dict.fromkeys(skill.name for skill in put if is_new),
                learned=learned,
                by_person=any(not skill.is_skill for skill in changed),
            )
            if candidate is not None:
                self.candidates.save_candidate(candidate)

        try:
            await run_sync(publish)
        except (SkillError, RefusedError) as error:
            log.info("lesson_not_kept turn=%s reason=%s", spoken.turn, error)
            return False
        if lesson.reason in (UNCONFIRMED, REWORDED):
            return True  # the better words of a sure phrase are announced
        shown = changed[0]
        data: dict[str, Json] = {
            "name": shown.name,
            "kind": shown.kind.value,
            "text": shown.body,
            "scope": shown.scope,
            "turn": spoken.turn,
            "source": written_by,
            "replaces": [str(name) for name in names if put],
        }
        if shown.channel is not None:
            data["channel"] = shown.channel
        if put and shown.is_project_unknown:
            data["project"] = UNKNOWN_PROJECT
        if candidate is not None:
            data["candidate"] = candidate.id
        await self.announce(lesson.event, data)
        return True

    async def _ask_person(
        self, spoken: SpokenMessage, lesson: _Lesson, turns: Sequence[TurnId], written_by: str
    ) -> bool:
        """Let a rule wait for the person's word. A rule that may be taken back stays."""
        data: dict[str, Json] = {"turn": spoken.turn}
        if not isinstance(lesson.put, Rule):
            name = lesson.gone[0].name
            data |= {"skill": name, "text": f"{lesson.question}: metaclaw rules remove {name}"}
        else:
            waiting = self._candidate(
                lesson.put, turns, written_by, Standing.WAITING, lesson.question, lesson.gone
            )
            try:
                if await run_sync(self._is_asked, lesson.put):
                    return True
                await run_sync(self.candidates.save_candidate, waiting)
            except RefusedError as error:
                log.info("question_not_kept turn=%s reason=%s", spoken.turn, error)
                return True
            text = f"is it a rule? {lesson.question}: metaclaw candidates show {waiting.id}"
            data |= {"candidate": waiting.id, "skill": lesson.put.name, "text": text}
        await self.announce("notice", data)
        return True

    def _is_asked(self, rule: Rule) -> bool:
        """Whether a rule that says the same waits for the person already."""
        waiting = self.candidates.candidates(Standing.WAITING)
        return find_same(rule, (one.proposal.skill for one in waiting)) is not None

    def _candidate(
        self,
        skill: Skill,
        turns: Sequence[TurnId],
        written_by: str,
        standing: Standing,
        reason: str,
        replaces: Sequence[Skill] = (),
    ) -> Candidate:
        change = Change.MERGE if replaces else Change.NEW
        proposal = words_proposal(skill, change, replaces, turns, written_by)
        generation = self.library.view.generation
        return Candidate.new(proposal, standing, reason, generation, self.now())

    def _refuse(self, spoken: SpokenMessage, rule: Rule, reason: str, written_by: str) -> None:
        """Save an item that is not taken as a rejected candidate, so that people see why.
        Blocks.
        """
        try:
            self.candidates.save_candidate(
                self._candidate(rule, [spoken.turn], written_by, Standing.REJECTED, reason)
            )
        except RefusedError as error:
            log.debug("refusal_not_kept reason=%s", error)

    async def _record(self, spoken: SpokenMessage, correction: str) -> None:
        """Record that the corrected turn failed."""
        assert spoken.answered is not None
        quote = " ".join(spoken.own.split())[:_QUOTE_CHARS]
        signals = (Signal(CORRECTION_READ, _EVIDENCE, quote),)
        verdict = Verdict(
            spoken.answered,
            Outcome.FAIL,
            Source.DETECTOR,
            _CERTAIN,
            signals,
            fault=Fault.AGENT,
            comment=correction,
        )
        try:
            stands = await run_sync(self.verdicts.record_verdict, verdict)
        except RefusedError as error:
            log.debug("verdict_refused turn=%s reason=%s", verdict.turn, error)
            return
        if stands:
            self.on_failure()


def _is_wider(one: Skill, rule: Rule) -> bool:
    """Whether a rule holds beyond the project or the channel of another one."""
    pairs = ((one.workspace, rule.workspace), (one.channel, rule.channel))
    return any(mine is None and theirs is not None for mine, theirs in pairs)


def _as_said(rule: Rule) -> RuleItem:
    """The sentence of a sure phrase, as an item to be confirmed."""
    return RuleItem(ItemChange.ADD, rule.kind, rule.body, "", quote=rule.body)


def _is_about(item: RuleItem, rule: Rule, *, is_alone: bool) -> bool:
    """Whether an item is the reader's wording of a sure phrase; `is_alone` says that the message has
    no other one."""
    words = item.quote or item.text
    if not (item.text or item.quote):
        return False
    return (
        _stands_in(words, rule.body, _QUOTED_SHARE)
        or (item.text != "" and _stands_in(item.text, rule.body, _MEANT_SHARE))
        or (is_alone and _stands_in(rule.body, words, _QUOTED_SHARE))
    )


def _is_misspelt_in(quote: str, text: str) -> bool:
    """Whether a sentence of the text is the quote, but for typos outside of numbers and names."""
    return any(_is_misspelt(quote, sentence) for sentence in split_sentences(text))


def _is_misspelt(quote: str, sentence: str) -> bool:
    mine, theirs = plain_words(quote).split(), plain_words(sentence).split()
    if SequenceMatcher(None, " ".join(mine), " ".join(theirs)).ratio() < _NEAR_RATIO:
        return False
    if len(mine) != len(theirs):
        return False
    names = {name.casefold() for one in (quote, sentence) for name in _NAME.findall(one)}
    return all(
        one == other
        or (
            not names & {one, other}
            and (
                sorted(one) == sorted(other)
                or SequenceMatcher(None, one, other).ratio() >= _NEAR_WORD
            )
        )
        for one, other in zip(mine, theirs, strict=True)
    )


def _stands_in(words: str, text: str, share: float) -> bool:
    """Whether a text has these words, or this share of them."""
    if plain_words(words) in plain_words(text):
        return True
    meant = sentence_terms(words)
    return bool(meant) and len(meant & sentence_terms(text)) >= share * len(meant)
