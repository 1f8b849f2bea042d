"""Put the rules and facts that were read from a message in force. Each item is checked, published
and announced separately.

An item is taken only if the person's own words say it (`privacy.review`). The message, and the
answer it corrects, become support before anything is published. So no message is applied twice, and
forgetting the session also removes the rule."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, CandidateId, Change, Proposal, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.front_matter import UNKNOWN_PROJECT
from metaclaw.domain.ids import SkillName, TurnId, new_id
from metaclaw.domain.skill import Authorship, Fact, LearnedFrom, Rule, Skill, SkillKind
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.errors import SkillError
from metaclaw.learn.admission import Announce, claim_turns
from metaclaw.learn.compliance import CheckTrial, CheckTrialResult
from metaclaw.learn.stated_rules import ItemChange, ItemScope, ReadMessage, RuleItem, SpokenMessage
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.privacy import own_words, ungrounded
from metaclaw.skills import (
    CORRECTION_READ,
    UNCONFIRMED,
    Teams,
    applying,
    find_same,
    is_emphatic,
    plain_words,
    rule_name,
    scope_of_lesson,
)
from metaclaw.store import RefusedError, SqlCandidates, SqlVerdicts

log = logging.getLogger(__name__)

LISTENED: Final = "what a person said"
"""The kind of the attempts that the listening loop begins."""
NOT_READ: Final = (
    "nothing was taken back: no model reads your messages (the embedded model cannot), so only sure"
    " phrases add rules. Use metaclaw undo, or metaclaw rules remove NAME; or set listen.provider"
    " and listen.model"
)
_MOST_LISTED: Final = 60
_NEAR_SKILLS: Final = 3
_MOST_EXAMPLES: Final = 20
_EXAMPLE_CHARS: Final = 160
_CERTAIN: Final = 0.97
_EVIDENCE: Final = 4.0
_QUOTE_CHARS: Final = 200
_ALWAYS: Final = re.compile(r"\s*always\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """One change to publish: `put` is the new rule or the skill with one more example, `gone` are
    the rules to retire. `reason` is the reason of the generation, by default the event. `proposed`
    is the check that was proposed for the rule."""

    event: str
    put: Skill | None
    gone: tuple[Skill, ...] = ()
    reason: str = ""
    proposed: CheckTrialResult = field(default_factory=CheckTrialResult)


@dataclass(eq=False, kw_only=True)
class RuleWriter:
    """Applies what was read from a person's message. `foreign` returns the texts of tools and pages
    before a turn; `failed` is called when a correction gave a turn its verdict."""

    library: AnyLibrary
    candidates: SqlCandidates
    verdicts: SqlVerdicts
    announce: Announce
    redact: Callable[[str], str]
    foreign: Callable[[TurnId], Iterable[str]]
    teams: Teams
    trial: CheckTrial
    on_failure: Callable[[], None] = lambda: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        # Without the lock, two people who state the same rule at once would get the same name for
        # it.
        self._publishing = anyio.Lock()

    def follow(self) -> None:
        """Load the generations that other processes published. Blocks."""
        self.library.follow()

    def listed(self, spoken: SpokenMessage) -> list[tuple[str, str]]:
        """Names and texts of the rules that a message may be about: those placed in the session,
        then the nearest, then the others; after them the nearest skills. Blocks."""
        view = self.library.view
        scopes = {None, *applying(spoken.scope, self.teams)}
        query = f"{spoken.words.shown}\n{spoken.task}"
        near = list(view.retrieve(query, _MOST_LISTED, spoken.scope, self.teams))
        rules = {
            skill.name: skill
            for skill in view.index.skills()
            if isinstance(skill, Rule) and skill.scope in scopes
        }
        names = [
            *spoken.placed,
            *spoken.answered_with,
            *(skill.name for skill in near),
            *sorted(rules),
        ]
        chosen = [rules[name] for name in dict.fromkeys(names) if name in rules][:_MOST_LISTED]
        skills = [skill for skill in near if skill.is_skill][:_NEAR_SKILLS]
        return [
            *((rule.name, rule.body) for rule in chosen),
            *((one.name, f"{one.trigger} {one.body}") for one in skills),
        ]

    async def apply(
        self,
        spoken: SpokenMessage,
        understood: ReadMessage,
        written_by: str,
        attempt: int | None = None,
        *,
        is_again: bool = False,
    ) -> None:
        """Put the items in force, and record a correction as the verdict of the corrected answer.

        `attempt` is the attempt that this message began before the program was stopped. `is_again`
        says that the rules of its sure phrases are in force already: those that the items do not
        confirm are retired."""
        async with self._publishing:
            await self._confirm_checks(spoken, is_corrected=understood.correction is not None)
            await self._apply(spoken, understood, written_by, attempt, is_again=is_again)

    async def _apply(
        self,
        spoken: SpokenMessage,
        understood: ReadMessage,
        written_by: str,
        attempt: int | None,
        *,
        is_again: bool,
    ) -> None:
        await run_sync(self.library.follow)
        lessons = await self._settled(await run_sync(self._lessons, spoken, understood, written_by))
        if is_again:
            lessons += await run_sync(self._unconfirmed, spoken, understood)
        if understood.correction is not None and spoken.answered is not None:
            await self._record(spoken, understood.correction)
        if not lessons:
            if attempt is not None:
                await run_sync(self.candidates.end_attempt, attempt)
            return
        turns = self._turns(spoken, understood)
        number = attempt
        if number is None and not is_again:
            generation = self.library.view.generation
            number = await claim_turns(self.candidates, LISTENED, generation, turns)
            if number is None and len(turns) > 1:
                turns = turns[-1:]
                number = await claim_turns(self.candidates, LISTENED, generation, turns)
            if number is None:
                return  # applied before, or forgotten, or older than a revert
        is_kept = [await self._publish(spoken, lesson, turns, written_by) for lesson in lessons]
        if not all(is_kept):
            # The library changed meanwhile: compute the remaining changes again.
            await run_sync(self.library.follow)
            for lesson in await self._settled(
                await run_sync(self._lessons, spoken, understood, written_by)
            ):
                await self._publish(spoken, lesson, turns, written_by)
        if number is not None:
            await run_sync(self.candidates.end_attempt, number)

    async def announce_unread(self, spoken: SpokenMessage) -> None:
        """Announce that a message takes a rule back, and that no model could tell which."""
        log.info("retraction_not_read turn=%s", spoken.turn)
        await self.announce("notice", {"skill": None, "turn": spoken.turn, "text": NOT_READ})

    def _turns(self, spoken: SpokenMessage, understood: ReadMessage) -> list[TurnId]:
        corrected = (
            [spoken.answered]
            if understood.correction is not None and spoken.answered is not None
            else []
        )
        return [*corrected, spoken.turn]

    def _lessons(
        self, spoken: SpokenMessage, understood: ReadMessage, written_by: str
    ) -> list[_Lesson]:
        """The changes to publish. Blocks."""
        found: list[_Lesson] = []
        taken: set[str] = set()
        # If a correction states several rules, it is not known which of them the answer broke.
        is_alone = (
            sum(item.op in (ItemChange.ADD, ItemChange.REPLACE) for item in understood.items) == 1
        )
        for item in understood.items:
            lesson = self._lesson(
                spoken, item, understood.correction is not None, taken, written_by
            )
            if lesson is not None and lesson.put is not None and lesson.event != "example":
                lesson = self._with_check(
                    spoken,
                    item,
                    lesson,
                    is_alone=is_alone,
                    is_correction=understood.correction is not None,
                )
            if lesson is not None:
                found.append(lesson)
                taken |= {
                    skill.name for skill in (*lesson.gone, *((lesson.put,) if lesson.put else ()))
                }
        return found

    def _with_check(
        self,
        spoken: SpokenMessage,
        item: RuleItem,
        lesson: _Lesson,
        *,
        is_alone: bool,
        is_correction: bool,
    ) -> _Lesson:
        """The lesson with the check that was proposed for its rule, or with the reason why it has
        none.
        """
        assert lesson.put is not None
        proposed = self.trial.propose(spoken, item, is_corrected=is_alone and is_correction)
        asks_to_hold = not isinstance(lesson.put, Fact) and (
            is_emphatic(item.text) or (is_alone and is_emphatic(spoken.words.own))
        )
        put = replace(lesson.put, asks_to_hold=asks_to_hold)
        return replace(lesson, put=put, proposed=proposed)

    async def _settled(self, lessons: Sequence[_Lesson]) -> list[_Lesson]:
        """The lessons, each with its check if that is taken, or with the reason why it is not."""
        settled: list[_Lesson] = []
        for lesson in lessons:
            if lesson.put is None:
                settled.append(lesson)
                continue
            proposed = await self.trial.settle(lesson.put, lesson.proposed)
            put = lesson.put
            if proposed.check is not None:
                put = replace(put, check=proposed.check, check_state="proposed")
            if proposed.note is not None:
                put = replace(put, check_note=proposed.note)
            settled.append(replace(lesson, put=put))
        return settled

    async def _confirm_checks(self, spoken: SpokenMessage, *, is_corrected: bool) -> None:
        """Confirm the proposed checks that agree with the person about the task before this
        message.
        """
        for name in spoken.answered_with:
            rule = self.library.view.get(name)
            if rule is not None and rule.is_check_proposed:
                await run_sync(self._confirm_check, rule, spoken, is_corrected)

    def _confirm_check(self, rule: Skill, spoken: SpokenMessage, is_corrected: bool) -> None:
        if not self.trial.is_confirmed(rule, spoken, is_corrected=is_corrected):
            return
        confirmed = replace(rule, check_state="confirmed")
        expected: dict[SkillName, str | None] = {rule.name: rule.content_hash}
        try:
            self.library.publish(
                (confirmed,),
                (),
                f"confirmed the check of {rule.name}",
                expected=expected,
                by_person=True,
            )
        except SkillError as error:
            log.info("check_not_confirmed turn=%s reason=%s", spoken.turn, error)
        else:
            log.info("check_confirmed turn=%s", spoken.turn)

    def _unconfirmed(self, spoken: SpokenMessage, understood: ReadMessage) -> list[_Lesson]:
        """Retract the rules from sure phrases of this message that the model did not confirm.
        Blocks.
        """
        confirmed = {
            plain_words(self.redact(item.text))
            for item in understood.items
            if item.op in (ItemChange.ADD, ItemChange.REPLACE)
        }
        sure = (rule for rule in self._rules_of(spoken) if rule.source == spoken.turn)
        return [
            _Lesson("retracted", None, (rule,), UNCONFIRMED)
            for rule in sure
            if plain_words(rule.body) not in confirmed
        ]

    def _lesson(
        self,
        spoken: SpokenMessage,
        item: RuleItem,
        is_correction: bool,
        taken: set[str],
        written_by: str,
    ) -> _Lesson | None:
        targets = [
            skill
            for name in item.targets
            if name not in taken and (skill := self.library.view.get(name)) is not None
        ]
        own = tuple(skill for skill in targets if self._is_own(skill, spoken))
        match item.op:
            case ItemChange.RETRACT:
                return _Lesson("retracted", None, own) if own else None
            case ItemChange.NONE:
                return self._missed(spoken, targets) if is_correction else None
            case ItemChange.ADD | ItemChange.REPLACE if item.scope is ItemScope.CONVERSATION:
                return None
        about = f"{spoken.task}\n{spoken.answer}"
        if (
            reason := ungrounded(item.text, spoken.words.own, about, self._around(spoken))
        ) is not None:
            log.info("item_not_taken turn=%s reason=%s", spoken.turn, reason)
            self._refuse(spoken, item, reason, written_by)
            return None
        rule = self._rule(spoken, item, taken)
        same = find_same(rule, self._rules_of(spoken))
        if same is not None:
            gone = tuple(skill for skill in own if skill.name != same.name)
            if gone:
                return _Lesson("retracted", None, gone)
            return self._missed(spoken, [same]) if is_correction else None
        return _Lesson("replaced" if own else "noted", rule, own)

    def _around(self, spoken: SpokenMessage) -> Iterable[str]:
        yield from spoken.words.foreign
        yield from self.foreign(spoken.turn)

    def _rules_of(self, spoken: SpokenMessage) -> Iterable[Rule]:
        """The rules and facts of the person who wrote the message."""
        scope = scope_of_lesson(spoken.scope)
        return (
            skill
            for skill in self.library.view.index.skills()
            if isinstance(skill, Rule) and skill.scope == scope
        )

    def _is_own(self, skill: Skill, spoken: SpokenMessage) -> bool:
        """Whether this person may take the rule back: it is their own, or it is for everyone and
        there is only one user.
        """
        is_theirs = skill.scope == scope_of_lesson(spoken.scope) or (
            skill.scope is None and spoken.scope.user is None
        )
        return not skill.is_skill and is_theirs and not skill.pinned

    def _missed(self, spoken: SpokenMessage, targets: Sequence[Skill]) -> _Lesson | None:
        """Add the task to the examples of the first target that was in force but not placed."""
        example = self._example(spoken)
        for skill in targets:
            is_editable = skill.author is not Authorship.PERSON and not skill.pinned
            if (
                not (is_editable and example)
                or skill.name in spoken.answered_with
                or example in skill.examples
            ):
                continue
            examples = (*skill.examples, example)[-_MOST_EXAMPLES:]
            return _Lesson("example", replace(skill, examples=examples))
        return None

    def _example(self, spoken: SpokenMessage) -> str:
        """The task before the message, in the person's own words."""
        return " ".join(self.redact(own_words(spoken.task)).split())[:_EXAMPLE_CHARS].strip()

    def _rule(self, spoken: SpokenMessage, item: RuleItem, taken: set[str]) -> Rule:
        is_always = _ALWAYS.match(item.when) is not None
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
        return (Fact if item.kind is SkillKind.FACT else Rule)(
            name=name,
            trigger=when or text,
            body=text,
            scope=scope_of_lesson(spoken.scope),
            author=Authorship.INSTRUCTION,
            applies_always=is_always,
            workspace=workspace if is_for_project else None,
            is_project_unknown=is_for_project and workspace is None,
            expires=item.expires,
            examples=tuple(examples),
            source=spoken.turn,
        )

    async def _publish(
        self, spoken: SpokenMessage, lesson: _Lesson, turns: Sequence[TurnId], written_by: str
    ) -> bool:
        """Put one change in force; return False, and log why, if it cannot be."""
        put, gone = lesson.put, lesson.gone
        candidate = (
            None
            if put is None
            else self._candidate(put, turns, written_by, Standing.ACCEPTED, lesson.event)
        )
        expected: dict[SkillName, str | None] = {skill.name: skill.content_hash for skill in gone}
        if put is not None:
            expected[put.name] = put.content_hash if lesson.event == "example" else None
        names = [skill.name for skill in gone]
        reason = (
            f"{lesson.reason or lesson.event} {', '.join([*([put.name] if put else []), *names])}"
        )
        learned = LearnedFrom(
            spoken.generation, tuple(turns), None if candidate is None else candidate.id
        )
        by_person = any(
            not skill.is_skill for skill in (*gone, *((put,) if put is not None else ()))
        )

        def publish() -> None:
            self.library.publish(
                () if put is None else (put,),
                names,
                reason,
                expected=expected,
                learned=learned,
                by_person=by_person,
            )
            if candidate is not None:
                self.candidates.save_candidate(candidate)
            if put is not None and lesson.proposed.program is not None:
                self.candidates.save_candidate(
                    self._waiting(put, lesson.proposed.program, turns, written_by)
                )

        try:
            await run_sync(publish)
        except (SkillError, RefusedError) as error:
            log.info("lesson_not_kept turn=%s reason=%s", spoken.turn, error)
            return False
        shown = put if put is not None else gone[0]
        data: dict[str, Json] = {
            "name": shown.name,
            "kind": shown.kind.value,
            "text": shown.body,
            "scope": shown.scope,
            "turn": spoken.turn,
            "source": written_by,
            "replaces": [str(name) for name in names if put is not None],
        }
        if put is not None and put.is_project_unknown:
            data["project"] = UNKNOWN_PROJECT
        if candidate is not None:
            data["candidate"] = candidate.id
        await self.announce(lesson.event, data)
        return True

    def _candidate(
        self,
        skill: Skill,
        turns: Sequence[TurnId],
        written_by: str,
        standing: Standing,
        reason: str,
    ) -> Candidate:
        proposal = Proposal(
            skill,
            Change.NEW,
            (),
            tuple(turns),
            f"words-{skill.name}"[:64],
            written_by,
            is_instruction=True,
        )
        generation = self.library.view.generation
        return Candidate(
            CandidateId(new_id("c_")), proposal, standing, reason, generation, self.now()
        )

    def _waiting(
        self, rule: Skill, program: str, turns: Sequence[TurnId], written_by: str
    ) -> Candidate:
        """The rule with a program as its check, for a person to decide."""
        reason = "its check is a program that a model wrote"
        candidate = self._candidate(
            replace(rule, check=program, check_note=None),
            turns,
            written_by,
            Standing.WAITING,
            reason,
        )
        return replace(
            candidate,
            proposal=replace(candidate.proposal, change=Change.EDIT, replaces=(rule.name,)),
        )

    def _refuse(self, spoken: SpokenMessage, item: RuleItem, reason: str, written_by: str) -> None:
        """Save an item that is not taken as a rejected candidate, so that people see why.
        Blocks.
        """
        rule = self._rule(spoken, item, set())
        try:
            self.candidates.save_candidate(
                self._candidate(rule, [spoken.turn], written_by, Standing.REJECTED, reason)
            )
        except RefusedError as error:
            log.debug("refusal_not_kept reason=%s", error)

    async def _record(self, spoken: SpokenMessage, correction: str) -> None:
        """Record that the corrected turn failed."""
        assert spoken.answered is not None
        quote = " ".join(spoken.words.shown.split())[:_QUOTE_CHARS]
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
