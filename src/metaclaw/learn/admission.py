"""Admission: save each proposal as a candidate, take it through the gate, and publish it if it
passes.

The order is fixed: the candidate is saved, the gate decides, the library publishes, the candidate
is saved as accepted. After a restart an undecided candidate is decided again, and a skill that is
in force already is not published twice. A candidate is dropped if a session that taught it was
forgotten, or if skills were reverted after its evidence."""

import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Candidate, Change, Objection, Proposal, Standing
from metaclaw.domain.chat import Json, Message
from metaclaw.domain.episode import Signature
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import LearnedFrom, Lesson, RetiredSkill, Skill, SkillState
from metaclaw.domain.status import audience
from metaclaw.domain.training import RoleKind
from metaclaw.domain.turn import Scope, Step, TurnKind
from metaclaw.errors import SkillError
from metaclaw.learn.store_rpc import AnyLibrary
from metaclaw.learn.supervision import SET_ASIDE
from metaclaw.outcome import episodes_of
from metaclaw.privacy import (
    Doubt,
    Passage,
    Redactor,
    passages_of,
    review_lesson,
    review_skill,
)
from metaclaw.skills import (
    OWNER,
    Gate,
    GateResult,
    IndexLibrary,
    Teams,
    applying,
    is_untouchable,
    waits_for_person,
    with_free_name,
)
from metaclaw.store import LedgerReader, RefusedError, SqlCandidates
from metaclaw.text import shorten, split_sentences, visible_text

log = logging.getLogger(__name__)

_NEAR: Final = 8
_DOUBTS_OF_ORIGIN: Final = frozenset((Doubt.UNBACKED, Doubt.BORROWED))

Announce = Callable[[str, dict[str, Json]], Awaitable[object]]
_FORGOTTEN: Final = "a session that taught it was forgotten"
_REVERTED: Final = "skills were reverted after it was learned"
_VERBS: Final = {Change.NEW: "learned", Change.EDIT: "edited", Change.MERGE: "merged"}
_MOST_REASONS_COUNTED: Final = 1_000
_MOST_TURNS: Final = 10_000
_MOST_SHOWN: Final = 3
_SHOWN_CHARS: Final = 120
_DETAIL: Final = re.compile(r"[;:(]")
_NUMBER: Final = re.compile(r"\b\d[\d.,]*")


@dataclass(eq=False)
class SafetyReview:
    """A `DraftCheck` of the gate. `step` reads a turn that taught a proposal, `session` the
    conversation that ended with it, with only the person's own words; `retired` lists what is no
    longer in force."""

    step: Callable[[TurnId], Step | None]
    library: AnyLibrary
    redactor: Redactor
    session: Callable[[TurnId], tuple[Step, tuple[Message, ...]] | None]
    retired: Callable[[], Sequence[RetiredSkill]]

    def __call__(self, proposal: Proposal) -> Sequence[Objection]:
        """The objections to a proposal. Blocks: it reads every turn that taught the proposal."""
        skill = proposal.skill
        if isinstance(skill, Lesson) and skill.signatures:
            return self._of_lesson(skill, proposal.support)
        before = [
            known
            for name in proposal.replaces
            if (known := self.library.view.get(name)) is not None
        ]
        # Capabilities that skills for the same situation have are not new.
        review = review_skill(
            skill, self._spans(proposal), [*self._near(proposal), *before], self.redactor
        )
        reviewed = _said_before(proposal, before)
        doubts = [
            doubt
            for doubt in review.objections
            if doubt.doubt not in _DOUBTS_OF_ORIGIN or doubt.instruction not in reviewed
        ]
        objections = [
            Objection(f"it holds a secret ({finding.placeholder})") for finding in review.secrets
        ]
        objections += [
            Objection(
                f"{doubt.doubt}: {doubt.instruction!r}: {doubt.reason}",
                waits=doubt.doubt in _DOUBTS_OF_ORIGIN,
            )
            for doubt in doubts
        ]
        if review.reach:
            objections.append(Objection(f"it adds {review.reach.words()}", waits=True))
        return [*objections, *_check_objections(skill)]

    def _of_lesson(self, lesson: Lesson, support: Sequence[TurnId]) -> list[Objection]:
        """The objections to a line about failed calls, by the calls themselves."""
        read = (self.session(turn) for turn in support)
        sessions = {found[0].session: found[1] for found in read if found is not None}
        episodes = [
            episode
            for messages in sessions.values()
            for is_ended in (False, True)
            for episode in episodes_of(messages, is_ended=is_ended)
            if any(self._signature(one) in lesson.signatures for one in episode.signatures)
        ]
        doubt = review_lesson(lesson.body, episodes)
        secrets = self.redactor.text(lesson.body).found
        objections = [Objection(f"it holds a secret ({one.placeholder})") for one in secrets]
        objections += [] if doubt is None else [doubt]
        if any(
            is_by_person(one) and _are_of_one_failure(one.skill, lesson) for one in self.retired()
        ):
            objections.append(Objection("you took back a lesson about this failure", waits=True))
        return objections

    def _signature(self, signature: Signature) -> str:
        return self.redactor.text(str(signature)).text

    def _spans(self, proposal: Proposal) -> list[Passage]:
        steps = (self.step(turn) for turn in proposal.support)
        return [span for step in steps if step is not None for span in passages_of(step)]

    def _near(self, proposal: Proposal) -> list[Skill]:
        """Skills for the same situation."""
        skill, index = proposal.skill, self.library.view.index
        scopes = frozenset((skill.scope,)) if skill.scope else frozenset()
        hits = index.search(f"{skill.trigger}\n{skill.body}", _NEAR, scopes)
        return [hit.skill for hit in hits if hit.skill.name not in (skill.name, *proposal.replaces)]


def is_by_person(retired: RetiredSkill) -> bool:
    """Whether a person took it out of force; the program says why it did (`CandidateAdmission`)."""
    return not retired.reason.startswith(f"retired {retired.skill.name}: ")


def _are_of_one_failure(one: Skill, other: Lesson) -> bool:
    return (
        isinstance(one, Lesson)
        and (one.scope, one.workspace) == (other.scope, other.workspace)
        and not set(one.signatures).isdisjoint(other.signatures)
    )


def _said_before(proposal: Proposal, before: Sequence[Skill]) -> frozenset[str]:
    """The sentences of the skill that an edit changes. They were reviewed when the skill was
    learned.
    """
    if proposal.change is not Change.EDIT:
        return frozenset()
    texts = [f"{skill.trigger}\n\n{skill.body}" for skill in before]
    return frozenset(
        sentence
        for text in texts
        for sentence in split_sentences(visible_text(text), with_code=True)
    )


def _check_objections(skill: Skill) -> list[Objection]:
    try:
        program = waits_for_person(skill)
    except SkillError as error:
        return [Objection(str(error))]
    return [] if program is None else [Objection(program, waits=True)]


@dataclass(eq=False, kw_only=True)
class CandidateAdmission:
    """Takes proposals through the gate and publishes them. Every learned skill comes into force
    this way.
    """

    gate: Gate
    library: AnyLibrary
    candidates: SqlCandidates
    announce: Announce
    redact: Callable[[str], str]
    teams: Teams
    now: Callable[[], datetime]

    async def admit(
        self,
        proposal: Proposal,
        *,
        seen: Mapping[SkillName, str] | None = None,
        generation: int | None = None,
    ) -> None:
        """Save a proposal as a candidate, review it, and publish it if it passes.

        `seen` are the content hashes of the skills that the evolver was shown; a skill that has
        changed since is not overwritten. `generation` is the newest generation of the evidence;
        None if the evidence is the skills in force."""
        proposal = replace(proposal, skill=_as_filed(proposal.skill))
        if proposal.change is Change.NEW:
            proposal = replace(
                proposal, skill=with_free_name(proposal.skill, self.library.view.get)
            )
        candidate = self._candidate(proposal, Standing.DRAFT, "just proposed", generation)
        if await self._save(candidate):
            await self.decide_again(candidate, seen or {})

    def _candidate(
        self, proposal: Proposal, standing: Standing, reason: str, generation: int | None = None
    ) -> Candidate:
        if generation is None:
            generation = self.library.view.generation
        return Candidate.new(proposal, standing, reason, generation, self.now())

    async def decide_again(
        self, candidate: Candidate, seen: Mapping[SkillName, str] | None = None
    ) -> None:
        """Decide about a candidate that is not decided yet."""
        if await run_sync(self.candidates.is_reverted, candidate.generation):
            await self._reject(candidate, _REVERTED)
            return
        if await self._is_in_force_already(candidate.proposal):
            await self._reject(candidate, f"{candidate.proposal.skill.name} is in force already")
            return
        library = IndexLibrary(self.library.view.index, self._scopes(candidate.proposal.skill))
        result = await run_sync(self.gate.review, candidate.proposal, library)
        if not await self._is_wanted(candidate):
            return
        if result.standing is Standing.ACCEPTED:
            await self._publish(candidate, result, seen or {})
            return
        await self._try_to_save(replace(candidate, standing=result.standing, reason=result.reason))
        if result.standing is Standing.WAITING:
            name = candidate.proposal.skill.name
            await self._notify(candidate, f"{name} waits for you: {result.reason}")

    def _scopes(self, skill: Skill) -> frozenset[str]:
        """The scopes of the person whom a skill is for, else its own."""
        kind, _, who = (skill.scope or "").partition(":")
        if skill.scope == OWNER or kind == "user":
            return frozenset(applying(Scope(who or None, skill.workspace), self.teams))
        return frozenset(filter(None, (skill.scope,)))

    async def _reject(self, candidate: Candidate, reason: str) -> Candidate:
        return await self._try_to_save(
            replace(candidate, standing=Standing.REJECTED, reason=reason)
        )

    async def set_aside(self, candidate: Candidate) -> None:
        """Reject a candidate, because each attempt to decide about it crashed the learner."""
        await self._reject(candidate, SET_ASIDE)

    async def decide(self, candidate: Candidate, *, approved: bool) -> Candidate:
        """Apply a person's decision to a waiting candidate. Raises SkillError if the candidate does
        not wait for one.
        """
        if candidate.standing is not Standing.WAITING:
            raise SkillError(
                f"candidate {candidate.id} does not wait for a person: it is {candidate.standing}"
            )
        if not approved:
            return await self._reject(candidate, "a person turned it away")
        passed = GateResult(Standing.ACCEPTED, "a person let it pass")
        return await self._publish(candidate, passed, {}, by_person=True)

    async def change(self, skill: Skill, reason: str) -> bool:
        """Put another version of a learned skill in force, or one that was retired, unless a person
        has touched it."""
        known = self.library.view.get(skill.name)
        expected = {skill.name: None if known is None else known.content_hash}
        learned = LearnedFrom(self.library.view.generation)
        return await self._try(lambda: self._put([skill], (), reason, expected, learned))

    async def retire(self, skill: Skill, reason: str, *, since: int | None = None) -> bool:
        """Retire a learned skill, unless a person has touched it, or reverted after the generation
        `since` of the evidence (by default the present one)."""
        why, expected = f"retired {skill.name}: {reason}", {skill.name: skill.content_hash}
        learned = LearnedFrom(self.library.view.generation if since is None else since)
        if not await self._try(lambda: self._put([], (skill.name,), why, expected, learned)):
            return False
        log.info("skill_retired hash=%s", skill.content_hash)
        await self.record_reason(skill, why)
        return True

    async def _is_in_force_already(self, proposal: Proposal) -> bool:
        """Whether another candidate with the same text is in force."""
        known = self.library.view.get(proposal.skill.name)
        if (
            known is None
            or not _is_same(known, proposal.skill)
            or proposal.change is not Change.NEW
        ):
            return False
        return await run_sync(accepted_candidate, self.candidates, known) is not None

    async def _is_wanted(self, candidate: Candidate) -> bool:
        """Whether the candidate still exists undecided: a session may have been forgotten, or
        skills reverted, meanwhile.
        """
        known = await run_sync(self.candidates.candidate, candidate.id)
        return known is not None and known.standing is Standing.DRAFT

    async def _publish(
        self,
        candidate: Candidate,
        passed: GateResult,
        seen: Mapping[SkillName, str],
        *,
        by_person: bool = False,
    ) -> Candidate:
        """Put a candidate's skill in force, unless a skill of its name or one that it replaces has
        changed, or its evidence is out of date."""
        if await run_sync(self.candidates.candidate, candidate.id) is None:
            return replace(candidate, standing=Standing.REJECTED, reason=_FORGOTTEN)
        proposal = candidate.proposal
        accepted = replace(candidate, standing=Standing.ACCEPTED, reason=passed.reason)
        # Wider skills that it contradicts are not placed together with it.
        overrides = tuple(dict.fromkeys((*proposal.skill.overrides, *passed.overrides)))
        skill = replace(proposal.skill, state=SkillState.LIVE, overrides=overrides)
        if await self._is_in_force_already(proposal):
            return await self._reject(candidate, f"{skill.name} is in force already")
        known = self.library.view.get(skill.name)
        if known is not None and _is_same(known, skill) and proposal.change is Change.NEW:
            return await self._try_to_save(
                accepted
            )  # the program was stopped just before it saved this
        # A person's decision counts as made now, even if skills were reverted after the proposal.
        since = self.library.view.generation if by_person else candidate.generation
        learned = LearnedFrom(since, proposal.support, candidate.id)
        try:
            expected = self._expected(proposal, seen)
            gone = [name for name in proposal.replaces if name != skill.name]
            if proposal.is_instruction and proposal.change is Change.EDIT:
                skill = _with_check(known, skill)
            generation = await self._put(
                [skill], gone, _publish_reason(proposal), expected, learned, by_person=by_person
            )
        except (SkillError, RefusedError) as error:
            return await self._reject(candidate, str(error))
        # The log has no names or reasons: they have a person's words, which must be deleted with
        # their session.
        log.info("skill_born candidate=%s generation=%d", candidate.id, generation)
        if not await self._save(accepted):
            await self.retire(skill, _FORGOTTEN, since=generation)
        return accepted

    async def ask(self, proposal: Proposal, reason: str) -> None:
        """Save a proposal that comes into force by a person's word only, and ask them."""
        candidate = self._candidate(proposal, Standing.WAITING, reason)
        if await self._save(candidate):
            await self._notify(candidate, f"{proposal.skill.name} waits for you: {reason}")

    async def refuse(self, proposal: Proposal, reason: str) -> None:
        """Save a proposal that was refused before the gate as rejected, so that people see why."""
        await self._save(self._candidate(proposal, Standing.REJECTED, reason))

    def _expected(
        self, proposal: Proposal, seen: Mapping[SkillName, str]
    ) -> dict[SkillName, str | None]:
        """Content hashes that must be unchanged at publication. Raises SkillError if a skill to be
        replaced is not in force.
        """
        expected: dict[SkillName, str | None] = {proposal.skill.name: None}
        for name in proposal.replaces:
            known = self.library.view.get(name)
            if known is None:
                raise SkillError(f"{name}, which it was to replace, is no longer in force")
            expected[name] = seen.get(name, known.content_hash)
        return expected

    async def _try(self, change: Callable[[], Awaitable[int]]) -> bool:
        try:
            await change()
        except (SkillError, RefusedError) as error:
            log.info("skill_stays error=%s", type(error).__name__)
            return False
        return True

    async def _put(
        self,
        put: Sequence[Skill],
        gone: Sequence[SkillName],
        reason: str,
        expected: Mapping[SkillName, str | None],
        learned: LearnedFrom,
        *,
        by_person: bool = False,
    ) -> int:
        view = await run_sync(
            lambda: self.library.publish(
                put, gone, reason, expected=expected, learned=learned, by_person=by_person
            )
        )
        return view.generation

    async def _notify(self, candidate: Candidate, notice: str) -> None:
        text = await run_sync(self.redact, notice)
        await self.announce(
            "notice",
            {"candidate": candidate.id, "skill": candidate.proposal.skill.name, "text": text},
        )

    async def _try_to_save(self, candidate: Candidate) -> Candidate:
        await self._save(candidate)
        return candidate

    async def _save(self, candidate: Candidate) -> bool:
        """Save a candidate without secrets; return False if a session that taught it was
        forgotten.
        """
        redacted = await run_sync(self._redacted, candidate)
        try:
            await run_sync(self.candidates.save_candidate, redacted)
        except RefusedError as error:
            log.info("candidate_let_go id=%s reason=%s", candidate.id, error)
            return False
        if candidate.standing is not Standing.DRAFT:
            log.info("candidate id=%s standing=%s", candidate.id, candidate.standing)
        return True

    def _redacted(self, candidate: Candidate) -> Candidate:
        skill, redact = candidate.proposal.skill, self.redact
        clean = replace(
            skill,
            trigger=redact(skill.trigger),
            body=redact(skill.body),
            examples=tuple(map(redact, skill.examples)),
            check=skill.check and redact(skill.check),
            check_note=skill.check_note and redact(skill.check_note),
        )
        proposal = replace(candidate.proposal, skill=clean)
        return replace(candidate, proposal=proposal, reason=redact(candidate.reason))

    async def record_reason(self, skill: Skill, reason: str) -> None:
        """Record on the candidate why its skill was retired, for people and for the evolver."""
        candidate = await run_sync(accepted_candidate, self.candidates, skill)
        if candidate is not None:
            await self._try_to_save(replace(candidate, reason=reason))


@asynccontextmanager
async def claimed(
    candidates: SqlCandidates, kind: str, generation: int, turns: Sequence[TurnId]
) -> AsyncIterator[bool]:
    """Learn from these turns inside, of which some may be support already; yields False if they may
    not be used. After an error, or a crash, the attempt stays open."""
    attempt = await claim_turns(candidates, kind, generation, turns) if turns else None
    yield attempt is not None or not turns
    if attempt is not None:
        await run_sync(candidates.end_attempt, attempt)


async def claim_turns(
    candidates: SqlCandidates,
    kind: str,
    generation: int,
    turns: Sequence[TurnId],
    *,
    may_share: bool = False,
) -> int | None:
    """Begin an attempt with these turns as its support; None if one of them has been used already,
    or is forgotten. With `may_share`, an attempt of another kind may have used it.
    """
    try:
        return await run_sync(candidates.begin_attempt, kind, generation, turns, may_share)
    except RefusedError as error:
        log.debug("attempt_refused kind=%s reason=%s", kind, error)
        return None


def free_turns(reader: LedgerReader, sessions: Sequence[SessionId]) -> list[TurnId] | None:
    """The main turns of these sessions that are not support yet; None if one of them has trained
    weights. Blocks.
    """
    rows = [row for session in sessions for row in reader.turns_of(session, _MOST_TURNS)]
    turns = [row.id for row in rows if row.kind == TurnKind.MAIN]
    roles = {turn: one.role for turn, one in reader.standings_of(turns).items()}
    if any(role is not None and role.kind is RoleKind.QUERY for role in roles.values()):
        return None
    return [turn for turn in turns if roles.get(turn) is None]


def accepted_candidate(candidates: SqlCandidates, skill: Skill) -> Candidate | None:
    """The candidate that became this skill; None for a skill that a person wrote or has changed
    since. Blocks.
    """
    if is_untouchable(skill) and not skill.pinned:
        return None
    accepted = candidates.candidates(Standing.ACCEPTED, name=skill.name)
    return next(
        (one for one in accepted if one.proposal.skill.content_hash == skill.content_hash), None
    )


def _as_filed(skill: Skill) -> Skill:
    """The skill with its text as its file will have it, so that the hash is the same."""
    body = skill.body.replace("\r\n", "\n").replace("\r", "\n").strip("\n").rstrip()
    return replace(skill, trigger=" ".join(skill.trigger.split()), body=body)


def _is_same(in_force: Skill, skill: Skill) -> bool:
    return in_force.content_hash == skill.content_hash and in_force.author is skill.author


def _with_check(rule: Skill | None, proposed: Skill) -> Skill:
    """The rule as it is in force now, with the check that was proposed for it. Raises SkillError if
    its text has changed.
    """
    if rule is None or rule.content_hash != proposed.content_hash:
        raise SkillError(
            f"{proposed.name} says something else since this check was proposed for it"
        )
    return replace(rule, check=proposed.check, check_state=None, check_note=None)


def _publish_reason(proposal: Proposal) -> str:
    count = len(proposal.support)
    if proposal.said_by:
        return f"put {proposal.skill.name} in force for {audience(proposal.skill.scope)}"
    return (
        f"{_VERBS[proposal.change]} {proposal.skill.name} from {count}"
        f" turn{'' if count == 1 else 's'}"
    )


def rejected_proposals(candidates: SqlCandidates) -> dict[str, object]:
    """The rejected proposals: their number for each reason, and the newest with their texts.
    Blocks.
    """
    reasons = Counter(
        map(_kind_of_reason, candidates.reasons(Standing.REJECTED, _MOST_REASONS_COUNTED))
    )
    last = [
        {
            "name": skill.name,
            "text": _shown(skill),
            "reason": candidate.reason,
            "at": candidate.made_at.isoformat(),
        }
        for candidate in candidates.candidates(Standing.REJECTED, _MOST_SHOWN)
        for skill in (candidate.proposal.skill,)
    ]
    return {"reasons": dict(reasons.most_common()), "last": last}


def _kind_of_reason(reason: str) -> str:
    """The first reason without the details of one proposal: `it holds a secret`, `its trigger has N
    words`.
    """
    first = _DETAIL.split(reason, maxsplit=1)[0]
    return _NUMBER.sub("N", first).strip() or "no reason given"


def _shown(skill: Skill) -> str:
    """The person's words that a skill quotes, or else its text, shortened to one line."""
    quoted = [line.removeprefix("> ") for line in skill.body.splitlines() if line.startswith("> ")]
    return shorten(" ".join(quoted or [skill.body]), _SHOWN_CHARS)
